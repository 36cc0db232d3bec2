// SlabAssembler: from a model (checkpoint.h: a Hugging Face folder, or a .gguf file) to slabs, one
// at a time, with every core.
//
// bf16 stays as it is; the rest is rounded to bf16 (a warning says so); linears are then
// quantised when the format asks for it, each matrix on its own. A NaN or an infinity in any weight
// is refused, naming the tensor, row and column (for a norm: the index). Create checks all that
// headers tell: every expected tensor is there with its shape, and nothing is there that the family
// does not use (but for derived ones). The store's import, tests and the checkers use this same
// code.
//
// Errors: those of the readers; InvalidArgument for what the model holds; Cancelled. Thread-safe;
// one Assemble uses `control.threads` threads.
#ifndef SOUP_CACHE_SLAB_ASSEMBLER_H_
#define SOUP_CACHE_SLAB_ASSEMBLER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/task_control.h"
#include "engine/io/confined_file.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"

namespace soup::cache {

class SlabAssembler {
 public:
  static absl::StatusOr<std::unique_ptr<SlabAssembler>> Create(const std::string& folder,
                                                               const engine::AllowedRoots& roots,
                                                               engine::BaseFormat format);
  ~SlabAssembler();

  const engine::ModelSpec& spec() const;
  const std::string& config_json() const;
  engine::BaseFormat format() const;
  int64_t slabs() const;
  int64_t slab_bytes(int64_t slab) const;
  int64_t total_slab_bytes() const;
  int64_t checkpoint_bytes() const;                  // of the checkpoint's tensors
  const std::vector<std::string>& warnings() const;  // complete once Create returns

  // dst.size() == slab_bytes(slab); every byte is written (gaps are zero). Deterministic.
  absl::Status Assemble(int64_t slab, absl::Span<uint8_t> dst, const TaskControl& control) const;

 private:
  SlabAssembler();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// All slabs in ordinary memory, 256-byte aligned.
class MemoryBase {
 public:
  static absl::StatusOr<MemoryBase> Assemble(const std::string& folder,
                                             const engine::AllowedRoots& roots,
                                             engine::BaseFormat format,
                                             const TaskControl& control = {});
  const engine::ModelSpec& spec() const { return spec_; }
  const std::string& config_json() const { return config_json_; }
  engine::BaseFormat format() const { return format_; }
  int64_t slabs() const { return static_cast<int64_t>(slabs_.size()); }
  absl::Span<const uint8_t> slab(int64_t i) const {
    return {slabs_[i].data.get(), static_cast<size_t>(slabs_[i].bytes)};
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const;
  };
  struct Slab {
    std::unique_ptr<uint8_t, Free> data;
    int64_t bytes = 0;
  };
  engine::ModelSpec spec_;
  std::string config_json_;
  engine::BaseFormat format_ = engine::BaseFormat::kBf16;
  std::vector<Slab> slabs_;
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_SLAB_ASSEMBLER_H_
