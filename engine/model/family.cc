#include "engine/model/family.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr const char* kQwenKeys[] = {"max_window_layers", "use_sliding_window", "sliding_window",
                                     "layer_types", "attention_bias"};
constexpr const char* kMistralKeys[] = {"sliding_window", "layer_types"};
constexpr const char* kPhi3Keys[] = {"sliding_window", "full_attn_mod", "interpolate_factor"};
constexpr const char* kGemmaKeys[] = {"hidden_act",
                                      "sliding_window",
                                      "sliding_window_size",
                                      "sliding_window_pattern",
                                      "layer_types",
                                      "query_pre_attn_scalar",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping",
                                      "rope_local_base_freq",
                                      "attention_bias"};
constexpr const char* kMixtralKeys[] = {"sliding_window", "num_local_experts",
                                        "num_experts_per_tok", "router_aux_loss_coef"};
constexpr const char* kQwenMoeKeys[] = {
    "max_window_layers",     "use_sliding_window",  "sliding_window",      "attention_bias",
    "num_experts",           "num_local_experts",   "num_experts_per_tok", "norm_topk_prob",
    "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers",     "router_aux_loss_coef"};
constexpr const char* kLlamaKeys[] = {"attention_bias", "mlp_bias"};

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .activation_key = "hidden_act",
     .activation = "silu",
     .biases = BiasRule::kByBoth,
     .keys = kLlamaKeys},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .activation_key = "hidden_act",
     .activation = "silu",
     .defaults = {.kv_heads = 32, .window = 4096, .max_position = 32768},
     .windows = WindowRule::kOptional,
     .biases = BiasRule::kQkv,
     .keys = kQwenKeys},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .activation_key = "hidden_act",
     .activation = "silu",
     .defaults = {.kv_heads = 32, .head_dim = 128, .window = 4096, .max_position = 32768},
     .windows = WindowRule::kOptional,
     .biases = BiasRule::kByAttention,
     .qk_norm = true,
     .keys = kQwenKeys},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .activation_key = "hidden_act",
     .activation = "silu",
     .defaults = {.kv_heads = 8, .window = 4096, .max_position = 131072},
     .windows = WindowRule::kAll,
     .keys = kMistralKeys},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .activation_key = "hidden_act",
     .activation = "silu",
     .defaults = {.max_position = 4096, .rms_eps = 1e-5},
     .windows = WindowRule::kAll,
     .fused_projections = true,
     .partial_rotary = true,
     .only_longrope = true,
     .original_positions = 4096,
     .keys = kPhi3Keys},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .defaults = {.kv_heads = 4,
                  .head_dim = 256,
                  .window = 4096,
                  .pattern = 2,
                  .max_position = 8192,
                  .query_scalar = 256,
                  .attention_soft_cap = 50,
                  .final_soft_cap = 30,
                  .tied_head = true},
     .windows = WindowRule::kByLayerType,
     .biases = BiasRule::kByAttention,
     .post_norms = true,
     .norm_plus_one = true,
     .scaled_embedding = true,
     .final_cap = true,
     .attention_cap = true,
     .query_scalar = true,
     .keys = kGemmaKeys},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .defaults = {.kv_heads = 4,
                  .head_dim = 256,
                  .window = 4096,
                  .pattern = 6,
                  .max_position = 131072,
                  .theta = 1e6,
                  .query_scalar = 256,
                  .tied_head = true},
     .windows = WindowRule::kByLayerType,
     .biases = BiasRule::kByAttention,
     .qk_norm = true,
     .post_norms = true,
     .norm_plus_one = true,
     .scaled_embedding = true,
     .final_cap = true,
     .query_scalar = true,
     .local_rope = true,
     .keys = kGemmaKeys},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .activation_key = "hidden_act",
     .activation = "silu",
     .defaults =
         {.kv_heads = 8, .max_position = 131072, .rms_eps = 1e-5, .theta = 1e6, .per_token = 2},
     .windows = WindowRule::kAll,
     .experts = {.count = "num_local_experts",
                 .count_alias = "num_experts",
                 .intermediate = "intermediate_size",
                 .names = {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"}},
     .keys = kMixtralKeys},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .activation_key = "hidden_act",
     .activation = "silu",
     .defaults = {.kv_heads = 4, .window = 4096, .max_position = 32768, .per_token = 8},
     .windows = WindowRule::kOptionalAll,
     .biases = BiasRule::kByAttention,
     .qk_norm = true,
     .experts = {.count = "num_experts",
                 .count_alias = "num_local_experts",
                 .intermediate = "moe_intermediate_size",
                 .normalise_key = true,
                 .dense_layers = true},
     .keys = kQwenMoeKeys},
};

// Keys that every family reads, or that touch no maths though their names sound like it.
constexpr const char* kCommonKeys[] = {"num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "rms_norm_eps",
                                       "max_position_embeddings",
                                       "original_max_position_embeddings",
                                       "tie_word_embeddings",
                                       "tie_encoder_decoder",
                                       "rope_theta",
                                       "rope_scaling",
                                       "rope_parameters",
                                       "partial_rotary_factor",
                                       "attn_implementation",
                                       "output_attentions",
                                       "add_cross_attention",
                                       "pretraining_tp",
                                       "norm_eps"};

// A key whose name holds one of these speaks of maths.
constexpr const char* kMathsWords[] = {
    "scal",        "multiplier",  "bias",   "norm",      "cap",      "rope",   "rotary",  "window",
    "expert",      "moe",         "attn",   "attention", "residual", "logit",  "dropout", "drop",
    "activation",  "hidden_act",  "act_fn", "interleav", "mup",      "router", "clip",    "head",
    "layer_types", "sparse",      "alibi",  "position",  "embed",    "embd",   "gate",    "qk",
    "mlp",         "temperature", "factor", "shared",    "mrope",    "softmax"};
// What says what a feature would be, where a message can be better than general.
struct OffSwitch {
  const char* key;
  const char* what;
};
constexpr OffSwitch kOff[] = {
    {"attention_bias", "biases on q, k, v and o"},
    {"mlp_bias", "biases on gate, up and down"},
    {"attention_dropout", "dropout of attention probabilities"},
    {"resid_pdrop", "dropout of the residual"},
    {"embd_pdrop", "dropout of the embedding"},
    {"rope_interleaved", "rotary pairs that lie beside each other"},
    {"use_bidirectional_attention", "attention to later tokens"},
    {"output_router_logits", "a loss of the router's own"},
    {"router_jitter_noise", "noise at the router"},
};

template <typename List>
bool Holds(const List& list, absl::string_view key) {
  return std::any_of(std::begin(list), std::end(list), [&](const char* s) { return key == s; });
}

bool SpeaksOfMaths(absl::string_view key) {
  return std::any_of(std::begin(kMathsWords), std::end(kMathsWords),
                     [&](const char* word) { return absl::StrContains(key, word); });
}

bool Known(const Family& family, absl::string_view key) {
  return Holds(kCommonKeys, key) || Holds(family.keys, key) || key == family.activation_key ||
         absl::StartsWith(key, "_");
}

absl::Status CheckKey(const Family& family, const ConfigReader& config, const std::string& key) {
  if (Known(family, key) || !SpeaksOfMaths(key) || config.IsOff(key)) return absl::OkStatus();
  for (const OffSwitch& off : kOff) {
    if (key != off.key) continue;
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", key, " ", config.Shown(key),
                                                   " (", off.what, ") is not supported for ",
                                                   family.model_type, " models"));
  }
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", key.substr(0, 100), " ",
                                                 config.Shown(key), " is not known for ",
                                                 family.model_type,
                                                 " models, and its name sounds as if it changed "
                                                 "what they compute; if it does not, remove it"));
}

}  // namespace

absl::Span<const Family> Families() { return kFamilies; }

absl::StatusOr<const Family*> FindFamily(absl::string_view model_type) {
  std::vector<std::string> names;
  for (const Family& family : Families()) {
    if (model_type == family.model_type) return &family;
    names.push_back(family.model_type);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: model_type '", model_type.substr(0, 100),
                   "' is not supported; supported families: ", absl::StrJoin(names, ", ")));
}

absl::Status CheckFamily(const Family& family, const ConfigReader& config) {
  SOUP_ASSIGN_OR_RETURN(const auto architectures, config.Strings("architectures"));
  if (!architectures.empty() && std::find(architectures.begin(), architectures.end(),
                                          family.architecture) == architectures.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: architectures ", config.Shown("architectures"), " is not supported; ",
        family.model_type, " models must be ", family.architecture));
  }
  for (const std::string& key : config.Keys()) {
    SOUP_RETURN_IF_ERROR(CheckKey(family, config, key));
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
