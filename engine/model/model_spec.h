// ModelSpec: everything that the engine needs to know of a decoder, read from a Hugging Face
// config.json.
//
// Both spellings of the rope keys are read: `rope_theta` + `rope_scaling` and `rope_parameters`;
// inside either, `type` is an older name of `rope_type`. What is not supported is refused by name
// (InvalidArgument): family, activation, rope type, biases. Plain values: copy freely, any thread.
#ifndef SOUP_ENGINE_MODEL_MODEL_SPEC_H_
#define SOUP_ENGINE_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

enum class RopeType : uint8_t { kDefault, kLinear, kLlama3 };

struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                  // linear, llama3
  double low_freq_factor = 1.0;         // llama3
  double high_freq_factor = 4.0;        // llama3
  double original_max_position = 8192;  // llama3
};

struct ModelSpec {
  std::string family;  // config.model_type
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t max_position = 0;
  double rms_eps = 1e-5;
  bool tied_head = false;
  RopeSpec rope;
  int64_t bos_token_id = -1;  // -1: the config names none
  int64_t eos_token_id = -1;  // the first, where the config lists several

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// Parses the text of a config.json. Errors: InvalidArgument, naming the key, its value and what is
// supported.
absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view config_json);

// inv_freq [head_dim / 2], in double as Hugging Face computes it, llama3 blending included.
// Source: transformers modeling_rope_utils (formulas of arXiv 2104.09864; llama3: Llama 3.1 model
// card).
std::vector<float> RopeInverseFrequencies(const ModelSpec& spec);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_MODEL_SPEC_H_
