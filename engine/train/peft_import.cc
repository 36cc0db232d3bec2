#include "engine/train/peft_import.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/lfs_pointer.h"
#include "engine/base/status_macros.h"
#include "engine/io/safetensors_reader.h"

namespace soup::engine {
namespace {

using Json = nlohmann::json;

constexpr double kSameScale = 1e-6;  // relative

// Compared below, or of no account for what the tensors mean: which linears they belong to, the
// tensors' own names say.
constexpr absl::string_view kKnown[] = {
    "peft_type",      "task_type",      "r",
    "lora_alpha",     "use_rslora",     "bias",
    "lora_dropout",   "target_modules", "init_lora_weights",
    "auto_mapping",   "revision",       "base_model_name_or_path",
    "peft_version",   "inference_mode", "qalora_group_size",
    "megatron_core",  "runtime_config", "ensure_weight_tying",
    "layers_pattern", "exclude_modules"};
// How A and B began, where the base stayed as it was. Others (PiSSA, OLoRA, LoftQ, CorDA) change
// the base's weights too.
constexpr absl::string_view kPlainStarts[] = {"gaussian", "eva", "orthogonal"};

template <size_t N>
bool Holds(const absl::string_view (&list)[N], absl::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 80) + "..." : text;
}

bool IsOff(const Json& v) {
  return v.is_null() || v == false || v == 0 || v == "" || v == "none" ||
         (v.is_structured() && v.empty());
}

absl::Status Refuse(absl::string_view key, const Json& value, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(key, " is ", Shown(value), ": ", what));
}

// The value, or null.
const Json& Member(const Json& config, const char* key) {
  static const Json kNull;
  const auto it = config.find(key);
  return it == config.end() ? kNull : *it;
}

absl::Status CheckKinds(const Json& config) {
  const Json& type = Member(config, "peft_type");
  if (type != "LORA") return Refuse("peft_type", type, "only LORA adapters can be gone on from");
  const Json& task = Member(config, "task_type");
  if (!task.is_null() && task != "CAUSAL_LM")
    return Refuse("task_type", task, "the adapter must be a causal language model's (CAUSAL_LM)");
  const Json& start = Member(config, "init_lora_weights");
  if (!start.is_null() && !start.is_boolean() &&
      !(start.is_string() && Holds(kPlainStarts, start.get<std::string>()))) {
    return Refuse("init_lora_weights", start,
                  "such a start changes the base's weights too, so the adapter does not belong to "
                  "the base as it is; convert it with peft first");
  }
  for (const auto& [key, value] : config.items()) {
    if (key == "bias" ? IsOff(value) : (Holds(kKnown, key) || IsOff(value))) continue;
    return Refuse(absl::string_view(key).substr(0, 60), value,
                  "it changes what the adapter computes, or is not known here; only plain LoRA can "
                  "be gone on from");
  }
  return absl::OkStatus();
}

absl::Status CheckScale(const Json& config, const LoraScale& job) {
  const Json& r = Member(config, "r");
  if (!r.is_number_integer() || r.get<int64_t>() < 1)
    return Refuse("r", r, "it must be a whole number above 0");
  if (r.get<int64_t>() != job.r)
    return Refuse("r", r, absl::StrCat("the job's lora.r is ", job.r, "; they must agree"));
  const Json& alpha = Member(config, "lora_alpha");
  if (!alpha.is_number() || !(alpha.get<double>() > 0))
    return Refuse("lora_alpha", alpha, "it must be a number above 0");
  const Json& rslora = Member(config, "use_rslora");
  if (!rslora.is_null() && !rslora.is_boolean())
    return Refuse("use_rslora", rslora, "it must be true or false");
  const LoraScale its = {job.r, alpha.get<double>(), rslora == true};
  if (std::abs(its.value() - job.value()) <= kSameScale * job.value()) return absl::OkStatus();
  const char* its_rslora = its.rslora ? "true" : "false";
  return absl::InvalidArgumentError(absl::StrCat(
      "the adapter was trained with lora_alpha ", its.alpha, " and use_rslora ", its_rslora,
      ", which scales it by ", its.value(), "; the job's lora.alpha ", job.alpha,
      " and lora.rslora ", job.rslora ? "true" : "false", " scale by ", job.value(),
      ", so that it would begin as another adapter: set lora.alpha: ", its.alpha,
      ", lora.rslora: ", its_rslora));
}

absl::Status CheckConfigFile(FileSystem& fs, const std::string& path, const LoraScale& job) {
  if (path.empty()) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(const std::string config, fs.ReadFile(path));
  const absl::Status same = CheckPeftConfig(config, job);
  return same.ok() ? same
                   : absl::Status(same.code(), absl::StrCat("lora.init_from: adapter_config.json: ",
                                                            same.message()));
}

absl::Status AsUsersKnowIt(const absl::Status& status, const InitAdapterFiles& files) {
  if (files.config_path.empty()) return status;
  return absl::Status(
      status.code(),
      absl::StrReplaceAll(status.message(),
                          {{files.weights_path, "lora.init_from: adapter_model.safetensors"}}));
}

}  // namespace

double LoraScale::value() const {
  const auto rank = static_cast<double>(r);
  return alpha / (rslora ? std::sqrt(rank) : rank);
}

absl::Status CheckPeftConfig(absl::string_view adapter_config_json, const LoraScale& job) {
  const Json config = Json::parse(adapter_config_json.begin(), adapter_config_json.end(), nullptr,
                                  /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a JSON object", LfsPointerHint(adapter_config_json)));
  }
  SOUP_RETURN_IF_ERROR(CheckKinds(config));
  return CheckScale(config, job);
}

absl::StatusOr<std::vector<float>> LoadInitAdapter(FileSystem& fs, const InitAdapterFiles& files,
                                                   const LoraScale& job,
                                                   const AdapterLayout& layout) {
  SOUP_RETURN_IF_ERROR(CheckConfigFile(fs, files.config_path, job));
  const auto file = SafetensorsFile::Open(files.weights_path);
  if (!file.ok()) return AsUsersKnowIt(file.status(), files);
  absl::StatusOr<std::vector<float>> weights = LoadAdapterWeights(layout, **file);
  if (!weights.ok()) return AsUsersKnowIt(weights.status(), files);
  return weights;
}

absl::Status CheckInitAdapter(FileSystem& fs, const InitAdapterFiles& files, const LoraScale& job,
                              const AdapterLayout& layout) {
  SOUP_RETURN_IF_ERROR(CheckConfigFile(fs, files.config_path, job));
  const auto file = SafetensorsFile::Open(files.weights_path);
  return AsUsersKnowIt(file.ok() ? CheckAdapterWeights(layout, **file) : file.status(), files);
}

}  // namespace soup::engine
