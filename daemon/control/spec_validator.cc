#include "daemon/control/spec_validator.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/text.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;

absl::Status Refuse(absl::string_view field, absl::string_view value, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ": ", remedy));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value), absl::StrCat("give ", low, " to ", high));
}

// low <= value < high, or <= high when `closed`; NaN is outside.
absl::Status CheckReal(absl::string_view field, double value, double low, double high,
                       bool closed) {
  if (value >= low && (value < high || (closed && value == high))) return absl::OkStatus();
  return Refuse(
      field, absl::StrCat(value),
      absl::StrCat("give at least ", low, closed ? " and at most " : " and below ", high));
}

absl::Status CheckPositive(absl::string_view field, double value, double high) {
  if (value > 0 && value <= high) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value), absl::StrCat("give more than 0 and at most ", high));
}

absl::Status CheckWord(absl::string_view field, const std::string& value,
                       const std::vector<absl::string_view>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  return Refuse(field, Quoted(value),
                absl::StrCat("this soupd knows ", absl::StrJoin(known, ", ")));
}

absl::Status CheckText(absl::string_view field, const std::string& value, size_t max_bytes) {
  if (value.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, " ", Quoted(value), " has ", value.size(),
                                                   " bytes: at most ", max_bytes, " are taken"));
  }
  if (HasControlCharacters(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " ", Quoted(value),
                     " has control characters (a line break?): remove "
                     "them"));
  }
  return absl::OkStatus();
}

absl::Status CheckFile(absl::string_view field, const soup::v1::FileRef& file) {
  if (!IsSha256Hex(file.sha256())) {
    return Refuse(absl::StrCat(field, ".sha256"), Quoted(file.sha256()),
                  "give the 64 lower-case hex digits of an uploaded file");
  }
  if (file.size_bytes() < 0) {
    return Refuse(absl::StrCat(field, ".size_bytes"), absl::StrCat(file.size_bytes()),
                  "give the file's size");
  }
  return CheckText(absl::StrCat(field, ".name"), file.name(), kMaxPathBytes);
}

// Formats of records (engine/data/record_format.h) and kinds of files (record_reader.h). soupd does
// not read data, so the words stand here once more.
absl::Status CheckFormat(absl::string_view field, const std::string& format) {
  return CheckWord(field, format,
                   {"auto", "text", "prompt_completion", "messages", "alpaca", "sharegpt",
                    "input_ids", "jsonl", "json", "csv", "tsv"});
}

absl::Status CheckSources(const soup::v1::DataSpec& data) {
  constexpr int kMaxSources = 256;
  constexpr double kMaxWeight = 100;
  if (data.has_train()) {
    if (data.sources_size() > 0) {
      return absl::InvalidArgumentError(
          "data.train is there as one file and as a list of sources: give one of the two");
    }
    return CheckFile("data.train", data.train());
  }
  if (data.sources_size() == 0)
    return absl::InvalidArgumentError("data.train is missing: give a file of training records");
  if (data.sources_size() > kMaxSources) {
    return Refuse("data.train", absl::StrCat("a list of ", data.sources_size(), " files"),
                  absl::StrCat("give at most ", kMaxSources));
  }
  double most = 0;
  for (int i = 0; i < data.sources_size(); ++i) {
    const soup::v1::DataSource& source = data.sources(i);
    const std::string field = absl::StrCat("data.train[", i, "]");
    SOUP_RETURN_IF_ERROR(CheckFile(field, source.file()));
    SOUP_RETURN_IF_ERROR(
        CheckReal(absl::StrCat(field, ".weight"), source.weight(), 0, kMaxWeight, true));
    if (!source.format().empty())
      SOUP_RETURN_IF_ERROR(CheckFormat(absl::StrCat(field, ".format"), source.format()));
    most = std::max(most, source.weight());
  }
  if (most > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "data.train: every weight is 0, so there is nothing to train on: give one a weight above 0");
}

absl::Status CheckData(const soup::v1::DataSpec& data) {
  SOUP_RETURN_IF_ERROR(CheckSources(data));
  SOUP_RETURN_IF_ERROR(CheckFormat("data.format", data.format()));
  if (!data.too_long().empty())
    SOUP_RETURN_IF_ERROR(
        CheckWord("data.too_long", data.too_long(), {"truncate", "drop", "split"}));
  SOUP_RETURN_IF_ERROR(CheckRange("data.max_errors", data.max_errors(), 0, kMany));
  SOUP_RETURN_IF_ERROR(CheckRange("data.max_length", data.max_length(), 2, 1 << 20));
  SOUP_RETURN_IF_ERROR(CheckWord("data.train_on", data.train_on(), {"responses", "all"}));
  SOUP_RETURN_IF_ERROR(
      CheckReal("data.validation", data.validation_fraction(), 0.0, 0.5, /*closed=*/true));
  if (data.has_validation_file()) {
    SOUP_RETURN_IF_ERROR(CheckFile("data.validation_file", data.validation_file()));
    if (data.validation_fraction() != 0) {
      return Refuse("data.validation", absl::StrCat(data.validation_fraction()),
                    "a validation file is given as well; give one of the two");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLora(const soup::v1::LoraSpec& lora) {
  SOUP_RETURN_IF_ERROR(CheckRange("lora.r", lora.r(), 1, 1024));
  SOUP_RETURN_IF_ERROR(CheckPositive("lora.alpha", lora.alpha(), 1e6));
  SOUP_RETURN_IF_ERROR(CheckReal("lora.dropout", lora.dropout(), 0.0, 1.0, /*closed=*/false));
  static const auto* const kModules = new std::vector<absl::string_view>{
      "q_proj",  "k_proj",    "v_proj",   "o_proj",      "gate_proj",
      "up_proj", "down_proj", "qkv_proj", "gate_up_proj"};
  if (lora.targets().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lora.targets is empty: give all-linear or some of ", absl::StrJoin(*kModules, ", ")));
  }
  std::set<std::string> seen;
  for (const std::string& target : lora.targets()) {
    if (target == "all-linear") {
      if (lora.targets_size() == 1) break;
      return absl::InvalidArgumentError(
          "lora.targets mixes all-linear with module names: give one or the other");
    }
    SOUP_RETURN_IF_ERROR(CheckWord("lora.targets", target, *kModules));
    if (!seen.insert(target).second) {
      return Refuse("lora.targets", Quoted(target), "it is there twice; give it once");
    }
  }
  if (lora.has_init_adapter() != lora.has_init_adapter_config()) {
    return absl::InvalidArgumentError(
        "lora.init_from has one file: it needs both adapter_model.safetensors and "
        "adapter_config.json");
  }
  if (lora.has_init_adapter()) {
    SOUP_RETURN_IF_ERROR(
        CheckFile("lora.init_from (adapter_model.safetensors)", lora.init_adapter()));
    SOUP_RETURN_IF_ERROR(
        CheckFile("lora.init_from (adapter_config.json)", lora.init_adapter_config()));
  }
  return absl::OkStatus();
}

absl::Status CheckTraining(const soup::v1::TrainingSpec& t) {
  SOUP_RETURN_IF_ERROR(CheckWord("training.task", t.task(), {"sft"}));
  SOUP_RETURN_IF_ERROR(CheckPositive("training.epochs", t.epochs(), 1e6));
  SOUP_RETURN_IF_ERROR(CheckRange("training.batch_size", t.batch_size(), 1, 1 << 20));
  SOUP_RETURN_IF_ERROR(CheckPositive("training.learning_rate", t.learning_rate(), 10.0));
  SOUP_RETURN_IF_ERROR(
      CheckWord("training.scheduler", t.scheduler(), {"constant", "linear", "cosine"}));
  SOUP_RETURN_IF_ERROR(CheckReal("training.warmup_ratio", t.warmup_ratio(), 0, 1, true));
  SOUP_RETURN_IF_ERROR(CheckReal("training.weight_decay", t.weight_decay(), 0, 1e3, true));
  SOUP_RETURN_IF_ERROR(CheckReal("training.max_grad_norm", t.max_grad_norm(), 0, 1e9, true));
  SOUP_RETURN_IF_ERROR(CheckRange("training.save_every", t.save_every(), 0, INT32_MAX));
  SOUP_RETURN_IF_ERROR(CheckRange("training.keep_last", t.keep_last(), 1, 1000));
  SOUP_RETURN_IF_ERROR(CheckRange("training.max_steps", t.max_steps(), 0, kMany));
  SOUP_RETURN_IF_ERROR(CheckReal("training.adam_beta1", t.adam_beta1(), 0, 1, false));
  SOUP_RETURN_IF_ERROR(CheckReal("training.adam_beta2", t.adam_beta2(), 0, 1, false));
  SOUP_RETURN_IF_ERROR(CheckPositive("training.adam_epsilon", t.adam_epsilon(), 1.0));
  if (t.precision().empty()) return absl::OkStatus();
  return CheckWord("training.precision", t.precision(), {"auto", "bf16", "fp32"});
}

absl::Status CheckResources(const soup::v1::ResourceSpec& r) {
  constexpr int64_t kPebi = int64_t{1} << 50;
  SOUP_RETURN_IF_ERROR(CheckRange("resources.vram", r.vram_bytes(), 0, kPebi));
  SOUP_RETURN_IF_ERROR(CheckWord("resources.priority", r.priority(), {"low", "normal", "high"}));
  return CheckRange("resources.time_limit", r.time_limit_seconds(), 0, int64_t{100} * 366 * 86400);
}

// Fields of a newer client: keeping quiet about them would be ignoring a key.
absl::Status CheckUnknownFields(const google::protobuf::Message& message, const std::string& path) {
  const auto* reflection = message.GetReflection();
  const auto& unknown = reflection->GetUnknownFields(message);
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job has a field that this soupd does not know (", path, ", number ",
                     unknown.field(0).number(), "): is soupctl newer than soupd?"));
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string below = absl::StrCat(path, ".", field->name());
    if (!field->is_repeated()) {
      SOUP_RETURN_IF_ERROR(CheckUnknownFields(reflection->GetMessage(message, field), below));
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      SOUP_RETURN_IF_ERROR(
          CheckUnknownFields(reflection->GetRepeatedMessage(message, field, i), below));
    }
  }
  return absl::OkStatus();
}

bool BeginsAsGguf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  return file.read(magic, sizeof magic) && absl::string_view(magic, sizeof magic) == "GGUF";
}

}  // namespace

absl::Status ValidateBase(const soup::v1::BaseSpec& base) {
  if (base.path().empty()) {
    return absl::InvalidArgumentError(
        "base.path is missing: give a model folder under one of soupd's model roots");
  }
  SOUP_RETURN_IF_ERROR(CheckText("base.path", base.path(), kMaxPathBytes));
  SOUP_RETURN_IF_ERROR(CheckWord("base.format", base.format(), {"bf16", "nf4"}));
  if (base.double_quant() && base.format() != "nf4") {
    return Refuse("base.double_quant", "true", "it belongs to format nf4; remove it");
  }
  return absl::OkStatus();
}

absl::Status ValidateSpec(const soup::v1::JobSpec& spec) {
  SOUP_RETURN_IF_ERROR(CheckUnknownFields(spec, "job"));
  if (spec.name().empty()) {
    return absl::InvalidArgumentError("name is missing: give the job a name");
  }
  SOUP_RETURN_IF_ERROR(CheckText("name", spec.name(), kMaxNameBytes));
  if (absl::StripAsciiWhitespace(spec.name()).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("name ", Quoted(spec.name()), " is blank: give the job a name"));
  }
  SOUP_RETURN_IF_ERROR(ValidateBase(spec.base()));
  SOUP_RETURN_IF_ERROR(CheckData(spec.data()));
  SOUP_RETURN_IF_ERROR(CheckLora(spec.lora()));
  SOUP_RETURN_IF_ERROR(CheckTraining(spec.training()));
  SOUP_RETURN_IF_ERROR(CheckResources(spec.resources()));
  return CheckText("output", spec.output(), kMaxPathBytes);
}

absl::StatusOr<std::string> ResolveBasePath(const std::string& path,
                                            const std::vector<std::string>& model_roots) {
  if (model_roots.empty()) {
    return absl::PermissionDeniedError(
        "soupd has no model root, so no base can be used: start it with --model-root DIR");
  }
  if (path.empty() || path.front() != '/') {
    return Refuse("base.path", Quoted(path), "give an absolute path on soupd's host");
  }
  const std::string roots = absl::StrJoin(model_roots, ", ");
  char real[PATH_MAX];
  if (realpath(path.c_str(), real) == nullptr) {
    // Outside the roots, do not tell what exists.
    const bool inside = std::any_of(model_roots.begin(), model_roots.end(), [&](const auto& root) {
      return absl::StartsWith(path, root == "/" ? root : root + "/");
    });
    if (inside) return engine::ErrnoStatus(errno, "open the base model", path);
    return absl::PermissionDeniedError(
        absl::StrCat("base.path ", path, " is not under a model root (", roots,
                     "): move the model there, or have soupd started with --model-root"));
  }
  const std::string resolved = real;
  for (const std::string& root : model_roots) {
    if (resolved != root && !absl::StartsWith(resolved, root == "/" ? root : root + "/")) continue;
    struct stat st {};
    if (stat(real, &st) != 0) return engine::ErrnoStatus(errno, "stat", resolved);
    if (S_ISREG(st.st_mode) && BeginsAsGguf(resolved)) return resolved;
    if (!S_ISDIR(st.st_mode)) {
      return Refuse("base.path", path,
                    "it is no GGUF file; give a .gguf file or the model's folder");
    }
    if (access((resolved + "/config.json").c_str(), R_OK) != 0) {
      return Refuse(
          "base.path", path,
          "there is no config.json that soupd can read; give a Hugging Face model folder");
    }
    return resolved;
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "base.path ", path, " leads", resolved == path ? "" : absl::StrCat(" to ", resolved),
      " outside the model roots (", roots,
      "): move the model there, or have soupd started with --model-root"));
}

}  // namespace soup::daemon
