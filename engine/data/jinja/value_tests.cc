#include "engine/data/jinja/value_tests.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/text_ops.h"
#include "engine/data/jinja/value_ops.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

using Plain = bool (*)(const Value&);

// Tests of one value alone.
struct PlainTest {
  absl::string_view name;
  Plain holds;
};
constexpr PlainTest kPlain[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.AsBool(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.AsBool(); }},
    {"integer", [](const Value& v) { return v.is_int(); }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"mapping", [](const Value& v) { return v.is_dict(); }},
    // Python's iter() and len() take an undefined value too.
    {"iterable",
     [](const Value& v) {
       return v.is_list() || v.is_dict() || v.is_string() || v.is_undefined();
     }},
    {"sequence",
     [](const Value& v) {
       return v.is_list() || v.is_dict() || v.is_string() || v.is_undefined();
     }},
    {"callable", [](const Value& v) { return v.is_object(); }},
};

// Those that compare with an argument, under each of their names.
constexpr absl::string_view kCompare[][5] = {
    {"eq", "==", "equalto", "", ""},    {"ne", "!=", "", "", ""},
    {"lt", "<", "lessthan", "", ""},    {"le", "<=", "", "", ""},
    {"gt", ">", "greaterthan", "", ""}, {"ge", ">=", "", "", ""}};
constexpr absl::string_view kOthers[] = {"in",          "sameas", "odd",  "even",
                                         "divisibleby", "lower",  "upper"};

const PlainTest* FindPlain(absl::string_view name) {
  const auto* it = std::find_if(std::begin(kPlain), std::end(kPlain),
                                [name](const PlainTest& t) { return t.name == name; });
  return it == std::end(kPlain) ? nullptr : it;
}

// The first name of a comparison, or empty.
absl::string_view CompareName(absl::string_view name) {
  for (const auto& names : kCompare)
    if (!name.empty() && std::find(std::begin(names), std::end(names), name) != std::end(names))
      return names[0];
  return {};
}

absl::StatusOr<bool> Compare(absl::string_view name, const Value& a, const Value& b,
                             Budget* budget) {
  if (name == "eq" || name == "ne") {
    SOUP_ASSIGN_OR_RETURN(const bool same, Equal(a, b, budget));
    return same == (name == "eq");
  }
  SOUP_ASSIGN_OR_RETURN(const int order, Order(a, b, budget));
  if (name == "lt") return order < 0;
  if (name == "le") return order <= 0;
  if (name == "gt") return order > 0;
  return order >= 0;
}

absl::StatusOr<bool> Same(const Value& a, const Value& b, Budget* budget) {
  if (a.kind() != b.kind()) return false;
  if (a.is_none() || a.is_bool() || a.is_object()) return Equal(a, b, budget);
  return absl::InvalidArgumentError(
      absl::StrCat("test 'sameas' between ", a.KindName(), "s is not supported"));
}

}  // namespace

bool IsTest(absl::string_view name) {
  return FindPlain(name) != nullptr || !CompareName(name).empty() ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value, const CallArgs& args,
                               Budget* budget) {
  SOUP_RETURN_IF_ERROR(budget->Steps(1));
  if (const PlainTest* plain = FindPlain(name)) {
    SOUP_RETURN_IF_ERROR(BoundArgs::Bind(name, {}, args).status());
    return plain->holds(value);
  }
  if (name == "lower" || name == "upper") {
    SOUP_RETURN_IF_ERROR(BoundArgs::Bind(name, {}, args).status());
    SOUP_ASSIGN_OR_RETURN(const std::string text, ToText(value, budget));
    const bool upper = name == "upper";
    bool cased = false;
    for (size_t i = 0, n; i < text.size(); i += n) {
      const char32_t c = DecodeUtf8(text, i, &n);
      if (upper ? IsLower(c) : IsUpper(c)) return false;
      cased |= upper ? IsUpper(c) : IsLower(c);
    }
    return cased;
  }
  if (name == "odd" || name == "even") {
    SOUP_RETURN_IF_ERROR(BoundArgs::Bind(name, {}, args).status());
    SOUP_ASSIGN_OR_RETURN(const Value rest, Arithmetic("%", value, Value::Int(2), budget));
    return Equal(rest, Value::Int(name == "odd" ? 1 : 0), budget);
  }
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"other"}, args));
  SOUP_ASSIGN_OR_RETURN(const Value other, bound.Required("other"));
  if (name == "in") return Contains(other, value, budget);
  if (name == "sameas") return Same(value, other, budget);
  if (name == "divisibleby") {
    SOUP_ASSIGN_OR_RETURN(const Value rest, Arithmetic("%", value, other, budget));
    return Equal(rest, Value::Int(0), budget);
  }
  return Compare(CompareName(name), value, other, budget);
}

}  // namespace soup::engine::jinja
