// Filters of one value: texts, numbers, JSON. Those that go over a list lie in list_filters.cc.
#include "engine/data/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/list_filters.h"
#include "engine/data/jinja/methods.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/text_format.h"
#include "engine/data/jinja/text_ops.h"
#include "engine/data/jinja/value_ops.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

using Function = absl::StatusOr<Value> (*)(const Value&, const CallArgs&, Budget*);

// soft_str(): filters on texts take anything that has a text.
absl::StatusOr<std::string> TextOf(const Value& v, Budget* budget) { return ToText(v, budget); }

template <std::string (*kTransform)(absl::string_view)>
absl::StatusOr<Value> Transform(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("filter", {}, args).status());
  SOUP_ASSIGN_OR_RETURN(const std::string text, TextOf(v, budget));
  return Value::String(kTransform(text));
}

absl::StatusOr<Value> Trim(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("trim", {"chars"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::string text, TextOf(v, budget));
  std::optional<std::string> set;
  const Value* given = bound.Find("chars");
  if (given != nullptr && !given->is_none()) {
    SOUP_ASSIGN_OR_RETURN(set, bound.Text("chars"));
  }
  return Value::String(Strip(text, set, true, true));
}

absl::StatusOr<Value> ReplaceFilter(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(std::string text, TextOf(v, budget));
  CallArgs texts = args;  // old and new may be anything that has a text
  for (size_t i = 0; i < std::min<size_t>(texts.positional.size(), 2); ++i) {
    SOUP_ASSIGN_OR_RETURN(std::string part, TextOf(texts.positional[i], budget));
    texts.positional[i] = Value::String(std::move(part));
  }
  return CallMethod(Value::String(std::move(text)), "replace", texts, budget);
}

absl::StatusOr<Value> Default(const Value& v, const CallArgs& args, Budget*) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("default", {"default_value", "boolean"}, args));
  if (!v.is_undefined() && (!bound.FlagOr("boolean", false) || Truth(v))) return v;
  const Value* otherwise = bound.Find("default_value");
  return otherwise != nullptr ? *otherwise : Value::String("");
}

absl::StatusOr<Value> ToJsonFilter(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(
      const BoundArgs bound,
      BoundArgs::Bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, args));
  // The first positional argument is ensure_ascii in Hugging Face's tojson, but indent in jinja2's:
  // a template that leaves the name out is not clear.
  if (!args.positional.empty())
    return absl::InvalidArgumentError("'tojson' takes named arguments only");
  JsonOptions options;
  options.ensure_ascii = bound.FlagOr("ensure_ascii", false);
  options.sort_keys = bound.FlagOr("sort_keys", false);
  const Value* indent = bound.Find("indent");
  if (indent != nullptr && indent->is_string()) {
    options.indent = indent->AsString();
  } else if (indent != nullptr && !indent->is_none()) {
    SOUP_ASSIGN_OR_RETURN(const int64_t width, bound.IntOr("indent", 0));
    if (width > 64) return absl::InvalidArgumentError("'tojson' with an indent over 64");
    options.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  if (options.indent) options.item_separator = ",";
  const Value* separators = bound.Find("separators");
  if (separators != nullptr && !separators->is_none()) {
    if (!separators->is_list() || separators->AsList().size() != 2 ||
        !separators->AsList()[0].is_string() || !separators->AsList()[1].is_string())
      return absl::InvalidArgumentError("'tojson' needs two texts as separators");
    options.item_separator = separators->AsList()[0].AsString();
    options.key_separator = separators->AsList()[1].AsString();
  }
  SOUP_ASSIGN_OR_RETURN(std::string text, ToJson(v, options, budget));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> LengthFilter(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("length", {}, args).status());
  SOUP_ASSIGN_OR_RETURN(const int64_t length, Length(v, budget));
  return Value::Int(length);
}

absl::StatusOr<Value> StringFilter(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("string", {}, args).status());
  SOUP_ASSIGN_OR_RETURN(std::string text, TextOf(v, budget));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Itself(const Value& v, const CallArgs& args, Budget*) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("safe", {}, args).status());
  return v;
}

// int(): whole numbers in a text, else the float's whole part, else the default.
absl::StatusOr<Value> IntFilter(const Value& v, const CallArgs& args, Budget*) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("int", {"default"}, args));
  const Value* given = bound.Find("default");
  const Value otherwise = given != nullptr ? *given : Value::Int(0);
  double real = 0;
  if (v.is_int()) return v;
  if (v.is_bool()) return Value::Int(v.AsBool() ? 1 : 0);
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_float()) {
    real = v.AsFloat();
  } else if (v.is_string()) {
    const std::string text = Strip(v.AsString(), std::nullopt, true, true);
    int64_t whole;
    if (absl::SimpleAtoi(text, &whole)) return Value::Int(whole);
    if (!absl::SimpleAtod(text, &real)) return otherwise;
  } else {
    return otherwise;
  }
  if (std::isnan(real) || std::isinf(real)) return otherwise;
  if (std::fabs(real) >= 9.2e18) return absl::InvalidArgumentError("an integer beyond 64 bits");
  return Value::Int(static_cast<int64_t>(real));
}

absl::StatusOr<Value> FloatFilter(const Value& v, const CallArgs& args, Budget*) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("float", {"default"}, args));
  const Value* given = bound.Find("default");
  if (v.is_float()) return v;
  if (v.is_int()) return Value::Float(static_cast<double>(v.AsInt()));
  if (v.is_bool()) return Value::Float(v.AsBool() ? 1 : 0);
  if (v.is_undefined()) return UndefinedError(v);
  double real;
  if (v.is_string() && absl::SimpleAtod(Strip(v.AsString(), std::nullopt, true, true), &real))
    return Value::Float(real);
  return given != nullptr ? *given : Value::Float(0);
}

absl::StatusOr<Value> Abs(const Value& v, const CallArgs& args, Budget*) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("abs", {}, args).status());
  if (v.is_float()) return Value::Float(std::fabs(v.AsFloat()));
  if (v.is_int() && v.AsInt() < 0) return Negate(v);
  if (v.is_int()) return v;
  if (v.is_bool()) return Value::Int(v.AsBool() ? 1 : 0);
  return TypeError("'abs'", v);
}

absl::StatusOr<Value> Round(const Value& v, const CallArgs& args, Budget*) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("round", {"precision", "method"}, args));
  SOUP_ASSIGN_OR_RETURN(const int64_t precision, bound.IntOr("precision", 0));
  SOUP_ASSIGN_OR_RETURN(const std::string method, bound.TextOr("method", "common"));
  if (method != "common" && method != "ceil" && method != "floor")
    return absl::InvalidArgumentError("'round' has the methods common, ceil and floor");
  if (!v.is_number()) return TypeError("'round'", v);
  if (precision < 0 || precision > 15)
    return absl::InvalidArgumentError("'round' with such a precision is not supported");
  if (method == "common") {
    if (!v.is_float()) return v.is_int() ? v : Value::Int(v.AsBool() ? 1 : 0);
    if (!std::isfinite(v.AsFloat())) return v;
    char buffer[512];  // printf rounds the exact value, ties to even, as Python does
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), v.AsFloat());
    return Value::Float(std::strtod(buffer, nullptr));
  }
  const double value =
      v.is_float() ? v.AsFloat() : static_cast<double>(v.is_int() ? v.AsInt() : v.AsBool());
  if (!std::isfinite(value) || std::fabs(value) > 9e15)
    return absl::InvalidArgumentError("'round' of such a number is not supported");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double whole = method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale);
  return Value::Float((whole + 0.0) / scale);
}

absl::StatusOr<Value> FormatFilter(const Value& v, const CallArgs& args, Budget* budget) {
  if (!args.named.empty() && !args.positional.empty())
    return absl::InvalidArgumentError("'format' takes positional or named values, not both");
  SOUP_ASSIGN_OR_RETURN(const std::string format, TextOf(v, budget));
  Value values;
  if (!args.named.empty()) {
    SOUP_ASSIGN_OR_RETURN(values, Value::Dict({args.named.begin(), args.named.end()}));
  } else {
    SOUP_ASSIGN_OR_RETURN(values, Value::List(args.positional, /*tuple=*/true));
  }
  SOUP_ASSIGN_OR_RETURN(std::string text, PercentFormat(format, values, budget));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> WordCount(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("wordcount", {}, args).status());
  SOUP_ASSIGN_OR_RETURN(const std::string text, TextOf(v, budget));
  SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(text.size() / 16)));
  int64_t words = 0;
  bool within = false;
  for (size_t i = 0, n; i < text.size(); i += n) {
    const char32_t c = DecodeUtf8(text, i, &n);
    const bool word = IsLetter(c) || IsNumeric(c) || c == '_';  // Python's \w
    words += word && !within;
    within = word;
  }
  return Value::Int(words);
}

absl::StatusOr<Value> Truncate(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(
      const BoundArgs bound,
      BoundArgs::Bind("truncate", {"length", "killwords", "end", "leeway"}, args));
  SOUP_ASSIGN_OR_RETURN(const int64_t length, bound.IntOr("length", 255));
  SOUP_ASSIGN_OR_RETURN(const int64_t leeway, bound.IntOr("leeway", 5));
  SOUP_ASSIGN_OR_RETURN(const std::string end, bound.TextOr("end", "..."));
  const auto end_size = static_cast<int64_t>(CountCharacters(end));
  if (length < end_size || leeway < 0)
    return absl::InvalidArgumentError("'truncate' to less than its end");
  SOUP_ASSIGN_OR_RETURN(const int64_t size, Length(v, budget));
  if (length >= size || size - length <= leeway) return v;
  SOUP_ASSIGN_OR_RETURN(const Value head, Slice(v, Value::None(), Value::Int(length - end_size),
                                                Value::None(), budget));
  if (!head.is_string()) return TypeError("'truncate'", v);
  std::string kept = head.AsString();
  if (!bound.FlagOr("killwords", false)) kept = kept.substr(0, kept.rfind(' '));
  return Value::String(kept + end);
}

absl::StatusOr<Value> Center(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(std::string text, TextOf(v, budget));
  CallArgs width = args;
  if (width.positional.empty() && width.named.empty()) width.positional.push_back(Value::Int(80));
  return CallMethod(Value::String(std::move(text)), "center", width, budget);
}

absl::StatusOr<Value> Indent(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("indent", {"width", "first", "blank"}, args));
  if (!v.is_string()) return TypeError("'indent'", v);
  const std::string& text = v.AsString();
  const Value* width = bound.Find("width");
  std::string indent;
  if (width != nullptr && width->is_string()) {
    indent = width->AsString();
  } else {
    SOUP_ASSIGN_OR_RETURN(const int64_t n, bound.IntOr("width", 4));
    if (n > 1024) return absl::InvalidArgumentError("'indent' with a width over 1024");
    indent = std::string(static_cast<size_t>(std::max<int64_t>(n, 0)), ' ');
  }
  const std::vector<std::string> lines = SplitLines(text + "\n", /*keep_ends=*/false);
  SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(lines.size() * (indent.size() + 1))));
  const bool blank = bound.FlagOr("blank", false);
  std::string out = bound.FlagOr("first", false) ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) absl::StrAppend(&out, "\n", blank || !lines[i].empty() ? indent : "");
    out += lines[i];
  }
  return Value::String(std::move(out));
}

struct Entry {
  absl::string_view name;
  Function function;
};
constexpr Entry kFilters[] = {
    {"abs", &Abs},
    {"capitalize", &Transform<&Capitalize>},
    {"center", &Center},
    {"count", &LengthFilter},
    {"d", &Default},
    {"default", &Default},
    {"float", &FloatFilter},
    {"format", &FormatFilter},
    {"indent", &Indent},
    {"int", &IntFilter},
    {"length", &LengthFilter},
    {"lower", &Transform<&Lower>},
    {"replace", &ReplaceFilter},
    {"round", &Round},
    {"safe", &Itself},
    {"string", &StringFilter},
    {"title", &Transform<&TitleFilter>},
    {"tojson", &ToJsonFilter},
    {"trim", &Trim},
    {"truncate", &Truncate},
    {"upper", &Transform<&Upper>},
    {"wordcount", &WordCount},
};

const Entry* FindFilter(absl::string_view name) {
  const auto* it = std::find_if(std::begin(kFilters), std::end(kFilters),
                                [name](const Entry& e) { return e.name == name; });
  return it == std::end(kFilters) ? nullptr : it;
}

}  // namespace

bool IsFilter(absl::string_view name) { return FindFilter(name) != nullptr || IsListFilter(name); }

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value, const CallArgs& args,
                                  Budget* budget) {
  SOUP_RETURN_IF_ERROR(budget->Steps(1));
  if (const Entry* entry = FindFilter(name)) return entry->function(value, args, budget);
  return ApplyListFilter(name, value, args, budget);
}

}  // namespace soup::engine::jinja
