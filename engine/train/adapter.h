// AdapterLayout: where A and B of every adapted linear lie in a job's flat fp32 vectors (weights,
// gradients, moments), and what PEFT calls them.
//
// Order: layer, then group, then the A of its adapted modules (Module's order) and after them the
// B, without gaps; A is [r, in], B is [out, r], row-major. So the A of modules that read one input
// are one matrix, and the B of a group another. All vectors of a job have this one layout, so the
// optimizer, the mirror and the checkpoint see one array. Immutable; any thread.
#ifndef SOUP_ENGINE_TRAIN_ADAPTER_H_
#define SOUP_ENGINE_TRAIN_ADAPTER_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/io/safetensors_reader.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"
#include "engine/plan/job_plan.h"

namespace soup::engine {

enum class LoraPart : uint8_t { kA, kB };

struct AdapterTensor {
  int64_t layer = 0;
  Module module = Module::kQ;
  LoraPart part = LoraPart::kA;
  int64_t offset = 0;  // elements from the vector's start
  int64_t rows = 0;
  int64_t cols = 0;
  std::string name;  // PEFT's
  int64_t elements() const { return rows * cols; }
};

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"
std::string PeftTensorName(int64_t layer, Module module, LoraPart part);

class AdapterLayout {
 public:
  // Errors: InvalidArgument (rank below 1, no targets, a target named twice).
  static absl::StatusOr<AdapterLayout> Create(const ModelSpec& model, const LoraShape& lora);

  const std::vector<AdapterTensor>& tensors() const { return tensors_; }
  int64_t elements() const { return elements_; }
  int32_t r() const { return r_; }
  const std::vector<Module>& targets() const { return targets_; }
  bool adapts(Module module) const { return place_[static_cast<size_t>(module)] >= 0; }
  // The module must be adapted.
  const AdapterTensor& tensor(int64_t layer, Module module, LoraPart part) const;
  absl::Span<const float> Slice(absl::Span<const float> vector, const AdapterTensor& t) const {
    return vector.subspan(static_cast<size_t>(t.offset), static_cast<size_t>(t.elements()));
  }

 private:
  AdapterLayout() = default;
  void MakeLayerOrder();
  int32_t r_ = 0;
  std::vector<Module> targets_;
  std::array<int32_t, kModules> place_ = {};  // of A among a layer's tensors; -1: not adapted
  std::array<int32_t, kModules> place_b_ = {};
  std::vector<std::pair<Module, LoraPart>> layer_order_;  // the tensors of a layer
  std::vector<AdapterTensor> tensors_;
  int64_t elements_ = 0;
};

// The adapter's weights from a file in PEFT's form, as a vector of the layout. Errors:
// InvalidArgument (a tensor that the layout lacks, is missing, of another shape, or not finite;
// names it and says which rank and targets the job asks for), and those of the reader.
absl::StatusOr<std::vector<float>> LoadAdapterWeights(const AdapterLayout& layout,
                                                      const SafetensorsFile& file);

// The same errors; at most one tensor is in memory at a time.
absl::Status CheckAdapterWeights(const AdapterLayout& layout, const SafetensorsFile& file);

// The name of the first tensor that holds a NaN or an infinity; empty: all are finite.
std::string FirstNonFinite(const AdapterLayout& layout, absl::Span<const float> vector);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_ADAPTER_H_
