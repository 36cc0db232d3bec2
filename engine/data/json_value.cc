#include "engine/data/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

using Json = nlohmann::json;

// Builds a Value from the parser's events; any handler may stop it with a reason.
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Put(Value::None()); }
  bool boolean(bool b) override { return Put(Value::Bool(b)); }
  bool number_integer(number_integer_t i) override { return Put(Value::Int(i)); }
  bool number_unsigned(number_unsigned_t u) override {
    if (u > static_cast<uint64_t>(INT64_MAX)) return Stop("an integer beyond 64 bits");
    return Put(Value::Int(static_cast<int64_t>(u)));
  }
  bool number_float(number_float_t d, const string_t& spelling) override {
    if (spelling.find_first_of(".eE") == string_t::npos) return Stop("an integer beyond 64 bits");
    return Put(Value::Float(d));
  }
  bool string(string_t& s) override { return Put(Value::String(std::move(s))); }
  bool binary(binary_t&) override { return Stop("a binary value"); }

  bool start_object(size_t) override { return Open(/*dict=*/true); }
  bool key(string_t& k) override {
    Level& top = levels_.back();
    if (!top.keys.emplace(k, true).second)
      return Stop(absl::StrCat("key '", k, "' is there twice"));
    top.items.emplace_back(std::move(k), Value());
    return true;
  }
  bool end_object() override {
    auto value = Value::Dict(std::move(levels_.back().items));
    levels_.pop_back();
    return value.ok() ? Put(*std::move(value)) : Stop(value.status().message());
  }
  bool start_array(size_t) override { return Open(/*dict=*/false); }
  bool end_array() override {
    auto value = Value::List(std::move(levels_.back().elements));
    levels_.pop_back();
    return value.ok() ? Put(*std::move(value)) : Stop(value.status().message());
  }
  bool parse_error(size_t position, const std::string&, const Json::exception& e) override {
    position_ = position;
    const absl::string_view what = e.what();
    if (absl::StrContains(what, "surrogate")) {
      reason_ = "half of a surrogate pair (\\ud800 to \\udfff) without its other half";
    } else if (absl::StrContains(what, "out_of_range")) {
      reason_ = "a number out of range";
    } else {
      reason_ = "not valid JSON";
      is_syntax_ = true;
    }
    return false;
  }

  Value& result() { return result_; }
  const std::string& reason() const { return reason_; }
  bool is_syntax() const { return is_syntax_; }
  size_t position() const { return position_; }  // bytes read; 0: not known

 private:
  struct Level {
    bool dict;
    Value::Items items;
    absl::flat_hash_map<std::string, bool> keys;
    std::vector<Value> elements;
  };

  bool Stop(absl::string_view reason) {
    reason_ = std::string(reason);
    return false;
  }
  bool Open(bool dict) {
    if (levels_.size() >= static_cast<size_t>(Value::kMaxDepth))
      return Stop(absl::StrCat("values nested deeper than ", Value::kMaxDepth));
    levels_.push_back({dict, {}, {}, {}});
    return true;
  }
  bool Put(Value v) {
    if (levels_.empty()) {
      result_ = std::move(v);
    } else if (levels_.back().dict) {
      levels_.back().items.back().second = std::move(v);
    } else {
      levels_.back().elements.push_back(std::move(v));
    }
    return true;
  }

  std::vector<Level> levels_;
  Value result_;
  std::string reason_;
  size_t position_ = 0;
  bool is_syntax_ = false;
};

// What other programs write where JSON has something else, found at a syntax error; else empty.
std::string Habit(absl::string_view text, size_t at) {
  const auto is_word = [](char c) { return absl::ascii_isalpha(c); };
  size_t begin = std::min(at, text.size()), end = begin;
  while (begin > 0 && is_word(text[begin - 1])) --begin;
  while (end < text.size() && is_word(text[end])) ++end;
  const absl::string_view word = text.substr(begin, end - begin);
  for (absl::string_view known :
       {"NaN", "nan", "Infinity", "inf", "None", "True", "False", "undefined"}) {
    if (word == known) {
      return absl::StrCat(": ", known,
                          " is no JSON value (JSON has null, true, false and numbers)");
    }
  }
  if (at >= text.size()) return ": it ends in the middle";
  if (text[at] == '\0')
    return ": a zero byte (was the file cut off, or padded?); in a text it is written \\u0000";
  if (static_cast<unsigned char>(text[at]) < 0x20 && text[at] != '\n' && text[at] != '\r') {
    return absl::StrCat(": a control character, 0x",
                        absl::Hex(static_cast<unsigned char>(text[at]), absl::kZeroPad2),
                        "; in a text it is written \\u00",
                        absl::Hex(static_cast<unsigned char>(text[at]), absl::kZeroPad2));
  }
  if (text[at] == '\'') return ": texts stand in double quotes";
  const size_t last = at == 0 ? absl::string_view::npos : text.find_last_not_of(" \t", at - 1);
  const bool after_whole = last != absl::string_view::npos && text[0] == '{' && text[last] == '}';
  if (text[at] == ',' && after_whole)
    return ": a comma after the record (a JSON array without its brackets?)";
  if (text[at] == '{' && last != absl::string_view::npos && text[last] == '\r')
    return ": the line ends are carriage returns alone; save the file with line feeds";
  if (text[at] == '{' && after_whole) return ": two records on one line";
  if (text[at] == '}' || text[at] == ']') {
    const size_t before = text.find_last_not_of(" \t\r\n", at > 0 ? at - 1 : 0);
    if (at > 0 && before != absl::string_view::npos && text[before] == ',')
      return absl::StrCat(": a comma too many before '", text.substr(at, 1), "'");
  }
  return "";
}

}  // namespace

absl::StatusOr<Value> ParseJsonValue(absl::string_view text, size_t* error_at) {
  *error_at = absl::string_view::npos;
  Builder builder;
  bool ok = false;
  try {
    ok = Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const std::exception& e) {
    *error_at = 0;
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON: ", e.what()));
  }
  if (ok) return std::move(builder.result());
  if (builder.position() == 0) return absl::InvalidArgumentError(builder.reason());
  *error_at = std::min(builder.position() - 1, text.size());
  return absl::InvalidArgumentError(
      absl::StrCat(builder.reason(), builder.is_syntax() ? Habit(text, *error_at) : ""));
}

absl::StatusOr<Value> ParseJsonValue(absl::string_view text) {
  size_t at = 0;
  auto value = ParseJsonValue(text, &at);
  if (value.ok() || at == absl::string_view::npos) return value;
  return absl::InvalidArgumentError(absl::StrCat("column ", CountCharacters(text.substr(0, at)) + 1,
                                                 ": ", value.status().message()));
}

}  // namespace soup::engine
