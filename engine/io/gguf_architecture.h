// The table of architectures that a GGUF base may have: how each one calls its tensors, and what
// differs between them. A family is an entry here (docs/FAMILIES.md); gguf_config.cc and
// gguf_model.cc read the fields. Names and layouts are llama.cpp's (gguf-py's tensor names, and
// what its converter does to the weights). Pure; any thread.
#ifndef SOUP_ENGINE_IO_GGUF_ARCHITECTURE_H_
#define SOUP_ENGINE_IO_GGUF_ARCHITECTURE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace soup::engine {

// A tensor of a layer: "blk.<i>.<gguf>" is "model.layers.<i>.<name>".
struct GgufPart {
  const char* gguf;
  const char* name;
};

// A matrix that each expert has: "blk.<i>.<merged>" of [experts, rows, columns] or, in older files,
// "blk.<i>.<single>.<e>.weight", is "model.layers.<i>.<block>.experts.<e>.<name>".
struct GgufExpertPart {
  const char* merged;
  const char* single;
  const char* name;
};

enum class GgufWindows : uint8_t {
  kNone,        // attention.sliding_window must be absent or 0
  kEveryLayer,  // attention.sliding_window must be there: 0 is none
  kByPattern,   // in all but every pattern-th layer
};

struct GgufArchitecture {
  const char* name;          // general.architecture
  const char* model_type;    // config.json's
  const char* architecture;  // config.json's architectures
  absl::Span<const GgufPart> parts;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool interleaved = false;    // rows of q and k lie by interleaved rotary pairs
  bool norm_plus_one = false;  // the file's norms have 1 added to their weights
  // Windows. Where the keys are absent: pattern and window as llama.cpp takes them (window 0:
  // none).
  GgufWindows windows = GgufWindows::kNone;
  int64_t pattern = 0;
  int64_t window = 0;
  // Scores and logits; where the keys are absent. Caps are read where there is a scalar's rule.
  double attention_cap = 0;
  double final_cap = 0;
  bool query_scalar = false;    // query_pre_attn_scalar, which is no metadata: a head's width, or
  int64_t wide_layers = 0;      // hidden / heads in the model of so many layers (llama.cpp's rule)
  bool local_rope = false;      // sliding layers turn by rope.freq_base_swa
  bool partial_rotary = false;  // rope.dimension_count may be less than a head; longrope's tensors
  // Experts. The entry is of files that have some.
  const char* expert_count = nullptr;         // config.json's key; null: no experts
  const char* expert_intermediate = nullptr;  // config.json's key of an expert's width, and
  const char* expert_width = nullptr;         // metadata's
  const char* expert_block = nullptr;
  bool normalise_key = false;  // config.json has norm_topk_prob
  absl::Span<const GgufExpertPart> experts;
  absl::Span<const char* const> keys;  // of its metadata, beyond those that all have
};

// Null: not supported. `sparse`: the file has experts.
const GgufArchitecture* FindGgufArchitecture(absl::string_view name, bool sparse);
std::string SupportedGgufArchitectures();  // "llama, qwen2, ..."

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_ARCHITECTURE_H_
