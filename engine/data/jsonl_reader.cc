#include "engine/data/jsonl_reader.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/data/json_value.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

bool IsBlank(absl::string_view text) {
  return text.find_first_not_of(" \t\r") == absl::string_view::npos;
}

}  // namespace

struct JsonlReader::Rep {
  std::unique_ptr<TextSource> source;
  Options options;
  int64_t lines = 0;
  std::string line;  // a line that spans buffers

  // The next line, blank or not, without its line feed. False at the end of the file.
  absl::StatusOr<bool> ReadLine(Line* out) {
    *out = Line();
    out->offset = source->offset();
    line.clear();
    bool any = false;
    for (;;) {
      SOUP_ASSIGN_OR_RETURN(const absl::string_view rest, source->Rest());
      if (rest.empty()) break;
      any = true;
      const size_t newline = rest.find('\n');
      const absl::string_view part = rest.substr(0, newline);
      out->bytes += static_cast<int64_t>(part.size());
      out->too_long = out->bytes > options.max_line_bytes;
      const bool whole = newline != absl::string_view::npos;
      source->Take(whole ? newline + 1 : rest.size());
      if (out->too_long) {
        line.clear();  // its size is all that is told of it
      } else if (whole && line.empty()) {
        out->text = part;  // the whole line lies in the buffer
      } else {
        line.append(part.data(), part.size());
        out->text = line;
      }
      if (whole) break;
    }
    if (!any) return false;
    out->number = ++lines;
    if (out->too_long) out->text = {};
    return true;
  }
};

JsonlReader::JsonlReader() : rep_(std::make_unique<Rep>()) {}
JsonlReader::~JsonlReader() = default;

absl::StatusOr<std::unique_ptr<JsonlReader>> JsonlReader::Open(const std::string& path,
                                                               const std::string& name,
                                                               Options options) {
  SOUP_ASSIGN_OR_RETURN(auto source, TextSource::Open(path, name));
  return Over(std::move(source), options);
}

std::unique_ptr<JsonlReader> JsonlReader::Over(std::unique_ptr<TextSource> source,
                                               Options options) {
  std::unique_ptr<JsonlReader> out(new JsonlReader);
  out->rep_->source = std::move(source);
  out->rep_->options = options;
  return out;
}

absl::StatusOr<bool> JsonlReader::Next(Line* line) {
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const bool more, rep_->ReadLine(line));
    if (!more) return false;
    if (!line->text.empty() && line->text.back() == '\r') {
      line->text.remove_suffix(1);
      --line->bytes;
    }
    if (line->too_long || !IsBlank(line->text)) return true;
  }
}

absl::StatusOr<Value> JsonlReader::Parse(const Line& line) const {
  const std::string where = absl::StrCat(rep_->source->name(), " line ", line.number);
  if (line.too_long) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", line.bytes, " bytes long, over the limit of ",
                     rep_->options.max_line_bytes, "; cut the record into smaller ones"));
  }
  if (const auto bad = FindInvalidUtf8(line.text)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: byte 0x%02X at offset %d of the file is not UTF-8; save the file as UTF-8", where,
        static_cast<unsigned char>(line.text[*bad]), line.offset + static_cast<int64_t>(*bad)));
  }
  const char* hint = line.text[0] == '[' ? "; JSONL holds one object a line, not an array" : "";
  auto value = ParseJsonValue(line.text);
  if (!value.ok()) {
    const absl::string_view what = value.status().message();
    return absl::InvalidArgumentError(
        absl::StrCat(where, absl::StartsWith(what, "column") ? " " : ": ", what, hint));
  }
  if (!value->is_dict()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", value->KindName(), " where a JSON object is expected", hint));
  }
  return value;
}

const std::string& JsonlReader::name() const { return rep_->source->name(); }
int64_t JsonlReader::file_bytes() const { return rep_->source->file_bytes(); }
int64_t JsonlReader::bytes_read() const { return rep_->source->offset(); }

}  // namespace soup::engine
