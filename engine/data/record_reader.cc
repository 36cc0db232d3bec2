#include "engine/data/record_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/csv_reader.h"
#include "engine/data/json_reader.h"
#include "engine/data/json_value.h"
#include "engine/data/jsonl_reader.h"
#include "engine/data/text_source.h"

namespace soup::engine {
namespace {

constexpr std::pair<FileKind, const char*> kKinds[] = {{FileKind::kJsonl, "jsonl"},
                                                       {FileKind::kJson, "json"},
                                                       {FileKind::kCsv, "csv"},
                                                       {FileKind::kTsv, "tsv"}};

// Keys whose arrays are parts of a record, never a list of records.
constexpr absl::string_view kRecordLists[] = {"messages",   "conversations",  "input_ids", "labels",
                                              "tools",      "attention_mask", "prompt",    "chosen",
                                              "completion", "history"};

class JsonlRecords final : public RecordReader {
 public:
  explicit JsonlRecords(std::unique_ptr<JsonlReader> reader) : reader_(std::move(reader)) {}
  absl::StatusOr<bool> Next() override { return reader_->Next(&line_); }
  absl::StatusOr<Value> Parse() const override { return reader_->Parse(line_); }
  int64_t line() const override { return line_.number; }
  std::string Where() const override {
    return absl::StrCat(reader_->name(), " line ", line_.number);
  }
  int64_t file_bytes() const override { return reader_->file_bytes(); }
  int64_t bytes_read() const override { return reader_->bytes_read(); }

 private:
  std::unique_ptr<JsonlReader> reader_;
  JsonlReader::Line line_;
};

std::string Extension(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || (slash != std::string::npos && dot < slash)) return "";
  return absl::AsciiStrToLower(name.substr(dot + 1));
}

bool IsRecordList(absl::string_view key) {
  return std::find(std::begin(kRecordLists), std::end(kRecordLists), key) != std::end(kRecordLists);
}

// A text that begins with "{" and is one object around an array of records, as far as its beginning
// tells: {"data": [...
bool OpensAnArray(absl::string_view start) {
  start = absl::StripLeadingAsciiWhitespace(start.substr(1));
  if (start.empty() || start[0] != '"') return false;
  const size_t end = start.find('"', 1);
  if (end == absl::string_view::npos || IsRecordList(start.substr(1, end - 1))) return false;
  start = absl::StripLeadingAsciiWhitespace(start.substr(end + 1));
  if (start.empty() || start[0] != ':') return false;
  start = absl::StripLeadingAsciiWhitespace(start.substr(1));
  return !start.empty() && start[0] == '[';
}

// One whole object around one array of objects.
bool HoldsRecords(const Value& object) {
  if (!object.is_dict()) return false;
  int arrays = 0;
  for (const auto& [key, value] : object.AsDict()) {
    if (IsRecordList(key)) return false;
    arrays += value.is_list() && !value.AsList().empty() && value.AsList().front().is_dict();
  }
  return arrays == 1;
}

struct Choice {
  FileKind kind;
  std::string reason;
};

// A file that begins with "{": records a line, or one object around them?
Choice ChooseForObject(absl::string_view start, bool whole_file, const std::string& extension) {
  if (extension == "jsonl" || extension == "ndjson")
    return {FileKind::kJsonl, absl::StrCat("its name ends in .", extension)};
  const size_t newline = start.find('\n');
  const absl::string_view line = start.substr(0, newline);
  const bool line_is_whole = newline != absl::string_view::npos || whole_file;
  if (!line_is_whole) {
    if (OpensAnArray(start)) return {FileKind::kJson, "it begins with an object around an array"};
    return {FileKind::kJsonl, "it begins with a long line that opens an object"};
  }
  const auto value = ParseJsonValue(line);
  if (!value.ok()) {
    // A record that is written over several lines, or a broken first line.
    const bool broken_line =
        absl::EndsWith(absl::StripTrailingAsciiWhitespace(line), "}") && extension != "json";
    if (broken_line) return {FileKind::kJsonl, "it begins with an object on a line"};
    return {FileKind::kJson, "its first line is no whole object"};
  }
  const bool only_line = whole_file && (newline == absl::string_view::npos ||
                                        absl::StripAsciiWhitespace(start.substr(newline)).empty());
  if (only_line && HoldsRecords(*value))
    return {FileKind::kJson, "it is one object around an array of objects"};
  return {FileKind::kJsonl, "its first line is a whole object"};
}

absl::StatusOr<Choice> Choose(absl::string_view start, bool whole_file, const std::string& name) {
  const std::string extension = Extension(name);
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(start);
  if (extension == "csv" || extension == "tsv") {
    return Choice{extension == "csv" ? FileKind::kCsv : FileKind::kTsv,
                  absl::StrCat("its name ends in .", extension)};
  }
  if (absl::StartsWith(text, "[")) return Choice{FileKind::kJson, "it begins with ["};
  if (absl::StartsWith(text, "{")) return ChooseForObject(text, whole_file, extension);
  if (text.empty() || extension == "jsonl" || extension == "ndjson")
    return Choice{FileKind::kJsonl, absl::StrCat("its name ends in .", extension)};
  if (extension == "json") return Choice{FileKind::kJson, "its name ends in .json"};
  return absl::InvalidArgumentError(absl::StrCat(
      name,
      ": it begins with neither { nor [ and is not named .csv or .tsv, so how to read it is "
      "not known; name it after what it is, or say data.format: csv"));
}

}  // namespace

const char* FileKindName(FileKind kind) {
  for (const auto& [k, name] : kKinds)
    if (k == kind) return name;
  return "auto";
}

FileKind FileKindFromName(absl::string_view word) {
  for (const auto& [k, name] : kKinds)
    if (word == name) return k;
  return FileKind::kAuto;
}

absl::StatusOr<std::unique_ptr<RecordReader>> RecordReader::Open(const std::string& path,
                                                                 const std::string& name,
                                                                 Options options) {
  SOUP_ASSIGN_OR_RETURN(auto source, TextSource::Open(path, name));
  Choice choice{options.kind, "the job says so"};
  // Many programs call JSON lines JSON as well: its first bytes tell.
  if (options.kind == FileKind::kAuto || options.kind == FileKind::kJson) {
    SOUP_ASSIGN_OR_RETURN(const absl::string_view start, source->Rest());
    const int64_t seen = source->offset() + static_cast<int64_t>(start.size());
    const std::string name =
        options.kind == FileKind::kJson ? "the job's file.json" : source->name();
    SOUP_ASSIGN_OR_RETURN(choice, Choose(start, seen == source->file_bytes(), name));
  }
  std::unique_ptr<RecordReader> out;
  switch (choice.kind) {
    case FileKind::kJson:
      out = std::make_unique<JsonReader>(std::move(source), options.max_record_bytes);
      break;
    case FileKind::kCsv:
    case FileKind::kTsv: {
      const char separator = choice.kind == FileKind::kCsv ? ',' : '\t';
      SOUP_ASSIGN_OR_RETURN(
          out, CsvReader::Create(std::move(source), separator, options.max_record_bytes));
      break;
    }
    default:
      out = std::make_unique<JsonlRecords>(
          JsonlReader::Over(std::move(source), {options.max_record_bytes}));
  }
  out->kind_ = choice.kind;
  out->kind_reason_ = std::move(choice.reason);
  return out;
}

}  // namespace soup::engine
