#include "engine/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;
constexpr double kMaxPosition = 1e12;

struct TypeName {
  const char* name;
  RopeType type;
};
constexpr TypeName kTypes[] = {
    {"default", RopeType::kDefault}, {"linear", RopeType::kLinear},
    {"dynamic", RopeType::kDynamic}, {"llama3", RopeType::kLlama3},
    {"yarn", RopeType::kYarn},       {"longrope", RopeType::kLongRope},
};
// What earlier versions of a family wrote for longrope (transformers Phi3Config).
constexpr const char* kLongRopeAliases[] = {"su", "yarn"};

// Every key that some type reads, and one that says nothing.
constexpr const char* kBlockKeys[] = {"rope_type",        "type",
                                      "rope_theta",       "partial_rotary_factor",
                                      "factor",           "low_freq_factor",
                                      "high_freq_factor", "original_max_position_embeddings",
                                      "attention_factor", "beta_fast",
                                      "beta_slow",        "mscale",
                                      "mscale_all_dim",   "truncate",
                                      "short_factor",     "long_factor",
                                      "finetuned"};
constexpr const char* kGlobalBlock = "full_attention";
constexpr const char* kLocalBlock = "sliding_attention";

// Where a parameter set is read from, and what is already known.
struct Source {
  const Family& family;
  const ConfigReader& config;
  const ConfigReader& rope;
  std::string block;  // for messages: "rope_parameters"
  double theta;       // where the block has none
};

absl::Status Refuse(absl::string_view block, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", block, " has ", what));
}

absl::StatusOr<RopeType> ReadType(const Source& s) {
  SOUP_ASSIGN_OR_RETURN(const std::string newer, s.rope.String("rope_type", ""));
  SOUP_ASSIGN_OR_RETURN(const std::string older, s.rope.String("type", ""));
  if (!newer.empty() && !older.empty() && newer != older) {
    return Refuse(s.block,
                  absl::StrCat("rope_type ", newer, " and type ", older, ": they must agree"));
  }
  const std::string name = newer.empty() ? older : newer;
  if (name.empty()) {
    for (const std::string& key : s.rope.Keys()) {
      if (s.rope.Has(key) && key != "rope_theta" && key != "partial_rotary_factor") {
        return Refuse(s.block, absl::StrCat(key, " but no rope_type"));
      }
    }
    return RopeType::kDefault;
  }
  std::string known;
  for (const TypeName& t : kTypes) {
    if (s.family.only_longrope && t.type != RopeType::kDefault && t.type != RopeType::kLongRope)
      continue;
    if (name == t.name) return t.type;
    absl::StrAppend(&known, known.empty() ? "" : ", ", t.name);
  }
  const bool alias = std::find(std::begin(kLongRopeAliases), std::end(kLongRopeAliases), name) !=
                     std::end(kLongRopeAliases);
  if (s.family.only_longrope && alias) return RopeType::kLongRope;
  return Refuse(s.block,
                absl::StrCat("rope_type '", name.substr(0, 100), "', which is not supported for ",
                             s.family.model_type, " models (", known, ")"));
}

absl::Status CheckKeys(const Source& s) {
  for (const std::string& key : s.rope.Keys()) {
    if (std::find(std::begin(kBlockKeys), std::end(kBlockKeys), key) != std::end(kBlockKeys))
      continue;
    if (s.rope.IsOff(key)) continue;
    return Refuse(s.block, absl::StrCat(key.substr(0, 100), " ", s.rope.Shown(key),
                                        ", which no supported rope_type knows"));
  }
  return absl::OkStatus();
}

// The share of a head that turns.
absl::StatusOr<int64_t> ReadRotary(const Family& family, const ConfigReader& object,
                                   absl::string_view block, const ModelSpec& spec) {
  SOUP_ASSIGN_OR_RETURN(const double part, object.Number("partial_rotary_factor", 0.0, 1.0, 1.0));
  const auto rotary = static_cast<int64_t>(part * static_cast<double>(spec.head_dim));
  if (part == 1.0 || (family.partial_rotary && rotary >= 2 && rotary % 2 == 0)) return rotary;
  return absl::InvalidArgumentError(absl::StrCat(
      "config.json: ", block, "partial_rotary_factor ", object.Shown("partial_rotary_factor"),
      family.partial_rotary ? " does not leave an even number of a head's dimensions"
                            : " is not supported (only 1)"));
}

// Phi3 keeps it beside the block, and there it has precedence.
absl::StatusOr<double> ReadOriginal(const Source& s) {
  constexpr char kKey[] = "original_max_position_embeddings";
  if (s.config.Has(kKey)) return s.config.RequiredNumber(kKey, 0.0, kMaxPosition);
  if (!s.rope.Has(kKey) && s.family.original_positions > 0) return s.family.original_positions;
  return s.rope.RequiredNumber(kKey, 0.0, kMaxPosition);
}

double Mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

absl::Status ReadYarn(const Source& s, RopeSpec& out) {
  SOUP_ASSIGN_OR_RETURN(out.beta_fast, s.rope.Number("beta_fast", 0.0, kMaxFactor, 32.0));
  SOUP_ASSIGN_OR_RETURN(out.beta_slow, s.rope.Number("beta_slow", 0.0, kMaxFactor, 1.0));
  SOUP_ASSIGN_OR_RETURN(out.truncate, s.rope.Bool("truncate", true));
  if (s.family.local_rope && !out.truncate) {
    // transformers looks for it beside the layer types' blocks, and so takes true.
    return Refuse(s.block, absl::StrCat("truncate false, which transformers does not read in ",
                                        s.family.model_type, " models: remove it, or set true"));
  }
  SOUP_ASSIGN_OR_RETURN(const double mscale, s.rope.Number("mscale", -kMaxFactor, kMaxFactor, 0.0));
  SOUP_ASSIGN_OR_RETURN(const double all_dim,
                        s.rope.Number("mscale_all_dim", -kMaxFactor, kMaxFactor, 0.0));
  const double computed = mscale != 0 && all_dim != 0
                              ? Mscale(out.factor, mscale) / Mscale(out.factor, all_dim)
                              : Mscale(out.factor, 1.0);
  SOUP_ASSIGN_OR_RETURN(out.attention_factor,
                        s.rope.Number("attention_factor", 0.0, kMaxFactor, computed));
  if (out.beta_fast < out.beta_slow) {
    return Refuse(s.block,
                  absl::StrCat("beta_fast ", out.beta_fast, " below beta_slow ", out.beta_slow));
  }
  return absl::OkStatus();
}

absl::Status ReadLongRope(const Source& s, const ModelSpec& model, int64_t rotary, RopeSpec& out) {
  const double ratio = static_cast<double>(model.max_position) / out.original_max_position;
  SOUP_ASSIGN_OR_RETURN(out.factor, s.rope.Number("factor", 0.0, kMaxFactor, ratio));
  const double computed =
      out.factor <= 1.0
          ? 1.0
          : std::sqrt(1.0 + std::log(out.factor) / std::log(out.original_max_position));
  SOUP_ASSIGN_OR_RETURN(out.attention_factor,
                        s.rope.Number("attention_factor", 0.0, kMaxFactor, computed));
  SOUP_ASSIGN_OR_RETURN(out.short_factor, s.rope.Numbers("short_factor", 1e-6, kMaxFactor));
  SOUP_ASSIGN_OR_RETURN(out.long_factor, s.rope.Numbers("long_factor", 1e-6, kMaxFactor));
  for (const auto& [name, list] :
       {std::pair("short_factor", &out.short_factor), std::pair("long_factor", &out.long_factor)}) {
    if (static_cast<int64_t>(list->size()) == rotary / 2) continue;
    return Refuse(s.block, absl::StrCat(name, " of ", list->size(), " numbers; it needs ",
                                        rotary / 2, ", half of the dimensions that turn"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeSpec> ReadBlock(const Source& s, const ModelSpec& model, int64_t rotary) {
  RopeSpec out;
  SOUP_RETURN_IF_ERROR(CheckKeys(s));
  SOUP_ASSIGN_OR_RETURN(out.theta, s.rope.Number("rope_theta", 0.0, kMaxTheta, s.theta));
  SOUP_ASSIGN_OR_RETURN(out.type, ReadType(s));
  if (out.type == RopeType::kDefault) return out;
  if (out.type != RopeType::kLongRope) {
    SOUP_ASSIGN_OR_RETURN(out.factor, s.rope.RequiredNumber("factor", 0.0, kMaxFactor));
  }
  if (out.type == RopeType::kLinear || out.type == RopeType::kDynamic) return out;
  SOUP_ASSIGN_OR_RETURN(out.original_max_position, ReadOriginal(s));
  if (out.type == RopeType::kYarn) {
    SOUP_RETURN_IF_ERROR(ReadYarn(s, out));
    return out;
  }
  if (out.type == RopeType::kLongRope) {
    SOUP_RETURN_IF_ERROR(ReadLongRope(s, model, rotary, out));
    return out;
  }
  SOUP_ASSIGN_OR_RETURN(out.low_freq_factor,
                        s.rope.RequiredNumber("low_freq_factor", 0.0, kMaxFactor));
  SOUP_ASSIGN_OR_RETURN(out.high_freq_factor,
                        s.rope.RequiredNumber("high_freq_factor", 0.0, kMaxFactor));
  if (out.high_freq_factor <= out.low_freq_factor) {
    return Refuse(s.block, absl::StrCat("high_freq_factor ", out.high_freq_factor,
                                        " not above low_freq_factor ", out.low_freq_factor));
  }
  return out;
}

bool Agree(const RopeSpec& a, const RopeSpec& b) {
  const auto all = [](const RopeSpec& s) {
    return std::tuple(s.type, s.theta, s.factor, s.low_freq_factor, s.high_freq_factor,
                      s.original_max_position, s.beta_fast, s.beta_slow, s.truncate,
                      s.attention_factor, s.short_factor, s.long_factor);
  };
  return all(a) == all(b);
}

// One parameter set for all layers.
absl::Status ReadFlat(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  SOUP_ASSIGN_OR_RETURN(const double theta,
                        config.Number("rope_theta", 0.0, kMaxTheta, family.defaults.theta));
  SOUP_ASSIGN_OR_RETURN(int64_t rotary, ReadRotary(family, config, "", spec));
  std::optional<RopeSpec> found;
  for (const char* block : {"rope_parameters", "rope_scaling"}) {
    SOUP_ASSIGN_OR_RETURN(const std::optional<ConfigReader> rope, config.Object(block));
    if (!rope) continue;
    if (rope->Has("partial_rotary_factor")) {
      SOUP_ASSIGN_OR_RETURN(rotary, ReadRotary(family, *rope, absl::StrCat(block, "."), spec));
    }
    SOUP_ASSIGN_OR_RETURN(const RopeSpec read,
                          ReadBlock({family, config, *rope, block, theta}, spec, rotary));
    if (found && !Agree(*found, read)) {
      return absl::InvalidArgumentError(
          "config.json: rope_parameters and rope_scaling are both there and differ: remove one");
    }
    found = read;
  }
  spec.rope.theta = theta;
  if (found) spec.rope = *std::move(found);
  spec.rotary_dim = rotary;
  if (config.Has("rope_theta") && spec.rope.theta != theta) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: rope_theta is ", config.Shown("rope_theta"), " at the top and ",
                     spec.rope.theta, " inside the rope block: they must agree"));
  }
  return absl::OkStatus();
}

// A set for the global layers and one for the local ones. Older spelling: rope_theta,
// rope_local_base_freq, and rope_scaling for the global layers.
absl::Status ReadByLayerType(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  spec.has_local_rope = true;
  spec.rotary_dim = spec.head_dim;
  SOUP_ASSIGN_OR_RETURN(const double theta,
                        config.Number("rope_theta", 0.0, kMaxTheta, family.defaults.theta));
  SOUP_ASSIGN_OR_RETURN(
      const double local_theta,
      config.Number("rope_local_base_freq", 0.0, kMaxTheta, family.defaults.local_theta));
  spec.rope.theta = theta;
  spec.local_rope.theta = local_theta;
  SOUP_RETURN_IF_ERROR(ReadRotary(family, config, "", spec).status());
  SOUP_ASSIGN_OR_RETURN(const std::optional<ConfigReader> all, config.Object("rope_parameters"));
  SOUP_ASSIGN_OR_RETURN(const std::optional<ConfigReader> scaling, config.Object("rope_scaling"));
  if (all && scaling) {
    return absl::InvalidArgumentError(
        "config.json: rope_parameters and rope_scaling are both there: remove one");
  }
  if (scaling) {
    SOUP_ASSIGN_OR_RETURN(spec.rope, ReadBlock({family, config, *scaling, "rope_scaling", theta},
                                               spec, spec.head_dim));
  }
  if (!all) return absl::OkStatus();
  for (const std::string& key : all->Keys()) {
    if (key == kGlobalBlock || key == kLocalBlock || all->IsOff(key)) continue;
    return Refuse("rope_parameters",
                  absl::StrCat(key.substr(0, 100), "; a ", family.model_type,
                               " model has full_attention and sliding_attention there"));
  }
  for (const bool local : {false, true}) {
    const char* name = local ? kLocalBlock : kGlobalBlock;
    SOUP_ASSIGN_OR_RETURN(const std::optional<ConfigReader> rope, all->Object(name));
    if (!rope) continue;
    const std::string block = absl::StrCat("rope_parameters.", name);
    SOUP_RETURN_IF_ERROR(ReadRotary(family, *rope, absl::StrCat(block, "."), spec).status());
    SOUP_ASSIGN_OR_RETURN(
        RopeSpec read, ReadBlock({family, config, *rope, block, local ? local_theta : theta}, spec,
                                 spec.head_dim));
    (local ? spec.local_rope : spec.rope) = std::move(read);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRope(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  return family.local_rope ? ReadByLayerType(family, config, spec) : ReadFlat(family, config, spec);
}

}  // namespace soup::engine
