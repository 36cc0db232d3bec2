#include "engine/data/json_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/data/json_value.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// How deep brackets lie while a value is scanned, byte by byte.
class Nesting {
 public:
  // False when `c` is the comma or the bracket after the value: it is no part of it.
  bool Take(char c) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      return true;
    }
    if (depth_ == 0 && (c == ',' || c == ']' || c == '}')) return false;
    if (c == '"') in_string_ = true;
    if (c == '[' || c == '{') ++depth_;
    if (c == ']' || c == '}') --depth_;
    return true;
  }

 private:
  int64_t depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace

absl::Status JsonReader::Broken(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(source_->name(), " line ", lines_, ": ", what));
}

absl::StatusOr<char> JsonReader::Peek() {
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const absl::string_view rest, source_->Rest());
    if (rest.empty()) return '\0';
    size_t n = 0;
    while (n < rest.size() && IsJsonSpace(rest[n])) lines_ += rest[n++] == '\n';
    source_->Take(n);
    if (n < rest.size()) return rest[n];
  }
}

absl::Status JsonReader::Expect(char c, absl::string_view where) {
  SOUP_ASSIGN_OR_RETURN(const char found, Peek());
  if (found != c) {
    return Broken(absl::StrCat(
        "'", absl::string_view(&c, 1), "' is expected ", where, ", found ",
        found == '\0' ? "the end of the file"
                      : absl::StrCat("'", absl::CHexEscape(absl::string_view(&found, 1)), "'")));
  }
  TakeOne();
  return absl::OkStatus();
}

absl::Status JsonReader::Scan(Element* out) {
  *out = Element();
  SOUP_RETURN_IF_ERROR(Peek().status());
  out->line = lines_;
  out->offset = source_->offset();
  Nesting nesting;
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const absl::string_view rest, source_->Rest());
    if (rest.empty()) {
      return Broken(absl::StrCat("the file ends inside a value that begins at line ", out->line,
                                 "; is it whole?"));
    }
    size_t n = 0;
    while (n < rest.size() && nesting.Take(rest[n])) lines_ += rest[n++] == '\n';
    out->bytes += static_cast<int64_t>(n);
    out->too_long = out->bytes > max_record_bytes_;
    if (out->too_long) {
      out->text.clear();
    } else {
      out->text.append(rest.data(), n);
    }
    source_->Take(n);
    if (n < rest.size()) break;
  }
  while (!out->text.empty() && IsJsonSpace(out->text.back())) out->text.pop_back();
  return absl::OkStatus();
}

absl::Status JsonReader::Begin() {
  SOUP_ASSIGN_OR_RETURN(const char first, Peek());
  if (first == '[') {
    TakeOne();
    state_ = State::kInside;
    return absl::OkStatus();
  }
  if (first != '{') {
    return Broken("a JSON file of records begins with [ (an array) or { (an object with an array)");
  }
  TakeOne();
  in_object_ = true;
  SOUP_ASSIGN_OR_RETURN(const bool found, NextArray());
  if (!found) {
    return Broken(
        "the file is one JSON object without an array of records; write the records as an array, "
        "or one a line (JSONL)");
  }
  state_ = State::kInside;
  return absl::OkStatus();
}

absl::StatusOr<std::string> JsonReader::ReadKey() {
  SOUP_RETURN_IF_ERROR(Expect('"', "before a key"));
  constexpr size_t kLongestKey = 1024;
  std::string key;
  for (bool escaped = false;;) {
    SOUP_ASSIGN_OR_RETURN(const absl::string_view rest, source_->Rest());
    if (rest.empty() || key.size() > kLongestKey) return Broken("a key that does not end");
    const char c = rest[0];
    lines_ += c == '\n';
    TakeOne();
    if (c == '"' && !escaped) break;
    escaped = c == '\\' && !escaped;
    key.push_back(c);
  }
  SOUP_RETURN_IF_ERROR(Expect(':', "after a key"));
  return key;
}

absl::StatusOr<bool> JsonReader::NextArray() {
  for (;; ++members_) {
    SOUP_ASSIGN_OR_RETURN(const char next, Peek());
    if (next == '}') {
      TakeOne();
      return false;
    }
    if (members_ > 0) SOUP_RETURN_IF_ERROR(Expect(',', "between two keys of an object"));
    SOUP_RETURN_IF_ERROR(Peek().status());
    SOUP_ASSIGN_OR_RETURN(const std::string key, ReadKey());
    SOUP_ASSIGN_OR_RETURN(const char value, Peek());
    if (value == '[') {
      if (in_array_) {
        return Broken(absl::StrCat("the file's object has two arrays, '", array_key_, "' and '",
                                   key, "'; put each into a file of its own"));
      }
      in_array_ = true;
      array_key_ = key;
      ++members_;
      TakeOne();
      return true;
    }
    Element skipped;
    SOUP_RETURN_IF_ERROR(Scan(&skipped));
    if (skipped.too_long || !ParseJsonValue(skipped.text).ok())
      return Broken(absl::StrCat("the value of the key '", key, "' cannot be read"));
    notices_.push_back(absl::StrCat("the key '", absl::string_view(key).substr(0, 40),
                                    "' beside the records is not used"));
  }
}

// After the array.
absl::Status JsonReader::End() {
  if (in_object_) SOUP_RETURN_IF_ERROR(NextArray().status());  // a second array is refused there
  SOUP_ASSIGN_OR_RETURN(const char left, Peek());
  if (left != '\0') {
    return Broken(
        "there is more after the end of the JSON value; a file holds one array, or one record a "
        "line (JSONL)");
  }
  state_ = State::kAfter;
  return absl::OkStatus();
}

absl::StatusOr<bool> JsonReader::Next() {
  if (state_ == State::kBefore) SOUP_RETURN_IF_ERROR(Begin());
  if (state_ == State::kAfter) return false;
  SOUP_ASSIGN_OR_RETURN(const char next, Peek());
  if (next == ']' && index_ == 0) {
    TakeOne();
    SOUP_RETURN_IF_ERROR(End());
    return false;
  }
  if (index_ > 0) {
    if (next == ']') {
      TakeOne();
      SOUP_RETURN_IF_ERROR(End());
      return false;
    }
    if (next == '\0') return Broken("the file ends inside its array; is it whole?");
    if (next != ',') return Broken("the brackets do not match");
    TakeOne();
  }
  ++index_;
  SOUP_RETURN_IF_ERROR(Scan(&element_));
  return true;
}

std::string JsonReader::Where() const {
  return absl::StrCat(source_->name(), " line ", element_.line, " (record ", index_, ")");
}

absl::StatusOr<Value> JsonReader::Parse() const {
  const std::string where = Where();
  if (element_.too_long) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", element_.bytes, " bytes long, over the limit of ",
                     max_record_bytes_, "; cut the record into smaller ones"));
  }
  const std::string& text = element_.text;
  if (text.empty())
    return absl::InvalidArgumentError(absl::StrCat(where, ": no value (a comma too many)"));
  if (const auto bad = FindInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: byte 0x%02X at offset %d of the file is not UTF-8; save the file as UTF-8", where,
        static_cast<unsigned char>(text[*bad]), element_.offset + static_cast<int64_t>(*bad)));
  }
  size_t at = 0;
  auto value = ParseJsonValue(text, &at);
  if (!value.ok()) {
    if (at == std::string::npos)
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", value.status().message()));
    const absl::string_view before = absl::string_view(text).substr(0, at);
    const size_t newline = before.rfind('\n');
    const int64_t line = element_.line + std::count(before.begin(), before.end(), '\n');
    const std::string column =
        newline == absl::string_view::npos
            ? ""
            : absl::StrCat(" column ", CountCharacters(before.substr(newline + 1)) + 1);
    return absl::InvalidArgumentError(absl::StrCat(source_->name(), " line ", line, column,
                                                   " (record ", index_,
                                                   "): ", value.status().message()));
  }
  if (!value->is_dict()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", value->KindName(), " where a JSON object is expected"));
  }
  return value;
}

}  // namespace soup::engine
