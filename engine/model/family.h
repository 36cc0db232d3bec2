// The table of supported families: what each one's config.json may say and what its layers do
// differently. Adding a family is an entry here and, where it computes something new, one op and
// one field of ModelSpec: docs/FAMILIES.md.
//
// Every key of a config is one that this build reads, one that does not touch the maths, or one
// that is refused by name: a key whose name speaks of maths and that a family does not know is
// never ignored, unless its value leaves the feature off (false, 0, null, empty).
//
// Errors: InvalidArgument, naming the key, its value and what is supported. Any thread.
#ifndef SOUP_ENGINE_MODEL_FAMILY_H_
#define SOUP_ENGINE_MODEL_FAMILY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/config_reader.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

// Which layers see a window of keys only.
enum class WindowRule : uint8_t {
  kNone,
  kAll,          // sliding_window, when it is not null: every layer
  kOptional,     // use_sliding_window; layer_types, or the layers from max_window_layers on
  kOptionalAll,  // use_sliding_window: every layer
  kByLayerType,  // layer_types, or all but every sliding_window_pattern-th layer
};

// Which linears carry biases.
enum class BiasRule : uint8_t {
  kNone,
  kQkv,          // q, k and v always
  kByAttention,  // q, k, v and o when attention_bias is true
  kByBoth,       // likewise, and gate, up and down when mlp_bias is true
};

// How a config spells the experts; null count: the family has none.
struct ExpertKeys {
  const char* count = nullptr;
  const char* count_alias = nullptr;   // another spelling of the same
  const char* intermediate = nullptr;  // width of an expert
  bool normalise_key = false;          // norm_topk_prob decides; else always
  bool dense_layers = false;           // mlp_only_layers and decoder_sparse_step are read
  ExpertSpec names;                    // in the checkpoint
};

// What transformers' config class takes where config.json is silent. 0: see the field.
struct FamilyDefaults {
  int64_t kv_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t window = 0;    // where sliding_window is absent (null means none); 0: none
  int64_t pattern = 0;   // sliding_window_pattern
  int64_t max_position = 2048;
  double rms_eps = 1e-6;
  double theta = 10000.0;
  double local_theta = 10000.0;
  double query_scalar = 0;
  double attention_soft_cap = 0;
  double final_soft_cap = 0;
  int64_t per_token = 0;  // num_experts_per_tok
  bool tied_head = false;
};

struct Family {
  const char* model_type;      // config.model_type
  const char* architecture;    // the one of config.architectures that is a causal language model
  const char* activation_key;  // hidden_act or hidden_activation
  const char* activation;      // where it is absent
  FamilyDefaults defaults;
  WindowRule windows = WindowRule::kNone;
  BiasRule biases = BiasRule::kNone;
  bool qk_norm = false;
  bool post_norms = false;
  bool norm_plus_one = false;     // norms multiply by 1 + weight
  bool scaled_embedding = false;  // by sqrt(hidden_size)
  bool final_cap = false;         // final_logit_softcapping
  bool attention_cap = false;     // attn_logit_softcapping; transformers reads gemma3's nowhere
  bool query_scalar = false;      // query_pre_attn_scalar
  bool fused_projections = false;
  bool local_rope = false;  // rope parameters by layer type
  bool partial_rotary = false;
  bool only_longrope = false;     // rope types: default and longrope, which has older names
  double original_positions = 0;  // original_max_position_embeddings where it is absent
  ExpertKeys experts;
  absl::Span<const char* const> keys;  // further keys it knows, read or of no account
};

absl::Span<const Family> Families();
absl::StatusOr<const Family*> FindFamily(absl::string_view model_type);

// Architecture, features that must be off, and keys that nobody reads.
absl::Status CheckFamily(const Family& family, const ConfigReader& config);

// Fills what the family adds to a decoder (activation, windows, norms, biases, caps, experts) in a
// spec that has its sizes.
absl::Status ReadFeatures(const Family& family, const ConfigReader& config, ModelSpec& spec);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_FAMILY_H_
