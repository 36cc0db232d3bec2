#include "engine/io/gguf_architecture.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace soup::engine {
namespace {

constexpr GgufPart kLlama[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};
constexpr GgufPart kQwen2[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};
constexpr GgufPart kQwen3[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};
// gate_up_proj is called ffn_up: gate's rows first, as in Hugging Face's matrix.
constexpr GgufPart kPhi3[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_up.weight", "mlp.gate_up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};
constexpr GgufPart kGemma2[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
};
constexpr GgufPart kGemma3[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
};
constexpr GgufPart kMixtral[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"},
};
constexpr GgufPart kQwen3Moe[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
};
constexpr GgufExpertPart kMixtralExperts[] = {{"ffn_gate_exps.weight", "ffn_gate", "w1.weight"},
                                              {"ffn_up_exps.weight", "ffn_up", "w3.weight"},
                                              {"ffn_down_exps.weight", "ffn_down", "w2.weight"}};
constexpr GgufExpertPart kQwen3Experts[] = {
    {"ffn_gate_exps.weight", "ffn_gate", "gate_proj.weight"},
    {"ffn_up_exps.weight", "ffn_up", "up_proj.weight"},
    {"ffn_down_exps.weight", "ffn_down", "down_proj.weight"}};

constexpr const char* kPhi3Keys[] = {"attention.sliding_window", "rope.scaling.attn_factor"};
constexpr const char* kGemma2Keys[] = {"attention.sliding_window",
                                       "attention.sliding_window_pattern", "attn_logit_softcapping",
                                       "final_logit_softcapping"};
constexpr const char* kGemma3Keys[] = {
    "attention.sliding_window", "attention.sliding_window_pattern", "final_logit_softcapping"};
constexpr const char* kMixtralKeys[] = {"expert_count", "expert_used_count"};
constexpr const char* kQwen3MoeKeys[] = {"expert_count", "expert_used_count",
                                         "expert_feed_forward_length"};

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .parts = kLlama,
     .interleaved = true},
    {.name = "qwen2", .model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .parts = kQwen2},
    {.name = "qwen3", .model_type = "qwen3", .architecture = "Qwen3ForCausalLM", .parts = kQwen3},
    {.name = "phi3",
     .model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .parts = kPhi3,
     .windows = GgufWindows::kEveryLayer,
     .partial_rotary = true,
     .keys = kPhi3Keys},
    {.name = "gemma2",
     .model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .parts = kGemma2,
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .norm_plus_one = true,
     .windows = GgufWindows::kByPattern,
     .pattern = 2,
     .window = 4096,
     .attention_cap = 50,
     .final_cap = 30,
     .query_scalar = true,
     .wide_layers = 46,
     .keys = kGemma2Keys},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .parts = kGemma3,
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .norm_plus_one = true,
     .windows = GgufWindows::kByPattern,
     .pattern = 6,
     .query_scalar = true,
     .wide_layers = 62,
     .local_rope = true,
     .keys = kGemma3Keys},
    {.name = "llama",
     .model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .parts = kMixtral,
     .interleaved = true,
     .expert_count = "num_local_experts",
     .expert_intermediate = "intermediate_size",
     .expert_width = "feed_forward_length",
     .expert_block = "block_sparse_moe",
     .experts = kMixtralExperts,
     .keys = kMixtralKeys},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .parts = kQwen3Moe,
     .expert_count = "num_experts",
     .expert_intermediate = "moe_intermediate_size",
     .expert_width = "expert_feed_forward_length",
     .expert_block = "mlp",
     .normalise_key = true,
     .experts = kQwen3Experts,
     .keys = kQwen3MoeKeys},
};

}  // namespace

const GgufArchitecture* FindGgufArchitecture(absl::string_view name, bool sparse) {
  for (const GgufArchitecture& arch : kArchitectures) {
    if (name == arch.name && sparse == (arch.expert_count != nullptr)) return &arch;
  }
  return nullptr;
}

std::string SupportedGgufArchitectures() {
  return absl::StrJoin(kArchitectures, ", ", [](std::string* out, const GgufArchitecture& arch) {
    absl::StrAppend(out, arch.name, arch.expert_count != nullptr ? " with experts" : "");
  });
}

}  // namespace soup::engine
