#include "engine/model/rope_config.h"

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
constexpr double kDefaultTheta = 10000.0;

absl::StatusOr<RopeType> ReadType(const ConfigReader& rope, absl::string_view block) {
  SOUP_ASSIGN_OR_RETURN(const std::string newer, rope.String("rope_type", ""));
  SOUP_ASSIGN_OR_RETURN(const std::string older, rope.String("type", ""));
  if (!newer.empty() && !older.empty() && newer != older) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", block, " has rope_type ", newer,
                                                   " and type ", older, ": they must agree"));
  }
  const std::string name = newer.empty() ? older : newer;
  if (name.empty()) {
    for (const std::string& key : rope.Keys()) {
      if (rope.Has(key) && key != "rope_theta" && key != "partial_rotary_factor") {
        return absl::InvalidArgumentError(
            absl::StrCat("config.json: ", block, " has ", key, " but no rope_type"));
      }
    }
    return RopeType::kDefault;
  }
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: ", block, " has rope_type '", name.substr(0, 100),
                   "', which is not supported (default, linear, llama3)"));
}

absl::Status CheckWholeRotary(const ConfigReader& object, absl::string_view block) {
  SOUP_ASSIGN_OR_RETURN(const double part, object.Number("partial_rotary_factor", 0.0, 1.0, 1.0));
  if (part == 1.0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", block, "partial_rotary_factor ",
                                                 object.Shown("partial_rotary_factor"),
                                                 " is not supported (only 1)"));
}

absl::StatusOr<RopeSpec> ReadBlock(const ConfigReader& rope, absl::string_view block,
                                   double theta) {
  RopeSpec spec;
  SOUP_RETURN_IF_ERROR(CheckWholeRotary(rope, absl::StrCat(block, ".")));
  SOUP_ASSIGN_OR_RETURN(spec.theta, rope.Number("rope_theta", 0.0, kMaxTheta, theta));
  SOUP_ASSIGN_OR_RETURN(spec.type, ReadType(rope, block));
  if (spec.type == RopeType::kDefault) return spec;
  SOUP_ASSIGN_OR_RETURN(spec.factor, rope.RequiredNumber("factor", 0.0, kMaxFactor));
  if (spec.type == RopeType::kLinear) return spec;
  SOUP_ASSIGN_OR_RETURN(spec.low_freq_factor,
                        rope.RequiredNumber("low_freq_factor", 0.0, kMaxFactor));
  SOUP_ASSIGN_OR_RETURN(spec.high_freq_factor,
                        rope.RequiredNumber("high_freq_factor", 0.0, kMaxFactor));
  SOUP_ASSIGN_OR_RETURN(spec.original_max_position,
                        rope.RequiredNumber("original_max_position_embeddings", 0.0, kMaxPosition));
  if (spec.high_freq_factor <= spec.low_freq_factor) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: ", block, " has high_freq_factor ", spec.high_freq_factor,
                     " not above low_freq_factor ", spec.low_freq_factor));
  }
  return spec;
}

bool Agree(const RopeSpec& a, const RopeSpec& b) {
  const auto all = [](const RopeSpec& s) {
    return std::tuple(s.type, s.theta, s.factor, s.low_freq_factor, s.high_freq_factor,
                      s.original_max_position);
  };
  return all(a) == all(b);
}

}  // namespace

absl::StatusOr<RopeSpec> ReadRope(const ConfigReader& config) {
  SOUP_RETURN_IF_ERROR(CheckWholeRotary(config, ""));
  SOUP_ASSIGN_OR_RETURN(const double theta,
                        config.Number("rope_theta", 0.0, kMaxTheta, kDefaultTheta));
  std::optional<RopeSpec> found;
  for (const char* block : {"rope_parameters", "rope_scaling"}) {
    SOUP_ASSIGN_OR_RETURN(const std::optional<ConfigReader> rope, config.Object(block));
    if (!rope) continue;
    SOUP_ASSIGN_OR_RETURN(const RopeSpec spec, ReadBlock(*rope, block, theta));
    if (found && !Agree(*found, spec)) {
      return absl::InvalidArgumentError(
          "config.json: rope_parameters and rope_scaling are both there and differ: remove one");
    }
    found = spec;
  }
  RopeSpec plain;
  plain.theta = theta;
  const RopeSpec spec = found.value_or(plain);
  if (config.Has("rope_theta") && spec.theta != theta) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: rope_theta is ", config.Shown("rope_theta"), " at the top and ",
                     spec.theta, " inside the rope block: they must agree"));
  }
  return spec;
}

}  // namespace soup::engine
