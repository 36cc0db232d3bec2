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
      {RecordFormat::kMessages, "messages", {"messages"}, {"tools"}}};
  return *shapes;
}

const Shape& ShapeOf(RecordFormat format) {
  for (const Shape& s : Shapes())
    if (s.format == format) return s;
  return Shapes().front();
}

// Formats that people have and that are not read here, by the keys that give them away.
struct Foreign {
  const char* name;
  std::vector<absl::string_view> keys;
};
const std::vector<Foreign>& ForeignShapes() {
  static const auto* const shapes =
      new std::vector<Foreign>{{"alpaca", {"instruction", "output"}},
                               {"sharegpt", {"conversations"}},
                               {"preference pairs", {"chosen", "rejected"}},
                               {"token ids", {"input_ids"}}};
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

constexpr char kKnown[] =
    "known: text {\"text\"}, prompt_completion {\"prompt\", \"completion\"}, messages "
    "{\"messages\"}";

}  // namespace

const char* RecordFormatName(RecordFormat format) { return ShapeOf(format).name; }

absl::StatusOr<RecordFormat> RecordFormatFromName(absl::string_view name) {
  for (const Shape& s : Shapes())
    if (name == s.name) return s.format;
  return absl::InvalidArgumentError(
      absl::StrCat("data format '", name, "' is not supported (", kKnown, ", or auto)"));
}

absl::StatusOr<RecordFormat> DetectRecordFormat(const Value& record) {
  std::optional<RecordFormat> found;
  for (const Shape& s : Shapes()) {
    if (!HasAll(record, s.required)) continue;
    if (found) {
      return absl::InvalidArgumentError(absl::StrCat("the record has the keys of both ",
                                                     RecordFormatName(*found), " and ", s.name,
                                                     "; say which one is meant with data.format"));
    }
    found = s.format;
  }
  if (found) return *found;
  for (const Foreign& f : ForeignShapes()) {
    if (HasAll(record, f.keys)) {
      return absl::InvalidArgumentError(absl::StrCat("the record looks like ", f.name, " (keys ",
                                                     Quoted(f.keys),
                                                     "), which is not supported yet; ", kKnown));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no format has the record's keys (", KeysOf(record), "); ", kKnown));
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
