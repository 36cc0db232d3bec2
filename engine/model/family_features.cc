// What a family adds to a decoder's sizes, read key by key; the table is family.cc.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/family.h"

namespace soup::engine {
namespace {

constexpr int64_t kMaxWindow = int64_t{1} << 40;
constexpr double kMaxCap = 1e6;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxInner = int64_t{1} << 20;
constexpr char kSliding[] = "sliding_attention";
constexpr char kFull[] = "full_attention";

struct ActivationName {
  const char* name;
  Activation activation;
};
// gelu_new and gelu_pytorch_tanh are one formula.
constexpr ActivationName kActivations[] = {{"silu", Activation::kSilu},
                                           {"swish", Activation::kSilu},
                                           {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                           {"gelu_new", Activation::kGeluTanh}};

absl::Status ReadActivation(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  SOUP_ASSIGN_OR_RETURN(const std::string name,
                        config.String(family.activation_key, family.activation));
  std::string known;
  for (const ActivationName& a : kActivations) {
    if (name == a.name) {
      spec.activation = a.activation;
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", a.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", family.activation_key, " ",
                                                 config.Shown(family.activation_key),
                                                 " is not supported (", known, ")"));
}

absl::Status ReadBiases(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  if (family.biases == BiasRule::kNone) return absl::OkStatus();
  if (family.biases == BiasRule::kQkv) {
    spec.qkv_bias = true;
    return absl::OkStatus();
  }
  SOUP_ASSIGN_OR_RETURN(spec.qkv_bias, config.Bool("attention_bias", false));
  spec.o_bias = spec.qkv_bias;
  if (family.biases != BiasRule::kByBoth) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(spec.mlp_bias, config.Bool("mlp_bias", false));
  return absl::OkStatus();
}

absl::Status ReadScores(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  const FamilyDefaults& d = family.defaults;
  if (family.query_scalar) {
    SOUP_ASSIGN_OR_RETURN(spec.query_scalar,
                          config.Number("query_pre_attn_scalar", 0.0,
                                        static_cast<double>(kMaxInner), d.query_scalar));
  }
  const auto cap = [&](const char* key, double otherwise, double& out) -> absl::Status {
    // null says none, silence says the default
    SOUP_ASSIGN_OR_RETURN(out,
                          config.Number(key, 0.0, kMaxCap, config.IsNull(key) ? 0.0 : otherwise));
    return absl::OkStatus();
  };
  if (family.attention_cap) {
    SOUP_RETURN_IF_ERROR(
        cap("attn_logit_softcapping", d.attention_soft_cap, spec.attention_soft_cap));
  }
  if (!family.final_cap) return absl::OkStatus();
  return cap("final_logit_softcapping", d.final_soft_cap, spec.final_soft_cap);
}

// layer_types: true where the layer is a sliding one. Empty when the key is absent.
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const ConfigReader& config, int64_t layers) {
  SOUP_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  std::vector<bool> sliding;
  for (const std::string& type : types) {
    if (type != kSliding && type != kFull) {
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: layer_types has '", type.substr(0, 100),
                       "', which is not supported (", kFull, ", ", kSliding, ")"));
    }
    sliding.push_back(type == kSliding);
  }
  if (!sliding.empty() && static_cast<int64_t>(sliding.size()) < layers) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: layer_types has ", sliding.size(),
                                                   " entries for ", layers, " layers"));
  }
  return sliding;
}

absl::Status NeedsWindow(int64_t window) {
  if (window > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "config.json: layer_types has sliding_attention, but there is no sliding_window");
}

// Whether layer l is a sliding one where layer_types does not say so.
bool SlidesByPattern(int64_t layer, int64_t pattern) { return (layer + 1) % pattern != 0; }

absl::Status ReadWindows(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  if (family.windows == WindowRule::kNone) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(int64_t window,
                        config.Int("sliding_window", 1, kMaxWindow,
                                   config.IsNull("sliding_window") ? 0 : family.defaults.window));
  if (family.windows == WindowRule::kOptional || family.windows == WindowRule::kOptionalAll) {
    SOUP_ASSIGN_OR_RETURN(const bool used, config.Bool("use_sliding_window", false));
    if (!used) window = 0;
  }
  SOUP_ASSIGN_OR_RETURN(const std::vector<bool> listed, ReadLayerTypes(config, spec.layers));
  SOUP_ASSIGN_OR_RETURN(const int64_t first_sliding,
                        config.Int("max_window_layers", 0, kMaxWindow, 28));
  // Written by transformers with an underscore.
  SOUP_ASSIGN_OR_RETURN(const int64_t underscored, config.Int("_sliding_window_pattern", 1,
                                                              kMaxWindow, family.defaults.pattern));
  SOUP_ASSIGN_OR_RETURN(const int64_t pattern,
                        config.Int("sliding_window_pattern", 1, kMaxWindow, underscored));
  spec.kinds.resize(static_cast<size_t>(spec.layers));
  for (int64_t l = 0; l < spec.layers; ++l) {
    LayerKind& kind = spec.kinds[static_cast<size_t>(l)];
    bool sliding = window > 0;
    if (family.windows == WindowRule::kAll && window > 0 && !listed.empty() && !listed[l]) {
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: layer_types asks for full attention in layer ", l, ", but in ",
                       family.model_type, " models sliding_window ", window,
                       " holds in every layer: set it to null, or remove layer_types"));
    }
    if (family.windows == WindowRule::kOptional) {
      sliding = listed.empty() ? window > 0 && l >= first_sliding : listed[l];
    }
    if (family.windows == WindowRule::kByLayerType) {
      sliding = listed.empty() ? SlidesByPattern(l, pattern) : listed[l];
      kind.local_rope = sliding && family.local_rope;
    }
    if (!sliding) continue;
    SOUP_RETURN_IF_ERROR(NeedsWindow(window));
    kind.window = window;
  }
  return absl::OkStatus();
}

absl::Status ReadSparseLayers(const ConfigReader& config, ModelSpec& spec) {
  SOUP_ASSIGN_OR_RETURN(const int64_t step, config.Int("decoder_sparse_step", 1, kMaxExperts, 1));
  SOUP_ASSIGN_OR_RETURN(const std::vector<double> dense,
                        config.Numbers("mlp_only_layers", 0, 4096));
  for (int64_t l = 0; l < spec.layers; ++l) {
    bool sparse = (l + 1) % step == 0;
    for (const double d : dense) sparse &= d != static_cast<double>(l);
    spec.kinds[static_cast<size_t>(l)].sparse = sparse;
  }
  return absl::OkStatus();
}

absl::Status ReadExperts(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  const ExpertKeys& keys = family.experts;
  if (keys.count == nullptr) return absl::OkStatus();
  ExpertSpec& e = spec.experts;
  e = keys.names;
  const char* count_key = config.Has(keys.count) ? keys.count : keys.count_alias;
  SOUP_ASSIGN_OR_RETURN(e.count, config.RequiredInt(count_key, 1, kMaxExperts));
  if (config.Has(keys.count) && config.Has(keys.count_alias)) {
    SOUP_ASSIGN_OR_RETURN(const int64_t other,
                          config.RequiredInt(keys.count_alias, 1, kMaxExperts));
    if (other != e.count) {
      return absl::InvalidArgumentError(absl::StrCat("config.json: ", keys.count, " is ", e.count,
                                                     " and ", keys.count_alias, " is ", other,
                                                     ": they must agree"));
    }
  }
  SOUP_ASSIGN_OR_RETURN(e.per_token,
                        config.Int("num_experts_per_tok", 1, e.count, family.defaults.per_token));
  if (e.per_token > e.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: num_experts_per_tok is absent, and its default ", e.per_token,
                     " is more than the ", e.count, " experts"));
  }
  SOUP_ASSIGN_OR_RETURN(e.intermediate, config.RequiredInt(keys.intermediate, 1, kMaxInner));
  if (keys.normalise_key) {
    SOUP_ASSIGN_OR_RETURN(e.normalise, config.Bool("norm_topk_prob", false));
  }
  spec.kinds.resize(static_cast<size_t>(spec.layers));
  for (LayerKind& kind : spec.kinds) kind.sparse = true;
  return keys.dense_layers ? ReadSparseLayers(config, spec) : absl::OkStatus();
}

}  // namespace

absl::Status ReadFeatures(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  spec.qk_norm = family.qk_norm;
  spec.post_norms = family.post_norms;
  spec.fused_projections = family.fused_projections;
  spec.norm_offset = family.norm_plus_one ? 1.0 : 0.0;
  if (family.scaled_embedding) {
    // transformers holds it as a float32
    spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden));
  }
  SOUP_RETURN_IF_ERROR(ReadActivation(family, config, spec));
  SOUP_RETURN_IF_ERROR(ReadBiases(family, config, spec));
  SOUP_RETURN_IF_ERROR(ReadScores(family, config, spec));
  SOUP_RETURN_IF_ERROR(ReadWindows(family, config, spec));
  return ReadExperts(family, config, spec);
}

}  // namespace soup::engine
