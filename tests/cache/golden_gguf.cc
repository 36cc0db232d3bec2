#include "tests/cache/golden_gguf.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/io/safetensors_reader.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/whole_file.h"

namespace soup::testing {
namespace {

using Json = nlohmann::json;

// Hugging Face's names within a layer and llama.cpp's. Names that mean different things in
// different families are told apart below.
const std::pair<const char*, const char*> kParts[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
};
const std::pair<const char*, const char*> kExpertParts[] = {
    {"gate_proj", "ffn_gate"}, {"up_proj", "ffn_up"}, {"down_proj", "ffn_down"},
    {"w1", "ffn_gate"},        {"w3", "ffn_up"},      {"w2", "ffn_down"}};

class Converter {
 public:
  Converter(const std::string& folder, const GoldenGgufOptions& options)
      : options_(options),
        path_(GoldenFolder(folder)),
        config_(Json::parse(ReadWhole(path_ + "/config.json"))),
        type_(config_["model_type"]),
        gemma_(absl::StartsWith(type_, "gemma")),
        arch_(type_ == "mixtral" || type_ == "mistral" ? "llama"
              : type_ == "qwen3_moe"                   ? "qwen3moe"
              : type_ == "gemma3_text"                 ? "gemma3"
                                                       : type_),
        writer_(arch_) {}

  GgufWriter Run() {
    Metadata();
    auto checkpoint = engine::SafetensorsCheckpoint::Open(path_);
    if (!checkpoint.ok()) Die(checkpoint.status().ToString());
    for (const std::string& name : (*checkpoint)->Names()) {
      const auto at = (*checkpoint)->Find(name);
      std::string bytes(static_cast<size_t>(at.tensor->bytes), '\0');
      if (!at.file->Read(*at.tensor, 0, static_cast<int64_t>(bytes.size()), bytes.data()).ok())
        Die(name);
      One(name, at.tensor->shape, std::move(bytes));
    }
    for (const auto& [name, merged] : merged_) {
      std::vector<int64_t> shape = merged.shape;
      shape.insert(shape.begin(), static_cast<int64_t>(merged.parts.size()));
      std::string bytes;
      for (const auto& [expert, part] : merged.parts) bytes += part;
      writer_.Tensor(name, options_.experts, shape, bytes);
    }
    return std::move(writer_);
  }

 private:
  [[noreturn]] static void Die(const std::string& what) {
    std::cerr << "GoldenGguf: " << what << std::endl;
    std::abort();
  }

  std::string Key(const char* name) const { return absl::StrCat(arch_, ".", name); }
  void Int(const std::string& key, uint32_t value) {
    if (key != options_.omit) writer_.Int(key, value);
  }
  void Copy(const char* from, const char* to) {
    if (config_.contains(from) && !config_[from].is_null())
      Int(Key(to), config_[from].get<uint32_t>());
  }

  void Metadata() {
    Copy("num_hidden_layers", "block_count");
    Copy("max_position_embeddings", "context_length");
    Copy("hidden_size", "embedding_length");
    Copy("intermediate_size", "feed_forward_length");
    Copy("num_attention_heads", "attention.head_count");
    Copy("num_key_value_heads", "attention.head_count_kv");
    Copy("head_dim", "attention.key_length");
    Copy("head_dim", "attention.value_length");
    Copy("num_local_experts", "expert_count");
    Copy("num_experts_per_tok", "expert_used_count");
    Copy("moe_intermediate_size", "expert_feed_forward_length");
    writer_.Float(Key("attention.layer_norm_rms_epsilon"), config_["rms_norm_eps"].get<float>());
    const Json& rope = config_["rope_parameters"];
    const Json& global = rope.contains("full_attention") ? rope["full_attention"] : rope;
    if (type_ != "gemma2") writer_.Float(Key("rope.freq_base"), global["rope_theta"].get<float>());
    if (gemma_) {
      Copy("sliding_window", "attention.sliding_window");
      for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
        if (!config_[cap].is_null()) writer_.Float(Key(cap), config_[cap].get<float>());
    }
    if (type_ == "phi3") {
      Int(Key("attention.sliding_window"), 0);
      Copy("original_max_position_embeddings", "rope.scaling.original_context_length");
    }
    if (!config_.contains("head_dim") || config_["head_dim"].is_null())
      writer_.Int(Key("rope.dimension_count"), config_["hidden_size"].get<uint32_t>() /
                                                   config_["num_attention_heads"].get<uint32_t>());
    for (const char* id : {"bos_token_id", "eos_token_id"})
      if (config_[id].is_number()) Int(absl::StrCat("tokenizer.ggml.", id), config_[id]);
  }

  // Rows of each head: 0, d/2, 1, d/2 + 1, ...
  static std::string Interleaved(const std::string& bytes, size_t rows, size_t heads) {
    const size_t row = bytes.size() / rows, head = rows / heads;
    std::string out;
    for (size_t h = 0; h < heads; ++h)
      for (size_t i = 0; i < head; ++i)
        out += bytes.substr((h * head + (i % 2) * (head / 2) + i / 2) * row, row);
    return out;
  }

  static std::string AsF32(const std::string& bf16, float plus) {
    std::string out;
    for (size_t i = 0; i < bf16.size(); i += 2) {
      uint16_t half;
      std::memcpy(&half, bf16.data() + i, 2);
      const uint32_t bits = uint32_t{half} << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      value += plus;
      out.append(reinterpret_cast<const char*>(&value), 4);
    }
    return out;
  }

  // Blocks of 32 with a small positive scale (and minimum).
  std::string Blocks(const std::string& name, int64_t elements) const {
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)));
    const size_t halves = options_.experts == GgufWriter::kQ8_0 ? 1 : 2;
    const size_t rest = options_.experts == GgufWriter::kQ8_0 ? 32 : 16;
    std::string out;
    for (int64_t b = 0; b < elements / 32; ++b) {
      for (size_t i = 0; i < halves; ++i) {
        const auto half = static_cast<uint16_t>(0x1400 + random() % 0x400);  // 2^-10 to 2^-9
        out.append(reinterpret_cast<const char*>(&half), 2);
      }
      for (size_t i = 0; i < rest; ++i) out += static_cast<char>(random());
    }
    return out;
  }

  void One(const std::string& name, const std::vector<int64_t>& shape, std::string bytes) {
    if (name == "model.embed_tokens.weight")
      return writer_.Tensor("token_embd.weight", GgufWriter::kBF16, shape, bytes);
    if (name == "lm_head.weight")
      return writer_.Tensor("output.weight", GgufWriter::kBF16, shape, bytes);
    if (name == "model.norm.weight")
      return writer_.Tensor("output_norm.weight", GgufWriter::kF32, shape,
                            AsF32(bytes, gemma_ ? 1.0F : 0.0F));
    // model.layers.<i>.<module>.<weight or bias>
    const size_t dot = name.find('.', 13), last = name.rfind('.');
    const std::string block = "blk." + name.substr(13, dot - 13) + ".";
    const std::string module = name.substr(dot + 1, last - dot - 1), kind = name.substr(last);
    if (absl::StrContains(module, ".experts."))
      return Expert(name, block, module.substr(module.find(".experts.") + 9), shape, bytes);
    std::string part = gemma_ ? "post_attention_norm" : "ffn_norm";  // post_attention_layernorm
    for (const auto& [from, to] : kParts)
      if (module == from) part = to;
    if (arch_ == "llama" && (part == "attn_q" || part == "attn_k"))
      bytes =
          Interleaved(bytes, static_cast<size_t>(shape[0]),
                      config_[part == "attn_q" ? "num_attention_heads" : "num_key_value_heads"]);
    const bool norm = absl::EndsWith(part, "_norm");
    const bool f32 = norm || part == "ffn_gate_inp" || shape.size() == 1;
    writer_.Tensor(block + part + kind, f32 ? GgufWriter::kF32 : GgufWriter::kBF16, shape,
                   f32 ? AsF32(bytes, norm && gemma_ ? 1.0F : 0.0F) : bytes);
  }

  // `rest`: "<expert>.<matrix>"
  void Expert(const std::string& name, const std::string& block, const std::string& rest,
              const std::vector<int64_t>& shape, std::string bytes) {
    const std::string expert = rest.substr(0, rest.find('.'));
    std::string part;
    for (const auto& [from, to] : kExpertParts)
      if (rest.substr(expert.size() + 1) == from) part = to;
    if (part.empty()) Die(name);
    if (options_.experts != GgufWriter::kBF16) bytes = Blocks(name, shape[0] * shape[1]);
    if (!options_.merged_experts)
      return writer_.Tensor(absl::StrCat(block, part, ".", expert, ".weight"), options_.experts,
                            shape, bytes);
    Merged& merged = merged_[absl::StrCat(block, part, "_exps.weight")];
    merged.shape = shape;
    merged.parts[std::stoi(expert)] = std::move(bytes);
  }

  struct Merged {
    std::vector<int64_t> shape;
    std::map<int, std::string> parts;  // by expert
  };

  const GoldenGgufOptions options_;
  const std::string path_;
  const Json config_;
  const std::string type_;
  const bool gemma_;
  const std::string arch_;
  GgufWriter writer_;
  std::map<std::string, Merged> merged_;
};

}  // namespace

GgufWriter GoldenGguf(const std::string& folder, const GoldenGgufOptions& options) {
  return Converter(folder, options).Run();
}

}  // namespace soup::testing
