#include "client/job_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/exit_codes.h"
#include "client/job_schema.h"
#include "client/units.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace soup::client {
namespace {

namespace fs = std::filesystem;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using soup::v1::FileRef;
using soup::v1::JobSpec;
using Slot = LocalFile::Slot;

constexpr size_t kMaxJobFileBytes = 1 << 20;
constexpr size_t kMaxErrorsShown = 20;
constexpr double kMaxSourceWeight = 100;
constexpr char kAdapterFile[] = "adapter_model.safetensors";
constexpr char kAdapterConfigFile[] = "adapter_config.json";

const char* KindOf(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a group of keys";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar:
      return "text";
    default:
      return "nothing";
  }
}

// Quoted, or a block: never a number or a boolean.
bool IsQuoted(const YAML::Node& node) { return node.Tag() == "!"; }

std::string Shown(const YAML::Node& node) {
  if (!node.IsScalar()) return KindOf(node);
  constexpr size_t kLongest = 60;
  std::string text = node.Scalar();
  if (text.size() > kLongest) text = absl::StrCat(text.substr(0, kLongest), "…");
  return absl::StrCat("\"", text, "\"", IsQuoted(node) ? " in quotes" : "");
}

std::string Absolute(const std::string& folder, std::string path) {
  if (absl::StartsWith(path, "~/")) {
    if (const char* home = getenv("HOME")) path = absl::StrCat(home, path.substr(1));
  }
  std::string out = (fs::path(folder) / path).lexically_normal().string();
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

// Whole text as a whole number; nullopt for anything else ("3.0", "3x", "").
template <typename T>
std::optional<T> WholeNumber(absl::string_view text) {
  T value{};
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> Real(const YAML::Node& node) {
  double value = 0;
  if (IsQuoted(node) || !absl::SimpleAtod(node.Scalar(), &value) || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

// Collects a spec from the defaults, the file and the overrides, and every error on the way.
class Builder {
 public:
  // Where a document's relative paths start and what its errors open with.
  struct Source {
    std::string name;
    std::string folder;
    bool has_marks = true;  // line and column mean something
  };

  Builder() {
    const Source defaults{"default", "/", false};
    for (const JobKey& key : JobKeys()) {
      if (key.default_text != nullptr) Set(key, YAML::Load(key.default_text), defaults);
    }
    given_.clear();
  }

  void ApplyDocument(const YAML::Node& root, const Source& source) {
    if (!root.IsMap()) {
      return Fail(source, root,
                  absl::StrCat("a job file is a group of keys (name, base, data, …), found ",
                               KindOf(root)));
    }
    ForEachKey(root, source, "", [&](const std::string& key, const YAML::Node& value) {
      const auto& sections = JobSections();
      if (std::find(sections.begin(), sections.end(), key) != sections.end()) {
        return ApplySection(key, value, source);
      }
      if (const JobKey* known = FindJobKey("", key)) return Set(*known, value, source);
      Fail(source, key_mark_, absl::StrCat("unknown key \"", key, "\"; ", SuggestKey("", key)));
    });
  }

  // key=value of --set.
  void ApplyOverride(const std::string& text, const std::string& cwd) {
    const Source source{absl::StrCat("--set ", text), cwd, false};
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      return Fail(source, YAML::Mark(), "wants key=value, e.g. training.epochs=3");
    }
    const std::string full = text.substr(0, equals);
    const size_t dot = full.find('.');
    const std::string section = dot == std::string::npos ? "" : full.substr(0, dot);
    const std::string key = dot == std::string::npos ? full : full.substr(dot + 1);
    const JobKey* known = FindJobKey(section, key);
    if (known == nullptr) {
      return Fail(source, YAML::Mark(),
                  absl::StrCat("unknown key \"", full, "\"; ", SuggestKey(section, key)));
    }
    try {
      Set(*known, YAML::Load(text.substr(equals + 1)), source);
    } catch (const YAML::Exception& e) {
      Fail(source, YAML::Mark(), absl::StrCat("the value is not YAML: ", e.msg));
    }
  }

  void Fail(const Source& source, const YAML::Node& node, const std::string& message) {
    Fail(source, node.Mark(), message);
  }
  void Fail(const Source& source, const YAML::Mark& mark, const std::string& message) {
    errors_.push_back(absl::StrCat(Place(source, mark), ": ", message));
  }

  absl::StatusOr<JobFile> Finish(const Source& source, const std::string& default_name,
                                 const std::string& name) {
    for (const JobKey& key : JobKeys()) {
      if (key.required && given_.count(FullName(key)) == 0) {
        errors_.push_back(
            absl::StrCat(source.name, ": \"", FullName(key), "\" is missing: ", TypeText(key)));
      }
    }
    if (spec_.base().format() != "nf4") {
      if (spec_.base().double_quant() && given_.count("base.double_quant") > 0) {
        errors_.push_back(
            absl::StrCat(source.name, ": base.double_quant: true has no meaning with base.format: ",
                         spec_.base().format(), "; remove it, or use format: nf4"));
      }
      spec_.mutable_base()->set_double_quant(false);
    }
    if (!errors_.empty()) {
      const size_t more = errors_.size() > kMaxErrorsShown ? errors_.size() - kMaxErrorsShown : 0;
      errors_.resize(errors_.size() - more);
      if (more > 0) errors_.push_back(absl::StrCat("… and ", more, " more"));
      return UsageError(absl::StrJoin(errors_, "\n"));
    }
    if (!name.empty()) spec_.set_name(name);
    if (spec_.name().empty()) spec_.set_name(default_name);
    if (!spec_.name().empty() && absl::StripAsciiWhitespace(spec_.name()).empty()) {
      return UsageError(absl::StrCat(source.name, ": name \"", spec_.name(),
                                     "\" is blank: give the job a name, or leave it out"));
    }
    JobFile out;
    out.spec = spec_;
    for (const auto& [place, file] : files_) out.files.push_back(file);
    return out;
  }

 private:
  static std::string Place(const Source& source, const YAML::Mark& mark) {
    if (!source.has_marks || mark.is_null()) return source.name;
    return absl::StrCat(source.name, ":", mark.line + 1, ":", mark.column + 1);
  }

  template <typename Fn>
  void ForEachKey(const YAML::Node& map, const Source& source, const std::string& section, Fn fn) {
    std::set<std::string> seen;
    for (const auto& pair : map) {
      const YAML::Mark mark = pair.first.Mark();
      if (!pair.first.IsScalar()) {
        Fail(source, mark, absl::StrCat("a key must be a word, found ", KindOf(pair.first)));
        continue;
      }
      const std::string key = pair.first.Scalar();
      if (!seen.insert(key).second) {
        Fail(source, mark,
             absl::StrCat("key \"", key, "\" is given twice",
                          section.empty() ? "" : absl::StrCat(" in \"", section, "\""),
                          "; keep one of them"));
        continue;
      }
      key_mark_ = mark;
      fn(key, pair.second);
    }
  }

  void ApplySection(const std::string& section, const YAML::Node& node, const Source& source) {
    if (!node.IsMap()) {
      return Fail(source, node.Mark().is_null() ? key_mark_ : node.Mark(),
                  absl::StrCat("\"", section, "\" is a group of keys, found ", Shown(node),
                               "; e.g. ", section, ": {", ExampleOf(section), "}"));
    }
    ForEachKey(node, source, section, [&](const std::string& key, const YAML::Node& value) {
      if (const JobKey* known = FindJobKey(section, key)) return Set(*known, value, source);
      Fail(source, key_mark_,
           absl::StrCat("unknown key \"", key, "\" in \"", section, "\"; ",
                        SuggestKey(section, key)));
    });
  }

  static std::string ExampleOf(const std::string& section) {
    for (const JobKey& key : JobKeys()) {
      if (section != key.section) continue;
      return absl::StrCat(key.key, ": ", key.default_text != nullptr ? key.default_text : "…");
    }
    return "";
  }

  void WrongType(const JobKey& key, const YAML::Node& node, const Source& source) {
    std::string hint;
    if (node.IsScalar() && IsQuoted(node) &&
        (key.kind == KeyKind::kWholeNumber || key.kind == KeyKind::kReal ||
         key.kind == KeyKind::kBool)) {
      hint = "; remove the quotes";
    }
    Fail(source, node.Mark().is_null() ? key_mark_ : node.Mark(),
         absl::StrCat("\"", FullName(key), "\" is ", TypeText(key), ", found ", Shown(node), hint));
  }

  // The message that holds the key's field, and the field (of the same name).
  std::pair<Message*, const FieldDescriptor*> FieldOf(const JobKey& key) {
    Message* message = &spec_;
    if (*key.section != '\0') {
      const auto* field = spec_.GetDescriptor()->FindFieldByName(key.section);
      message = spec_.GetReflection()->MutableMessage(&spec_, field);
    }
    return {message, message->GetDescriptor()->FindFieldByName(key.key)};
  }

  void SetText(const JobKey& key, const std::string& text) {
    const auto [message, field] = FieldOf(key);
    message->GetReflection()->SetString(message, field, text);
  }

  void Set(const JobKey& key, const YAML::Node& node, const Source& source) {
    given_.insert(FullName(key));
    const std::string& tag = node.Tag();
    if (!tag.empty() && tag != "?" && tag != "!") {
      return Fail(source, node,
                  absl::StrCat("\"", FullName(key), "\" has the YAML tag ", tag,
                               ", which a job file does not use; remove it"));
    }
    if (key.kind == KeyKind::kTargets) return SetTargets(key, node, source);
    if (key.kind == KeyKind::kSources) return SetSources(key, node, source);
    if (!node.IsScalar() || node.Scalar().empty()) return WrongType(key, node, source);
    switch (key.kind) {
      case KeyKind::kText:
        return SetText(key, node.Scalar());
      case KeyKind::kChoice:
        return SetChoice(key, node, source);
      case KeyKind::kWholeNumber:
        return SetWholeNumber(key, node, source);
      case KeyKind::kReal:
        return SetReal(key, node, source);
      case KeyKind::kBool:
        return SetBool(key, node, source);
      case KeyKind::kServerPath:
      case KeyKind::kOutputPath:
        return SetText(key, Absolute(source.folder, node.Scalar()));
      case KeyKind::kFractionOrFile:
        return SetValidation(key, node, source);
      case KeyKind::kAdapterFolder:
        SetFile(Slot::kInitAdapter, absl::StrCat(node.Scalar(), "/", kAdapterFile), key, node,
                source);
        return SetFile(Slot::kInitAdapterConfig,
                       absl::StrCat(node.Scalar(), "/", kAdapterConfigFile), key, node, source);
      case KeyKind::kSize:
        return SetWithUnit("auto", ParseSize(node.Scalar()), key, node, source,
                           [&](int64_t v) { spec_.mutable_resources()->set_vram_bytes(v); });
      case KeyKind::kDuration:
        return SetWithUnit("none", ParseDuration(node.Scalar()), key, node, source, [&](int64_t v) {
          spec_.mutable_resources()->set_time_limit_seconds(v);
        });
      case KeyKind::kTargets:
      case KeyKind::kSources:
        return;  // above
    }
  }

  void SetChoice(const JobKey& key, const YAML::Node& node, const Source& source) {
    const std::vector<std::string> choices = absl::StrSplit(key.choices, '|');
    if (std::find(choices.begin(), choices.end(), node.Scalar()) != choices.end()) {
      return SetText(key, node.Scalar());
    }
    const std::string near = Nearest(node.Scalar(), choices);
    Fail(source, node,
         absl::StrCat("\"", FullName(key), "\" is ", TypeText(key), ", found ", Shown(node),
                      near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
  }

  bool InRange(const JobKey& key, double value) {
    return (key.low_open ? value > key.low : value >= key.low) &&
           (key.high_open ? value < key.high : value <= key.high);
  }

  void SetWholeNumber(const JobKey& key, const YAML::Node& node, const Source& source) {
    const auto [message, field] = FieldOf(key);
    const auto* reflection = message->GetReflection();
    if (IsQuoted(node)) return WrongType(key, node, source);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      const auto value = WholeNumber<uint64_t>(node.Scalar());
      if (!value) return WrongType(key, node, source);
      return reflection->SetUInt64(message, field, *value);
    }
    const auto value = WholeNumber<int64_t>(node.Scalar());
    if (!value || !InRange(key, static_cast<double>(*value))) return WrongType(key, node, source);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      return reflection->SetInt32(message, field, static_cast<int32_t>(*value));
    }
    reflection->SetInt64(message, field, *value);
  }

  void SetReal(const JobKey& key, const YAML::Node& node, const Source& source) {
    const auto value = Real(node);
    if (!value || !InRange(key, *value)) return WrongType(key, node, source);
    const auto [message, field] = FieldOf(key);
    message->GetReflection()->SetDouble(message, field, *value);
  }

  void SetBool(const JobKey& key, const YAML::Node& node, const Source& source) {
    const std::string& text = node.Scalar();
    if (IsQuoted(node) || (text != "true" && text != "false")) return WrongType(key, node, source);
    const auto [message, field] = FieldOf(key);
    message->GetReflection()->SetBool(message, field, text == "true");
  }

  void SetFile(Slot slot, const std::string& written, const JobKey& key, const YAML::Node& node,
               const Source& source) {
    FileRefOf(&spec_, slot)->set_name(written);
    files_[{slot, -1}] = {slot, -1, Absolute(source.folder, written),
                          absl::StrCat(Place(source, node.Mark()), ": ", FullName(key))};
  }

  // data.train: a file, or a list of them.
  void SetSources(const JobKey& key, const YAML::Node& node, const Source& source) {
    auto* data = spec_.mutable_data();
    data->clear_train();
    data->clear_sources();
    for (auto it = files_.begin(); it != files_.end();)
      it = it->first.first == Slot::kTrain ? files_.erase(it) : std::next(it);
    if (node.IsScalar() && !node.Scalar().empty())
      return SetFile(Slot::kTrain, node.Scalar(), key, node, source);
    if (node.IsMap()) return AddSource(key, node, source);
    if (!node.IsSequence() || node.size() == 0) return WrongType(key, node, source);
    for (const auto& item : node) AddSource(key, item, source);
  }

  // One element of the list: a path, or {path, weight, format}.
  void AddSource(const JobKey& key, const YAML::Node& node, const Source& source) {
    const int index = spec_.data().sources_size();
    auto* out = spec_.mutable_data()->add_sources();
    out->set_weight(1);
    std::string path;
    if (node.IsScalar()) {
      path = node.Scalar();
    } else if (node.IsMap()) {
      ForEachKey(node, source, FullName(key),
                 [&](const std::string& name, const YAML::Node& value) {
                   SetSourceKey(key, name, value, source, &path, out);
                 });
    } else {
      return WrongType(key, node, source);
    }
    if (path.empty()) {
      return Fail(source, node,
                  absl::StrCat("\"", FullName(key),
                               "\": a source has no path; e.g. {path: a.jsonl, "
                               "weight: 2, format: messages}"));
    }
    out->mutable_file()->set_name(path);
    files_[{Slot::kTrain, index}] = {
        Slot::kTrain, index, Absolute(source.folder, path),
        absl::StrCat(Place(source, node.Mark()), ": ", FullName(key), "[", index, "]")};
  }

  void SetSourceKey(const JobKey& key, const std::string& name, const YAML::Node& value,
                    const Source& source, std::string* path, soup::v1::DataSource* out) {
    static const auto* const kKeys = new std::vector<std::string>{"path", "weight", "format"};
    if (std::find(kKeys->begin(), kKeys->end(), name) == kKeys->end()) {
      const std::string near = Nearest(name, *kKeys);
      return Fail(
          source, key_mark_,
          absl::StrCat("unknown key \"", name, "\" in a source of \"", FullName(key), "\"; ",
                       near.empty() ? "allowed here: path, weight, format"
                                    : absl::StrCat("did you mean \"", near, "\"?")));
    }
    if (!value.IsScalar() || value.Scalar().empty()) {
      return Fail(source, value.Mark().is_null() ? key_mark_ : value.Mark(),
                  absl::StrCat("\"", name, "\" of a source is ", KindOf(value),
                               ", a single value was expected"));
    }
    if (name == "path") {
      *path = value.Scalar();
    } else if (name == "format") {
      out->set_format(value.Scalar());
    } else {
      const auto weight = Real(value);
      if (!weight || *weight < 0 || *weight > kMaxSourceWeight) {
        return Fail(source, value,
                    absl::StrCat("\"weight\" of a source is a number, 0 to ", kMaxSourceWeight,
                                 ", found ", Shown(value)));
      }
      out->set_weight(*weight);
    }
  }

  void SetValidation(const JobKey& key, const YAML::Node& node, const Source& source) {
    double ignored = 0;
    spec_.mutable_data()->clear_validation_file();
    spec_.mutable_data()->set_validation_fraction(0);
    files_.erase({Slot::kValidation, -1});
    if (!IsQuoted(node) && absl::SimpleAtod(node.Scalar(), &ignored)) {
      const auto value = Real(node);
      if (!value || !InRange(key, *value)) return WrongType(key, node, source);
      return spec_.mutable_data()->set_validation_fraction(*value);
    }
    SetFile(Slot::kValidation, node.Scalar(), key, node, source);
  }

  void SetTargets(const JobKey& key, const YAML::Node& node, const Source& source) {
    auto* targets = spec_.mutable_lora()->mutable_targets();
    targets->Clear();
    if (node.IsScalar() && node.Scalar() == "all-linear") {
      *targets->Add() = "all-linear";
      return;
    }
    if (!node.IsSequence() || node.size() == 0) return WrongType(key, node, source);
    std::set<std::string> seen;
    for (const auto& item : node) {
      if (!item.IsScalar() || item.Scalar().empty()) return WrongType(key, item, source);
      if (item.Scalar() == "all-linear") {
        return Fail(source, item,
                    "all-linear stands alone, without a list: lora.targets: all-linear");
      }
      if (!seen.insert(item.Scalar()).second) {
        return Fail(source, item,
                    absl::StrCat("\"", item.Scalar(), "\" stands twice in lora.targets"));
      }
      *targets->Add() = item.Scalar();
    }
  }

  template <typename Fn>
  void SetWithUnit(absl::string_view word_for_zero, const absl::StatusOr<int64_t>& parsed,
                   const JobKey& key, const YAML::Node& node, const Source& source, Fn set) {
    if (node.Scalar() == word_for_zero) return set(0);
    if (!parsed.ok()) return WrongType(key, node, source);
    set(*parsed);
  }

  JobSpec spec_;
  std::map<std::pair<Slot, int>, LocalFile> files_;  // by slot and source
  std::set<std::string> given_;
  std::vector<std::string> errors_;
  YAML::Mark key_mark_ = YAML::Mark::null_mark();
};

// ---- writing ----

// Text that needs no quotes whatever kind of key it stands at.
bool IsPlain(absl::string_view text) {
  if (text.empty() || !(absl::ascii_isalpha(text[0]) || text[0] == '/' || text[0] == '_')) {
    return false;
  }
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains("_-./", absl::string_view(&c, 1))) {
      return false;
    }
  }
  const std::string lower = absl::AsciiStrToLower(text);
  double ignored = 0;
  return lower != "null" && lower != "true" && lower != "false" &&
         !absl::SimpleAtod(text, &ignored);
}

std::string Quoted(const std::string& text) {
  if (IsPlain(text)) return text;
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

std::string RenderSources(const soup::v1::DataSpec& data) {
  if (data.sources().empty()) return Quoted(data.train().name());
  std::vector<std::string> sources;
  for (const soup::v1::DataSource& source : data.sources()) {
    sources.push_back(absl::StrCat(
        "{path: ", Quoted(source.file().name()), ", weight: ", ExactReal(source.weight()),
        source.format().empty() ? "" : absl::StrCat(", format: ", Quoted(source.format())), "}"));
  }
  return absl::StrCat("[", absl::StrJoin(sources, ", "), "]");
}

// The value of a key in YAML; empty when the spec has none.
std::string RenderValue(const JobSpec& spec, const JobKey& key) {
  const Message* message = &spec;
  if (*key.section != '\0') {
    message =
        &spec.GetReflection()->GetMessage(spec, spec.GetDescriptor()->FindFieldByName(key.section));
  }
  const auto* field = message->GetDescriptor()->FindFieldByName(key.key);
  const auto* reflection = message->GetReflection();
  switch (key.kind) {
    case KeyKind::kText:
    case KeyKind::kChoice:
    case KeyKind::kServerPath:
    case KeyKind::kOutputPath: {
      const std::string text = reflection->GetString(*message, field);
      return text.empty() ? "" : Quoted(text);
    }
    case KeyKind::kWholeNumber:
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_UINT64:
          return absl::StrCat(reflection->GetUInt64(*message, field));
        case FieldDescriptor::CPPTYPE_INT32:
          return absl::StrCat(reflection->GetInt32(*message, field));
        default:
          return absl::StrCat(reflection->GetInt64(*message, field));
      }
    case KeyKind::kReal:
      return ExactReal(reflection->GetDouble(*message, field));
    case KeyKind::kBool:
      return reflection->GetBool(*message, field) ? "true" : "false";
    case KeyKind::kSources:
      return RenderSources(spec.data());
    case KeyKind::kFractionOrFile:
      return spec.data().has_validation_file() ? Quoted(spec.data().validation_file().name())
                                               : ExactReal(spec.data().validation_fraction());
    case KeyKind::kAdapterFolder: {
      if (!spec.lora().has_init_adapter()) return "";
      const std::string folder = fs::path(spec.lora().init_adapter().name()).parent_path().string();
      return Quoted(folder.empty() ? "." : folder);
    }
    case KeyKind::kTargets: {
      const auto& targets = spec.lora().targets();
      if (targets.size() == 1 && targets[0] == "all-linear") return "all-linear";
      std::vector<std::string> quoted;
      for (const std::string& t : targets) quoted.push_back(Quoted(t));
      return absl::StrCat("[", absl::StrJoin(quoted, ", "), "]");
    }
    case KeyKind::kSize:
      return spec.resources().vram_bytes() == 0 ? "auto" : ExactSize(spec.resources().vram_bytes());
    case KeyKind::kDuration:
      return spec.resources().time_limit_seconds() == 0
                 ? "none"
                 : ExactDuration(spec.resources().time_limit_seconds());
  }
  return "";
}

}  // namespace

FileRef* FileRefOf(JobSpec* spec, Slot slot, int source) {
  switch (slot) {
    case Slot::kTrain:
      return source < 0 ? spec->mutable_data()->mutable_train()
                        : spec->mutable_data()->mutable_sources(source)->mutable_file();
    case Slot::kValidation:
      return spec->mutable_data()->mutable_validation_file();
    case Slot::kInitAdapter:
      return spec->mutable_lora()->mutable_init_adapter();
    case Slot::kInitAdapterConfig:
      return spec->mutable_lora()->mutable_init_adapter_config();
  }
  return nullptr;
}

absl::StatusOr<JobFile> ParseJobFile(const std::string& text, const std::string& source_name,
                                     const std::string& folder, const std::string& default_name,
                                     const JobFileOptions& options) {
  const Builder::Source source{source_name, folder, true};
  Builder builder;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      builder.Fail(
          source, documents[1],
          "a second document begins here; a job file holds one job, submit each by itself");
    }
    if (documents.empty()) {
      return UsageError(
          absl::StrCat(source_name, ": is empty; see docs/JOB_FILE.md for an example"));
    }
    builder.ApplyDocument(documents[0], source);
    for (const std::string& text : options.overrides) builder.ApplyOverride(text, options.cwd);
  } catch (const YAML::Exception& e) {
    return UsageError(absl::StrCat(source_name, ":", e.mark.line + 1, ":", e.mark.column + 1,
                                   ": not valid YAML: ", e.msg));
  }
  return builder.Finish(source, default_name, options.name);
}

absl::StatusOr<JobFile> ReadJobFile(const std::string& path, const JobFileOptions& options) {
  std::string text;
  const bool from_stdin = path == "-";
  const auto read = [&text](std::istream& in) {
    text.resize(kMaxJobFileBytes + 1);
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(in.gcount()));
  };
  if (from_stdin) {
    read(std::cin);
  } else {
    std::error_code ec;
    if (fs::is_directory(path, ec)) {
      return UsageError(absl::StrCat(path, " is a folder, a job file was expected"));
    }
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      return UsageError(absl::StrCat("cannot read the job file ", path, ": ",
                                     std::generic_category().message(errno)));
    }
    read(in);
  }
  if (text.size() > kMaxJobFileBytes) {
    return UsageError(absl::StrCat(path, " is over ", kMaxJobFileBytes,
                                   " bytes, which no job file is; is it a data file?"));
  }
  if (from_stdin) return ParseJobFile(text, "stdin", options.cwd, "job", options);
  const fs::path absolute = Absolute(options.cwd, path);
  return ParseJobFile(text, path, absolute.parent_path().string(), absolute.stem().string(),
                      options);
}

std::string RenderJobFile(const JobSpec& spec) {
  std::string out;
  std::string section;
  for (const JobKey& key : JobKeys()) {
    const std::string value = RenderValue(spec, key);
    if (value.empty()) continue;
    if (section != key.section) {
      section = key.section;
      if (!section.empty()) absl::StrAppend(&out, section, ":\n");
    }
    absl::StrAppend(&out, section.empty() ? "" : "  ", key.key, ": ", value, "\n");
  }
  return out;
}

}  // namespace soup::client
