#include "engine/data/record_format.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace soup::engine {
namespace {

constexpr size_t kShownKeys = 8;

struct Shape {
  RecordFormat format;
  const char* name;
  std::vector<absl::string_view> required;
  std::vector<absl::string_view> optional;
};

const std::vector<Shape>& Shapes() {
  static const auto* const shapes = new std::vector<Shape>{
      {RecordFormat::kText, "text", {"text"}, {}},
      {RecordFormat::kPromptCompletion, "prompt_completion", {"prompt", "completion"}, {}},
      {RecordFormat::kMessages, "messages", {"messages"}, {"tools"}},
      {RecordFormat::kAlpaca, "alpaca", {"instruction", "output"}, {"input", "system", "history"}},
      {RecordFormat::kSharegpt, "sharegpt", {"conversations"}, {"system", "tools"}},
      {RecordFormat::kInputIds, "input_ids", {"input_ids"}, {"labels", "attention_mask"}}};
  return *shapes;
}

const Shape& ShapeOf(RecordFormat format) {
  for (const Shape& s : Shapes())
    if (s.format == format) return s;
  return Shapes().front();
}

// Records that people have and that are not read here, by the keys that give them away.
struct Foreign {
  std::vector<absl::string_view> keys;
  const char* remedy;
};
const std::vector<Foreign>& ForeignShapes() {
  static const auto* const shapes = new std::vector<Foreign>{
      {{"chosen", "rejected"}, "preference pairs are not supported"},
      {{"prompt", "response"}, "name the key 'response' 'completion'"},
      {{"instruction", "response"}, "name the key 'response' 'output' (alpaca)"},
      {{"question", "answer"}, "name the keys 'prompt' and 'completion'"},
      {{"input", "output"}, "name the keys 'prompt' and 'completion'"},
      {{"conversation"}, "name the key 'conversations' (sharegpt) or 'messages'"},
      {{"content"}, "name the key 'text'"}};
  return *shapes;
}

bool HasAll(const Value& record, const std::vector<absl::string_view>& keys) {
  return std::all_of(keys.begin(), keys.end(),
                     [&record](absl::string_view k) { return record.Find(k) != nullptr; });
}

std::string KeysOf(const Value& record) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.AsDict()) {
    if (keys.size() == kShownKeys) {
      keys.push_back("...");
      break;
    }
    keys.push_back(absl::StrCat("'", absl::string_view(key).substr(0, 40), "'"));
  }
  return keys.empty() ? "none" : absl::StrJoin(keys, ", ");
}

std::string Quoted(const std::vector<absl::string_view>& keys) {
  return absl::StrJoin(keys, " and ", [](std::string* out, absl::string_view k) {
    absl::StrAppend(out, "'", k, "'");
  });
}

// "text {'text'}, prompt_completion {'prompt' and 'completion'}, ..."
std::string KnownShapes() {
  return absl::StrCat("known: ",
                      absl::StrJoin(Shapes(), ", ", [](std::string* out, const Shape& s) {
                        absl::StrAppend(out, s.name, " {", Quoted(s.required), "}");
                      }));
}

}  // namespace

const char* RecordFormatName(RecordFormat format) { return ShapeOf(format).name; }

std::string KnownRecordFormats() {
  return absl::StrJoin(Shapes(), ", ",
                       [](std::string* out, const Shape& s) { absl::StrAppend(out, s.name); });
}

absl::StatusOr<RecordFormat> RecordFormatFromName(absl::string_view name) {
  for (const Shape& s : Shapes())
    if (name == s.name) return s.format;
  return absl::InvalidArgumentError(
      absl::StrCat("data format '", name, "' is not supported; known: auto, ", KnownRecordFormats(),
                   ", and the kinds of files jsonl, json, csv, tsv with the format of auto"));
}

absl::StatusOr<RecordFormat> DetectRecordFormat(const Value& record) {
  std::optional<RecordFormat> found;
  for (const Shape& s : Shapes()) {
    if (!HasAll(record, s.required)) continue;
    if (found) {
      return absl::FailedPreconditionError(
          absl::StrCat("the record has the keys of both ", RecordFormatName(*found), " and ",
                       s.name, "; say which one is meant with data.format"));
    }
    found = s.format;
  }
  if (found) return *found;
  for (const Foreign& f : ForeignShapes()) {
    if (HasAll(record, f.keys)) {
      return absl::InvalidArgumentError(
          absl::StrCat("no format has the record's keys (", KeysOf(record), "): ", f.remedy));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no format has the record's keys (", KeysOf(record), "); ", KnownShapes()));
}

std::string RecordFormatReason(RecordFormat format) {
  const std::vector<absl::string_view>& keys = ShapeOf(format).required;
  return absl::StrCat("the first record has the key", keys.size() > 1 ? "s " : " ", Quoted(keys));
}

absl::Status CheckRecordKeys(const Value& record, RecordFormat format,
                             std::vector<std::string>* ignored) {
  const Shape& shape = ShapeOf(format);
  for (absl::string_view key : shape.required) {
    if (record.Find(key) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("no key '", key, "' (keys: ", KeysOf(record),
                                                     "), which format ", shape.name, " needs"));
    }
  }
  for (const auto& [key, value] : record.AsDict()) {
    const auto known = [key = absl::string_view(key)](const std::vector<absl::string_view>& keys) {
      return std::find(keys.begin(), keys.end(), key) != keys.end();
    };
    if (!known(shape.required) && !known(shape.optional)) ignored->push_back(key);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StringMember(const Value& record, absl::string_view key) {
  const Value* value = record.Find(key);
  if (value == nullptr) return absl::InvalidArgumentError(absl::StrCat("no key '", key, "'"));
  if (!value->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key '", key, "' is ", value->KindName(), " where a string is expected"));
  }
  return value->AsString();
}

}  // namespace soup::engine
