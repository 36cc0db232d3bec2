#include "engine/data/jinja/methods.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/text_format.h"
#include "engine/data/jinja/text_ops.h"
#include "engine/data/jinja/value_ops.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

// All of Python's public ones, so that one which is not supported is named and not "undefined".
constexpr absl::string_view kTextMethods[] = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr absl::string_view kListMethods[] = {"append", "clear",   "copy",   "count",
                                              "extend", "index",   "insert", "pop",
                                              "remove", "reverse", "sort"};
constexpr absl::string_view kDictMethods[] = {"clear",      "copy",   "fromkeys", "get",
                                              "items",      "keys",   "pop",      "popitem",
                                              "setdefault", "update", "values"};

template <size_t N>
bool In(const absl::string_view (&names)[N], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::Status NotSupported(const Value& self, const std::string& name) {
  return absl::InvalidArgumentError(
      absl::StrCat("method '", name, "' of ", self.KindName(), " is not supported"));
}

absl::StatusOr<Value> Texts(std::vector<std::string> texts, Budget* budget) {
  SOUP_RETURN_IF_ERROR(budget->Bytes(64 * static_cast<int64_t>(texts.size())));
  std::vector<Value> out;
  out.reserve(texts.size());
  for (std::string& t : texts) out.push_back(Value::String(std::move(t)));
  return Value::List(std::move(out));
}

// startswith and endswith: a text, or a tuple of them.
absl::StatusOr<Value> Affix(const std::string& text, const std::string& name,
                            const CallArgs& args) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"prefix"}, args));
  SOUP_ASSIGN_OR_RETURN(const Value affix, bound.Required("prefix"));
  const std::vector<Value> choices = affix.is_tuple() ? affix.AsList() : std::vector<Value>{affix};
  for (const Value& choice : choices) {
    if (!choice.is_string()) return TypeError(absl::StrCat("'", name, "'"), choice);
    if (name == "startswith" ? absl::StartsWith(text, choice.AsString())
                             : absl::EndsWith(text, choice.AsString()))
      return Value::Bool(true);
  }
  return Value::Bool(false);
}

absl::StatusOr<Value> Search(const std::string& text, const std::string& name,
                             const CallArgs& args) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"sub"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::string sub, bound.Text("sub"));
  if (name == "count") {
    if (sub.empty()) return Value::Int(static_cast<int64_t>(CountCharacters(text)) + 1);
    int64_t n = 0;
    for (size_t at = 0; (at = text.find(sub, at)) != std::string::npos; at += sub.size()) ++n;
    return Value::Int(n);
  }
  const bool last = name == "rfind" || name == "rindex";
  const size_t at = last ? text.rfind(sub) : text.find(sub);
  if (at != std::string::npos)
    return Value::Int(static_cast<int64_t>(CountCharacters(absl::string_view(text).substr(0, at))));
  if (name == "find" || name == "rfind") return Value::Int(-1);
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' does not find its text"));
}

absl::StatusOr<Value> SplitMethod(const std::string& text, const std::string& name,
                                  const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"sep", "maxsplit"}, args));
  std::optional<std::string> separator;
  const Value* given = bound.Find("sep");
  if (given != nullptr && !given->is_none()) {
    SOUP_ASSIGN_OR_RETURN(separator, bound.Text("sep"));
    if (separator->empty()) return absl::InvalidArgumentError("a split by an empty text");
  }
  SOUP_ASSIGN_OR_RETURN(const int64_t most, bound.IntOr("maxsplit", -1));
  return Texts(
      name == "split" ? Split(text, separator, most) : SplitFromRight(text, separator, most),
      budget);
}

absl::StatusOr<Value> StripMethod(const std::string& text, const std::string& name,
                                  const CallArgs& args) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"chars"}, args));
  std::optional<std::string> set;
  const Value* given = bound.Find("chars");
  if (given != nullptr && !given->is_none()) {
    SOUP_ASSIGN_OR_RETURN(set, bound.Text("chars"));
  }
  return Value::String(Strip(text, set, name != "rstrip", name != "lstrip"));
}

absl::StatusOr<Value> ReplaceMethod(const std::string& text, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("replace", {"old", "new", "count"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::string from, bound.Text("old"));
  SOUP_ASSIGN_OR_RETURN(const std::string to, bound.Text("new"));
  SOUP_ASSIGN_OR_RETURN(const int64_t count, bound.IntOr("count", -1));
  // The longest it can get, before it is made.
  const int64_t places = static_cast<int64_t>(text.size() / std::max<size_t>(from.size(), 1)) + 1;
  if (to.size() > from.size()) {
    int64_t growth;
    if (__builtin_mul_overflow(places, static_cast<int64_t>(to.size()), &growth))
      growth = INT64_MAX;
    SOUP_RETURN_IF_ERROR(budget->Bytes(growth));
  }
  return Value::String(Replace(text, from, to, count));
}

absl::StatusOr<Value> Partition(const std::string& text, const std::string& name,
                                const CallArgs& args) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"sep"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::string sep, bound.Text("sep"));
  if (sep.empty()) return absl::InvalidArgumentError("a partition by an empty text");
  const bool right = name == "rpartition";
  const size_t at = right ? text.rfind(sep) : text.find(sep);
  std::string part[3];
  if (at == std::string::npos) {
    part[right ? 2 : 0] = text;
  } else {
    part[0] = text.substr(0, at);
    part[1] = sep;
    part[2] = text.substr(at + sep.size());
  }
  return Value::List({Value::String(part[0]), Value::String(part[1]), Value::String(part[2])},
                     /*tuple=*/true);
}

absl::StatusOr<Value> JoinMethod(const std::string& text, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("join", {"iterable"}, args));
  SOUP_ASSIGN_OR_RETURN(const Value iterable, bound.Required("iterable"));
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(iterable, budget));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) return TypeError("'join'", items[i]);
    SOUP_RETURN_IF_ERROR(
        budget->Bytes(static_cast<int64_t>(items[i].AsString().size() + text.size())));
    absl::StrAppend(&out, i > 0 ? text : "", items[i].AsString());
  }
  return Value::String(std::move(out));
}

bool IsAsciiText(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

// isupper and islower: some cased character, and none of the other case.
bool HasCase(const std::string& text, bool upper) {
  bool any = false;
  for (size_t i = 0, n; i < text.size(); i += n) {
    const char32_t c = DecodeUtf8(text, i, &n);
    if (upper ? IsLower(c) : IsUpper(c)) return false;
    any |= upper ? IsUpper(c) : IsLower(c);
  }
  return any;
}

absl::StatusOr<Value> Pad(const std::string& text, const std::string& name, const CallArgs& args,
                          Budget* budget) {
  const bool zeros = name == "zfill";
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        zeros ? BoundArgs::Bind(name, {"width"}, args)
                              : BoundArgs::Bind(name, {"width", "fillchar"}, args));
  SOUP_RETURN_IF_ERROR(bound.Required("width").status());
  SOUP_ASSIGN_OR_RETURN(const int64_t width, bound.IntOr("width", 0));
  SOUP_ASSIGN_OR_RETURN(const std::string fill, bound.TextOr("fillchar", zeros ? "0" : " "));
  if (CountCharacters(fill) != 1)
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' fills with one character"));
  const auto size = static_cast<int64_t>(CountCharacters(text));
  if (width <= size) return Value::String(text);
  const int64_t missing = width - size;
  int64_t bytes;
  if (__builtin_mul_overflow(missing, static_cast<int64_t>(fill.size()), &bytes)) bytes = INT64_MAX;
  SOUP_RETURN_IF_ERROR(budget->Bytes(bytes));
  int64_t left = name == "ljust" ? 0 : missing;
  if (name == "center") left = missing / 2 + (missing & width & 1);
  std::string out;
  absl::string_view rest = text;
  if (zeros && !text.empty() && (text[0] == '+' || text[0] == '-')) {
    out.push_back(text[0]);
    rest.remove_prefix(1);
  }
  for (int64_t i = 0; i < left; ++i) out += fill;
  absl::StrAppend(&out, rest);
  for (int64_t i = left; i < missing; ++i) out += fill;
  return Value::String(std::move(out));
}

absl::StatusOr<Value> TextMethod(const Value& self, const std::string& name, const CallArgs& args,
                                 Budget* budget) {
  const std::string& text = self.AsString();
  SOUP_RETURN_IF_ERROR(budget->Steps(1 + static_cast<int64_t>(text.size() / 16)));
  SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(text.size())));
  if (name == "strip" || name == "lstrip" || name == "rstrip") return StripMethod(text, name, args);
  if (name == "split" || name == "rsplit") return SplitMethod(text, name, args, budget);
  if (name == "startswith" || name == "endswith") return Affix(text, name, args);
  if (name == "replace") return ReplaceMethod(text, args, budget);
  if (name == "partition" || name == "rpartition") return Partition(text, name, args);
  if (name == "join") return JoinMethod(text, args, budget);
  for (absl::string_view search : {"find", "rfind", "index", "rindex", "count"})
    if (name == search) return Search(text, name, args);
  if (name == "splitlines") {
    SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"keepends"}, args));
    return Texts(SplitLines(text, bound.FlagOr("keepends", false)), budget);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"affix"}, args));
    SOUP_ASSIGN_OR_RETURN(const std::string affix, bound.Text("affix"));
    const bool prefix = name == "removeprefix";
    if (prefix ? !absl::StartsWith(text, affix) : !absl::EndsWith(text, affix)) return self;
    return Value::String(text.substr(prefix ? affix.size() : 0, text.size() - affix.size()));
  }
  if (name == "format") {
    SOUP_ASSIGN_OR_RETURN(std::string out, BraceFormat(text, args, budget));
    return Value::String(std::move(out));
  }
  for (absl::string_view pad : {"center", "ljust", "rjust", "zfill"})
    if (name == pad) return Pad(text, name, args, budget);
  constexpr absl::string_view kPlain[] = {"upper",   "lower",   "title",   "capitalize", "isupper",
                                          "islower", "isspace", "isalpha", "isdigit",    "isalnum"};
  if (!In(kPlain, name)) return NotSupported(self, name);
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind(name, {}, args).status());
  if (name == "upper") return Value::String(Upper(text));
  if (name == "lower") return Value::String(Lower(text));
  if (name == "title") return Value::String(TitleMethod(text));
  if (name == "capitalize") return Value::String(Capitalize(text));
  if (name == "isupper") return Value::Bool(HasCase(text, true));
  if (name == "islower") return Value::Bool(HasCase(text, false));
  if (name == "isspace") return Value::Bool(AllOf(text, &IsPythonSpace));
  if (name == "isalpha") return Value::Bool(AllOf(text, &IsLetter));
  if (name == "isdigit" && IsAsciiText(text))
    return Value::Bool(AllOf(text, [](char32_t c) { return c >= '0' && c <= '9'; }));
  if (name == "isalnum" && IsAsciiText(text))
    return Value::Bool(AllOf(text, [](char32_t c) { return IsWord(c) && c != '_'; }));
  return NotSupported(self, name);
}

absl::StatusOr<Value> ListMethod(const Value& self, const std::string& name, const CallArgs& args,
                                 Budget* budget) {
  if (name != "index" && name != "count") {
    if (name == "copy") {
      SOUP_RETURN_IF_ERROR(BoundArgs::Bind(name, {}, args).status());
      if (!self.is_tuple()) return self;
      return NotSupported(self, name);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("method '", name, "' would change a list, which a template may not"));
  }
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"value"}, args));
  SOUP_ASSIGN_OR_RETURN(const Value wanted, bound.Required("value"));
  int64_t count = 0;
  for (size_t i = 0; i < self.AsList().size(); ++i) {
    SOUP_ASSIGN_OR_RETURN(const bool same, Equal(self.AsList()[i], wanted, budget));
    if (same && name == "index") return Value::Int(static_cast<int64_t>(i));
    count += same;
  }
  if (name == "count") return Value::Int(count);
  return absl::InvalidArgumentError("'index' does not find its value");
}

absl::StatusOr<Value> DictMethod(const Value& self, const std::string& name, const CallArgs& args,
                                 Budget* budget) {
  if (name == "get") {
    SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, {"key", "default"}, args));
    SOUP_ASSIGN_OR_RETURN(const Value key, bound.Required("key"));
    const Value* found = key.is_string() ? self.Find(key.AsString()) : nullptr;
    if (found != nullptr) return *found;
    const Value* otherwise = bound.Find("default");
    return otherwise != nullptr ? *otherwise : Value::None();
  }
  if (name != "keys" && name != "values" && name != "items") {
    if (name == "copy") {
      SOUP_RETURN_IF_ERROR(BoundArgs::Bind(name, {}, args).status());
      return self;
    }
    if (name == "fromkeys") return NotSupported(self, name);
    return absl::InvalidArgumentError(
        absl::StrCat("method '", name, "' would change an object, which a template may not"));
  }
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind(name, {}, args).status());
  SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(self.AsDict().size())));
  std::vector<Value> out;
  for (const auto& [key, value] : self.AsDict()) {
    if (name == "values") {
      out.push_back(value);
    } else if (name == "keys") {
      out.push_back(Value::String(key));
    } else {
      SOUP_ASSIGN_OR_RETURN(Value pair, Value::List({Value::String(key), value}, /*tuple=*/true));
      out.push_back(std::move(pair));
    }
  }
  return Value::List(std::move(out));
}

}  // namespace

bool IsMethod(const Value& self, absl::string_view name) {
  if (self.is_string()) return In(kTextMethods, name);
  if (self.is_list()) return In(kListMethods, name);
  return self.is_dict() && In(kDictMethods, name);
}

absl::StatusOr<Value> CallMethod(const Value& self, const std::string& name, const CallArgs& args,
                                 Budget* budget) {
  if (self.is_string()) return TextMethod(self, name, args, budget);
  if (self.is_list()) return ListMethod(self, name, args, budget);
  return DictMethod(self, name, args, budget);
}

}  // namespace soup::engine::jinja
