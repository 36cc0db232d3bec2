#include "engine/io/gguf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/io/gguf_rope.h"

namespace soup::engine {
namespace {

constexpr int64_t kMaxExperts = 4096;
// Layers times experts: each has names of its own. (The largest models have some 25,000.)
constexpr int64_t kMaxExpertsInAll = int64_t{1} << 18;

// Keys of every architecture that are read, or that change no result.
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
                                            "rope.freq_base_swa",
                                            "rope.dimension_count",
                                            "rope.scaling.type",
                                            "rope.scaling.factor",
                                            "rope.scaling.original_context_length",
                                            "rope.scaling.finetuned",
                                            "rope.scaling.yarn_beta_fast",
                                            "rope.scaling.yarn_beta_slow",
                                            "vocab_size",
                                            "tensor_data_layout"};

// Keys that must be absent or have this effect-free value, where the architecture doesn't know
// them.
constexpr struct {
  absl::string_view key;
  const char* what;
} kOffKeys[] = {{"expert_count", "experts"},
                {"expert_used_count", "experts"},
                {"expert_shared_count", "experts that all tokens take"},
                {"expert_shared_feed_forward_length", "experts that all tokens take"},
                {"attention.sliding_window", "a sliding window"}};

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
    // Whatever is listed by layer is listed for as many as the file could hold tensors of.
    if (out.layers > static_cast<int64_t>(file_.tensors().size()))
      return file_.Error(absl::StrCat("the metadata tells of ", out.layers,
                                      " layers, but there are ", file_.tensors().size(),
                                      " tensors"));
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
    const GgufTensor* embedding = file_.Find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
      return file_.Error("there is no matrix token_embd.weight");
    nlohmann::ordered_json config = {
        {"architectures", {arch_.architecture}},
        {"model_type", arch_.model_type},
        {arch_.activation_key, arch_.activation},
        {"hidden_size", hidden},
        {"intermediate_size", intermediate},
        {"num_hidden_layers", out.layers},
        {"num_attention_heads", out.heads},
        {"num_key_value_heads", out.kv_heads},
        {"head_dim", head_dim},
        {"vocab_size", embedding->shape[0]},
        {"max_position_embeddings", positions},
        {"rms_norm_eps", DecimalOf(epsilon)},
        {"tie_word_embeddings", file_.Find("output.weight") == nullptr},
        {"torch_dtype", "bfloat16"}};
    for (const char* name : {"bos_token_id", "eos_token_id"}) {
      const std::string key = absl::StrCat("tokenizer.ggml.", name);
      if (!file_.Has(key)) continue;
      SOUP_ASSIGN_OR_RETURN(config[name], file_.Int(key));
    }
    SOUP_RETURN_IF_ERROR(AddGgufRope(file_, arch_, head_dim, positions, config));
    SOUP_RETURN_IF_ERROR(AddWindows(out.layers, config));
    SOUP_RETURN_IF_ERROR(AddScores(out, hidden, head_dim, config));
    SOUP_RETURN_IF_ERROR(AddExperts(out, config));
    out.config_json = config.dump(1) + "\n";
    return out;
  }

 private:
  std::string Key(absl::string_view name) const { return absl::StrCat(prefix_, name); }

  absl::Status CheckKeys() const {
    for (const std::string& key : file_.Keys()) {
      if (!absl::StartsWith(key, prefix_)) continue;
      const absl::string_view name = absl::string_view(key).substr(prefix_.size());
      const auto is = [name](absl::string_view known) { return known == name; };
      if (std::any_of(std::begin(kKnownKeys), std::end(kKnownKeys), is)) continue;
      if (std::any_of(arch_.keys.begin(), arch_.keys.end(), is)) continue;
      const auto* off = std::find_if(std::begin(kOffKeys), std::end(kOffKeys),
                                     [name](const auto& k) { return k.key == name; });
      if (off != std::end(kOffKeys)) {
        const auto value = file_.Int(key);
        if (value.ok() && *value == 0) continue;
        return file_.Error(absl::StrCat(key, " (", off->what, ") is not supported"));
      }
      return file_.Error(absl::StrCat("the metadata has ", key.substr(0, 100),
                                      ", which is not supported for this architecture; use the "
                                      "model's Hugging Face folder"));
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
    const bool rotary_tells = !arch_.partial_rotary && file_.Has(Key("rope.dimension_count"));
    int64_t out = hidden / heads;
    if (file_.Has(Key("attention.key_length"))) {
      SOUP_ASSIGN_OR_RETURN(out, Count("attention.key_length"));
    } else if (rotary_tells) {
      SOUP_ASSIGN_OR_RETURN(out, Count("rope.dimension_count"));
    }
    for (const char* same : {"attention.value_length", "rope.dimension_count"}) {
      if (!file_.Has(Key(same)) || (arch_.partial_rotary && same[0] == 'r')) continue;
      SOUP_ASSIGN_OR_RETURN(const int64_t value, Count(same));
      if (value != out) {
        return file_.Error(absl::StrCat(Key(same), " is ", value, ", but a head has ", out,
                                        ": that is not supported"));
      }
    }
    if (out < 2 || out % 2 != 0)
      return file_.Error(absl::StrCat("a head of ", out, " is no even number"));
    return out;
  }

  absl::Status AddWindows(int64_t layers, nlohmann::ordered_json& config) const {
    if (arch_.windows == GgufWindows::kNone) return absl::OkStatus();
    const std::string key = Key("attention.sliding_window");
    if (arch_.windows == GgufWindows::kEveryLayer && !file_.Has(key)) {
      return file_.Error(absl::StrCat(
          "the metadata lacks ", key,
          ", as early conversions do, and models of this family differ in it; convert the model "
          "again, or use its Hugging Face folder"));
    }
    SOUP_ASSIGN_OR_RETURN(const int64_t window, file_.IntOr(key, arch_.window));
    if (window < 0) return file_.Error(absl::StrCat(key, " is ", window));
    config["sliding_window"] = nullptr;
    if (window > 0) config["sliding_window"] = window;
    if (arch_.windows == GgufWindows::kEveryLayer) return absl::OkStatus();
    SOUP_ASSIGN_OR_RETURN(const std::vector<bool> sliding, Sliding(layers, window));
    auto types = nlohmann::ordered_json::array();
    for (const bool slides : sliding)
      types.push_back(slides ? "sliding_attention" : "full_attention");
    config["layer_types"] = std::move(types);
    return absl::OkStatus();
  }

  // The pattern's key is a period, or an entry a layer.
  absl::StatusOr<std::vector<bool>> Sliding(int64_t layers, int64_t window) const {
    const std::string key = Key("attention.sliding_window_pattern");
    std::vector<bool> out(static_cast<size_t>(layers), false);
    if (window == 0) return out;
    if (const auto* listed = file_.List<int64_t>(key)) {
      if (static_cast<int64_t>(listed->size()) < layers)
        return file_.Error(
            absl::StrCat(key, " has ", listed->size(), " entries for ", layers, " layers"));
      for (size_t l = 0; l < out.size(); ++l) out[l] = (*listed)[l] != 0;
      return out;
    }
    SOUP_ASSIGN_OR_RETURN(const int64_t period, file_.IntOr(key, arch_.pattern));
    if (period < 1) return file_.Error(absl::StrCat(key, " is ", period));
    for (size_t l = 0; l < out.size(); ++l) out[l] = (static_cast<int64_t>(l) + 1) % period != 0;
    return out;
  }

  absl::Status AddScores(const GgufShape& shape, int64_t hidden, int64_t head_dim,
                         nlohmann::ordered_json& config) const {
    if (!arch_.query_scalar) return absl::OkStatus();
    config["query_pre_attn_scalar"] =
        shape.layers == arch_.wide_layers ? hidden / shape.heads : head_dim;
    // Both files call them alike.
    for (const auto& [name, otherwise] : {std::pair("attn_logit_softcapping", arch_.attention_cap),
                                          std::pair("final_logit_softcapping", arch_.final_cap)}) {
      SOUP_ASSIGN_OR_RETURN(const double cap, file_.RealOr(Key(name), otherwise));
      config[name] = nullptr;
      if (cap != 0) config[name] = DecimalOf(cap);
    }
    return absl::OkStatus();
  }

  absl::Status AddExperts(GgufShape& shape, nlohmann::ordered_json& config) const {
    if (arch_.expert_count == nullptr) return absl::OkStatus();
    SOUP_ASSIGN_OR_RETURN(shape.experts, Count("expert_count"));
    SOUP_ASSIGN_OR_RETURN(const int64_t used, Count("expert_used_count"));
    if (shape.experts > kMaxExperts || used > shape.experts)
      return file_.Error(absl::StrCat(Key("expert_used_count"), " is ", used, " of ", shape.experts,
                                      " experts (at most ", kMaxExperts, ")"));
    if (shape.layers * shape.experts > kMaxExpertsInAll)
      return file_.Error(absl::StrCat(shape.layers, " layers of ", shape.experts,
                                      " experts are over the limit of ", kMaxExpertsInAll));
    SOUP_ASSIGN_OR_RETURN(const int64_t width, Count(arch_.expert_width));
    config[arch_.expert_count] = shape.experts;
    config["num_experts_per_tok"] = used;
    config[arch_.expert_intermediate] = width;
    // llama.cpp divides the chosen experts' probabilities by their sum in every architecture here.
    if (arch_.normalise_key) config["norm_topk_prob"] = true;
    return absl::OkStatus();
  }

  const GgufFile& file_;
  const GgufArchitecture& arch_;
  const std::string prefix_;
};

}  // namespace

absl::StatusOr<GgufShape> ReadGgufConfig(const GgufFile& file) {
  SOUP_ASSIGN_OR_RETURN(const std::string name, file.Text("general.architecture"));
  SOUP_ASSIGN_OR_RETURN(const int64_t files, file.IntOr("split.count", 1));
  if (files > 1)
    return file.Error(absl::StrCat("it is one of ", files,
                                   " files that the model was split into (split.count), which is "
                                   "not supported; merge them (llama-gguf-split --merge)"));
  SOUP_ASSIGN_OR_RETURN(const int64_t experts, file.IntOr(absl::StrCat(name, ".expert_count"), 0));
  // Experts where the architecture knows none are refused by their key.
  const GgufArchitecture* arch = FindGgufArchitecture(name, experts != 0);
  if (arch == nullptr) arch = FindGgufArchitecture(name, experts == 0);
  if (arch != nullptr) return ConfigWriter(file, *arch).Run();
  return file.Error(absl::StrCat("architecture '", name.substr(0, 100),
                                 "' is not supported (known: ", SupportedGgufArchitectures(),
                                 "); use the model's Hugging Face folder"));
}

}  // namespace soup::engine
