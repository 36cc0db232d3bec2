// Export of an adapter in PEFT's form: adapter_model.safetensors and adapter_config.json, readable
// by peft, vLLM and others that take PEFT adapters.
//
// lora_alpha is the user's alpha; with rslora the readers apply alpha / sqrt(r) themselves because
// use_rslora says so. The directory appears whole (StagedDirectory). Errors: FailedPrecondition (a
// tensor is not finite: named; or the adapter is inert: no B has moved), and those of FileSystem.
#ifndef SOUP_ENGINE_TRAIN_PEFT_EXPORT_H_
#define SOUP_ENGINE_TRAIN_PEFT_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/file_system.h"
#include "engine/train/adapter.h"

namespace soup::engine {

struct PeftConfig {
  std::string base_model_name;  // base_model_name_or_path; not empty
  double alpha = 0;
  double dropout = 0;
  bool rslora = false;
};

// Text of adapter_config.json.
std::string PeftConfigJson(const AdapterLayout& layout, const PeftConfig& config);

// `weights`: a vector of the layout. `initial`: the weights that training began with, or empty when
// every B began at zero.
absl::Status ExportPeftAdapter(FileSystem& fs, const std::string& directory,
                               const AdapterLayout& layout, absl::Span<const float> weights,
                               absl::Span<const float> initial, const PeftConfig& config);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_PEFT_EXPORT_H_
