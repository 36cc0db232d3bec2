#include "engine/io/gguf_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

using Part = GgufArchitecture::Part;

constexpr Part kLlama[] = {
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
constexpr Part kQwen2[] = {
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
constexpr Part kQwen3[] = {
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
const GgufArchitecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", true, kLlama},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false, kQwen2},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false, kQwen3},
};

// Keys of an architecture that are read below, or that change no result.
constexpr absl::string_view kKnownKeys[] = {"block_count",
                                            "context_length",
                                            "embedding_length",
                                            "feed_forward_length",
                                            "attention.head_count",
                                            "attention.head_count_kv",
                                            "attention.layer_norm_rms_epsilon",
                                            "attention.key_length",
                                            "attention.value_length",
                                            "rope.freq_base",
                                            "rope.dimension_count",
                                            "vocab_size",
                                            "tensor_data_layout"};

// Keys that must be absent or have this effect-free value.
constexpr struct {
  absl::string_view key;
  const char* what;
} kOffKeys[] = {{"expert_count", "experts"},
                {"expert_used_count", "experts"},
                {"attention.sliding_window", "a sliding window"}};

// A float of the file as the decimal number that it was written from: 1e-05, not 9.9999997e-06.
double Decimal(double value) {
  char buffer[64];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, static_cast<float>(value));
  *end = '\0';
  return std::strtod(buffer, nullptr);
}

// rope_freqs.weight: what llama3's scaling divides each frequency by. The file keeps the result
// alone; the settings are found again and checked against every one of them.
absl::StatusOr<nlohmann::json> Llama3Scaling(const GgufFile& file, const GgufTensor& tensor,
                                             double theta, int64_t head_dim) {
  if (tensor.shape.size() != 1 || tensor.shape[0] != head_dim / 2)
    return file.Error("rope_freqs.weight has another length than half of a head");
  std::vector<float> told(static_cast<size_t>(head_dim / 2));
  SOUP_RETURN_IF_ERROR(file.Read(tensor, 0, head_dim / 2, told.data()));
  const double factor = Decimal(*std::max_element(told.begin(), told.end()));
  constexpr double kLow = 1, kHigh = 4, kOriginal = 8192;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double wavelength =
        2 * M_PI * std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    double expected = 1;
    if (wavelength > kOriginal / kLow) {
      expected = factor;
    } else if (wavelength >= kOriginal / kHigh) {
      const double smooth = (kOriginal / wavelength - kLow) / (kHigh - kLow);
      expected = 1 / ((1 - smooth) / factor + smooth);
    }
    if (!(std::fabs(told[i] - expected) <= 1e-4 * expected)) {
      return file.Error(
          "rope_freqs.weight is not what llama3's rope scaling (low_freq_factor 1, "
          "high_freq_factor 4, 8192 original positions) gives; use the Hugging Face folder");
    }
  }
  return nlohmann::json{{"rope_type", "llama3"},
                        {"factor", factor},
                        {"low_freq_factor", kLow},
                        {"high_freq_factor", kHigh},
                        {"original_max_position_embeddings", static_cast<int64_t>(kOriginal)}};
}

// Reads the keys of one architecture.
class ConfigWriter {
 public:
  ConfigWriter(const GgufFile& file, const GgufArchitecture& arch)
      : file_(file), arch_(arch), prefix_(absl::StrCat(arch.name, ".")) {}

  absl::StatusOr<GgufShape> Run() {
    SOUP_RETURN_IF_ERROR(CheckKeys());
    GgufShape out;
    out.architecture = &arch_;
    SOUP_ASSIGN_OR_RETURN(out.layers, Count("block_count"));
    SOUP_ASSIGN_OR_RETURN(out.heads, Count("attention.head_count"));
    out.kv_heads = out.heads;
    if (file_.Has(Key("attention.head_count_kv"))) {
      SOUP_ASSIGN_OR_RETURN(out.kv_heads, Count("attention.head_count_kv"));
    }
    SOUP_ASSIGN_OR_RETURN(const int64_t hidden, Count("embedding_length"));
    SOUP_ASSIGN_OR_RETURN(const int64_t intermediate, Count("feed_forward_length"));
    SOUP_ASSIGN_OR_RETURN(const int64_t positions, Count("context_length"));
    SOUP_ASSIGN_OR_RETURN(const int64_t head_dim, HeadDim(hidden, out.heads));
    SOUP_ASSIGN_OR_RETURN(const double epsilon,
                          file_.Real(Key("attention.layer_norm_rms_epsilon")));
    SOUP_ASSIGN_OR_RETURN(const double theta, file_.RealOr(Key("rope.freq_base"), 10000));
    const GgufTensor* embedding = file_.Find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
      return file_.Error("there is no matrix token_embd.weight");
    nlohmann::ordered_json config = {
        {"architectures", {arch_.architecture}},
        {"model_type", arch_.model_type},
        {"hidden_act", "silu"},
        {"hidden_size", hidden},
        {"intermediate_size", intermediate},
        {"num_hidden_layers", out.layers},
        {"num_attention_heads", out.heads},
        {"num_key_value_heads", out.kv_heads},
        {"head_dim", head_dim},
        {"vocab_size", embedding->shape[0]},
        {"max_position_embeddings", positions},
        {"rms_norm_eps", Decimal(epsilon)},
        {"rope_theta", Decimal(theta)},
        {"rope_scaling", nullptr},
        {"tie_word_embeddings", file_.Find("output.weight") == nullptr},
        {"torch_dtype", "bfloat16"}};
    for (const char* name : {"bos_token_id", "eos_token_id"}) {
      const std::string key = absl::StrCat("tokenizer.ggml.", name);
      if (!file_.Has(key)) continue;
      SOUP_ASSIGN_OR_RETURN(config[name], file_.Int(key));
    }
    if (const GgufTensor* freqs = file_.Find("rope_freqs.weight")) {
      SOUP_ASSIGN_OR_RETURN(config["rope_scaling"],
                            Llama3Scaling(file_, *freqs, Decimal(theta), head_dim));
    }
    out.config_json = config.dump(1) + "\n";
    return out;
  }

 private:
  std::string Key(absl::string_view name) const { return absl::StrCat(prefix_, name); }

  absl::Status CheckKeys() const {
    for (const std::string& key : file_.Keys()) {
      if (!absl::StartsWith(key, prefix_)) continue;
      const absl::string_view name = absl::string_view(key).substr(prefix_.size());
      if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), name) != std::end(kKnownKeys))
        continue;
      const auto* off = std::find_if(std::begin(kOffKeys), std::end(kOffKeys),
                                     [name](const auto& k) { return k.key == name; });
      if (off != std::end(kOffKeys)) {
        const auto value = file_.Int(key);
        if (value.ok() && *value == 0) continue;
        return file_.Error(absl::StrCat(key, " (", off->what, ") is not supported"));
      }
      if (name == "rope.scaling.type") {
        const auto type = file_.Text(key);
        if (type.ok() && *type == "none") continue;
        return file_.Error(absl::StrCat(key, " is not 'none': no other is supported"));
      }
      return file_.Error(absl::StrCat("the metadata has ", key.substr(0, 100),
                                      ", which is not supported for this architecture"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Count(absl::string_view name) const {
    SOUP_ASSIGN_OR_RETURN(const int64_t value, file_.Int(Key(name)));
    if (value < 1 || value > int64_t{1} << 30)
      return file_.Error(absl::StrCat(Key(name), " is ", value));
    return value;
  }

  absl::StatusOr<int64_t> HeadDim(int64_t hidden, int64_t heads) const {
    int64_t out = hidden / heads;
    if (file_.Has(Key("attention.key_length"))) {
      SOUP_ASSIGN_OR_RETURN(out, Count("attention.key_length"));
    } else if (file_.Has(Key("rope.dimension_count"))) {
      SOUP_ASSIGN_OR_RETURN(out, Count("rope.dimension_count"));
    }
    for (const char* same : {"attention.value_length", "rope.dimension_count"}) {
      if (!file_.Has(Key(same))) continue;
      SOUP_ASSIGN_OR_RETURN(const int64_t value, Count(same));
      if (value != out) {
        return file_.Error(absl::StrCat(Key(same), " is ", value, ", but a head has ", out,
                                        ": that is not supported"));
      }
    }
    if (out % 2 != 0) return file_.Error(absl::StrCat("a head of ", out, " is odd"));
    return out;
  }

  const GgufFile& file_;
  const GgufArchitecture& arch_;
  const std::string prefix_;
};

}  // namespace

absl::StatusOr<GgufShape> ReadGgufConfig(const GgufFile& file) {
  SOUP_ASSIGN_OR_RETURN(const std::string name, file.Text("general.architecture"));
  std::vector<std::string> known;
  for (const GgufArchitecture& arch : kArchitectures) {
    if (name == arch.name) return ConfigWriter(file, arch).Run();
    known.push_back(arch.name);
  }
  return file.Error(absl::StrCat("architecture '", name.substr(0, 100),
                                 "' is not supported (known: ", absl::StrJoin(known, ", "),
                                 "); use the model's Hugging Face folder"));
}

}  // namespace soup::engine
