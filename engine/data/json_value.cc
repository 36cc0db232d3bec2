#include "engine/data/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

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
    }
    return false;
  }

  Value& result() { return result_; }
  const std::string& reason() const { return reason_; }
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
};

}  // namespace

absl::StatusOr<Value> ParseJsonValue(absl::string_view text) {
  Builder builder;
  bool ok = false;
  try {
    ok = Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("column 1: not valid JSON: ", e.what()));
  }
  if (ok) return std::move(builder.result());
  if (builder.position() == 0) return absl::InvalidArgumentError(builder.reason());
  const size_t before = std::min(builder.position() - 1, text.size());
  return absl::InvalidArgumentError(
      absl::StrCat("column ", CountCharacters(text.substr(0, before)) + 1, ": ", builder.reason()));
}

}  // namespace soup::engine
