#include "engine/model/family.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr OffSwitch kLlamaOff[] = {
    {"attention_bias", "biases on q, k, v and o"},
    {"mlp_bias", "biases on gate, up and down"},
    {"attention_dropout", "dropout of attention probabilities"},
    {"rope_interleaved", "rotary pairs that lie beside each other"},
};

constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", "silu", kLlamaOff},
};

}  // namespace

absl::Span<const Family> Families() { return kFamilies; }

absl::StatusOr<const Family*> FindFamily(absl::string_view model_type) {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
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
  SOUP_ASSIGN_OR_RETURN(const std::string activation,
                        config.String("hidden_act", family.activation));
  if (activation != family.activation) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: hidden_act ", config.Shown("hidden_act"), " is not supported; ",
                     family.model_type, " models must have ", family.activation));
  }
  for (const OffSwitch& off : family.off) {
    if (config.IsOff(off.key)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: ", off.key, " ", config.Shown(off.key), " (", off.what,
                     ") is not supported for ", family.model_type, " models"));
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
