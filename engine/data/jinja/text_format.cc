#include "engine/data/jinja/text_format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/methods.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/text_ops.h"
#include "engine/data/jinja/value_ops.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

constexpr int64_t kMaxWidth = 4096;     // of a field, and of its digits
constexpr int64_t kMaxPrecision = 300;  // of a number

// [[fill]align][sign][#][0][width][,][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > = ^; 0: not told
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = 0;  // ',' or '_'
  int64_t precision = -1;
  char type = 0;
};

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

bool IsWhole(const Value& v) { return v.is_int() || v.is_bool(); }
int64_t Whole(const Value& v) { return v.is_bool() ? static_cast<int64_t>(v.AsBool()) : v.AsInt(); }

// A number's digits with its sign and what fills the field; `prefix`: "0x" and the like.
std::string PutNumber(bool negative, absl::string_view prefix, std::string digits,
                      const Spec& spec) {
  std::string head = negative ? "-" : (spec.sign == '-' ? "" : std::string(1, spec.sign));
  absl::StrAppend(&head, prefix);
  if (spec.grouping != 0) {
    const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    const int64_t group = spec.type == 'x' || spec.type == 'X' || spec.type == 'b' ? 4 : 3;
    for (int64_t at = static_cast<int64_t>(whole) - group; at > 0; at -= group)
      digits.insert(static_cast<size_t>(at), 1, spec.grouping);
  }
  const auto size = static_cast<int64_t>(head.size() + digits.size());
  std::string pad;
  for (int64_t i = size; i < spec.width; ++i) pad += spec.fill;
  switch (spec.align == 0 ? '>' : spec.align) {
    case '<':
      return absl::StrCat(head, digits, pad);
    case '=':
      return absl::StrCat(head, pad, digits);
    case '^': {
      const size_t left = pad.size() / spec.fill.size() / 2 * spec.fill.size();
      return absl::StrCat(pad.substr(0, left), head, digits, pad.substr(left));
    }
    default:
      return absl::StrCat(pad, head, digits);
  }
}

std::string PutText(absl::string_view text, const Spec& spec) {
  std::string out(text);
  if (spec.precision >= 0) {
    size_t at = 0, n;
    for (int64_t i = 0; i < spec.precision && at < out.size(); ++i, at += n)
      DecodeUtf8(out, at, &n);
    out.resize(at);
  }
  const auto size = static_cast<int64_t>(CountCharacters(out));
  const int64_t pad = std::max<int64_t>(0, spec.width - size);
  const int64_t left = spec.align == '>' ? pad : (spec.align == '^' ? pad / 2 : 0);
  std::string before, after;
  for (int64_t i = 0; i < left; ++i) before += spec.fill;
  for (int64_t i = left; i < pad; ++i) after += spec.fill;
  return absl::StrCat(before, out, after);
}

std::string WholeDigits(uint64_t magnitude, char type) {
  if (type == 'x') return absl::StrFormat("%x", magnitude);
  if (type == 'X') return absl::StrFormat("%X", magnitude);
  if (type == 'o') return absl::StrFormat("%o", magnitude);
  if (type != 'b') return absl::StrCat(magnitude);
  std::string out;
  for (; magnitude > 0; magnitude >>= 1) out.insert(out.begin(), magnitude & 1 ? '1' : '0');
  return out.empty() ? "0" : out;
}

std::string PutWhole(int64_t value, const Spec& spec) {
  const uint64_t magnitude =
      value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string prefix;
  if (spec.alternate &&
      (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b'))
    prefix = absl::StrCat("0", std::string(1, spec.type));
  std::string digits = WholeDigits(magnitude, spec.type);
  if (spec.precision > static_cast<int64_t>(digits.size()))  // of % alone: least digits
    digits = std::string(static_cast<size_t>(spec.precision) - digits.size(), '0').append(digits);
  return PutNumber(value < 0, prefix, std::move(digits), spec);
}

// C's printf rounds as Python does.
std::string RealDigits(double magnitude, const Spec& spec) {
  const bool upper = spec.type >= 'A' && spec.type <= 'Z';
  if (!std::isfinite(magnitude)) {
    if (std::isnan(magnitude)) return upper ? "NAN" : "nan";
    return upper ? "INF" : "inf";
  }
  const bool percent = spec.type == '%';
  const std::string format =
      absl::StrCat("%", spec.alternate ? "#" : "", ".*", std::string(1, percent ? 'f' : spec.type));
  char buffer[1024];  // 309 digits, kMaxPrecision more
  const int n = std::snprintf(buffer, sizeof buffer, format.c_str(),
                              spec.precision < 0 ? 6 : static_cast<int>(spec.precision),
                              percent ? magnitude * 100 : magnitude);
  return absl::StrCat(absl::string_view(buffer, static_cast<size_t>(n)), percent ? "%" : "");
}

std::string PutReal(double value, const Spec& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  return PutNumber(negative, "", RealDigits(std::fabs(value), spec), spec);
}

absl::StatusOr<int64_t> ReadNumber(absl::string_view text, size_t* at, int64_t most) {
  int64_t out = 0;
  for (; *at < text.size() && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
    out = out * 10 + (text[*at] - '0');
    if (out > most) return Bad(absl::StrCat("a format with a number over ", most));
  }
  return out;
}

// ---- % ----

class Percent {
 public:
  Percent(absl::string_view format, const Value& args, Budget* budget)
      : format_(format), args_(args), budget_(budget) {
    mapping_ = args.is_dict() || args.is_undefined() || (args.is_list() && !args.is_tuple());
  }

  absl::StatusOr<std::string> Run() {
    std::string out;
    for (at_ = 0; at_ < format_.size();) {
      if (format_[at_] != '%') {
        out.push_back(format_[at_++]);
        continue;
      }
      ++at_;
      SOUP_ASSIGN_OR_RETURN(const std::string text, One());
      SOUP_RETURN_IF_ERROR(budget_->Bytes(static_cast<int64_t>(text.size())));
      out += text;
    }
    const size_t given = args_.is_tuple() ? args_.AsList().size() : 1;
    if (used_ < given && !mapping_) return Bad("'%' formatting does not use all of its values");
    return out;
  }

 private:
  absl::StatusOr<Value> Next() {
    if (key_) {
      if (!args_.is_dict()) return Bad("'%(name)' formatting needs an object");
      const Value* found = args_.Find(*key_);
      if (found == nullptr) return Bad(absl::StrCat("'%' formatting finds no key '", *key_, "'"));
      return *found;
    }
    if (!args_.is_tuple()) {
      if (used_++ > 0) return Bad("'%' formatting has too few values");
      return args_;
    }
    if (used_ >= args_.AsList().size()) return Bad("'%' formatting has too few values");
    return args_.AsList()[used_++];
  }

  absl::StatusOr<int64_t> StarOrNumber(int64_t most) {
    if (at_ < format_.size() && format_[at_] == '*')
      return Bad("'*' in '%' formatting is not supported");
    return ReadNumber(format_, &at_, most);
  }

  absl::StatusOr<std::string> One() {
    Spec spec;
    key_.reset();
    if (at_ < format_.size() && format_[at_] == '(') {
      const size_t close = format_.find(')', at_);
      if (close == absl::string_view::npos) return Bad("'%' formatting with an open '('");
      key_ = std::string(format_.substr(at_ + 1, close - at_ - 1));
      if (key_->find('(') != std::string::npos)
        return Bad("'(' within a '%' format's name is not supported");
      at_ = close + 1;
    }
    bool zero = false;
    for (; at_ < format_.size(); ++at_) {
      const char c = format_[at_];
      if (c == '-') {
        spec.align = '<';
      } else if (c == '+') {
        spec.sign = '+';
      } else if (c == ' ') {
        if (spec.sign != '+') spec.sign = ' ';
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '0') {
        zero = true;
      } else {
        break;
      }
    }
    SOUP_ASSIGN_OR_RETURN(spec.width, StarOrNumber(kMaxWidth));
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      SOUP_ASSIGN_OR_RETURN(spec.precision, StarOrNumber(kMaxWidth));
    }
    while (at_ < format_.size() &&
           (format_[at_] == 'l' || format_[at_] == 'h' || format_[at_] == 'L'))
      ++at_;
    if (at_ >= format_.size()) return Bad("an incomplete '%' format");
    spec.type = format_[at_++];
    if (spec.type == '%') return std::string("%");
    SOUP_ASSIGN_OR_RETURN(const Value value, Next());
    return Write(value, spec, zero);
  }

  absl::StatusOr<std::string> Write(const Value& value, Spec spec, bool zero) {
    const char type = spec.type;
    if (type == 's' || type == 'r') {
      SOUP_ASSIGN_OR_RETURN(const std::string text,
                            type == 's' ? ToText(value, budget_) : ToRepr(value, budget_));
      if (spec.align == 0) spec.align = '>';
      return PutText(text, spec);
    }
    if (zero && spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    if (absl::string_view("diuxXo").find(type) != absl::string_view::npos) {
      if (type == 'i' || type == 'u') spec.type = 'd';
      if (IsWhole(value)) return PutWhole(Whole(value), spec);
      if (!value.is_float() || spec.type != 'd')
        return TypeError(absl::StrCat("'%", std::string(1, type), "'"), value);
      if (!std::isfinite(value.AsFloat()) || std::fabs(value.AsFloat()) >= 9.2e18)
        return Bad("an integer beyond 64 bits");
      return PutWhole(static_cast<int64_t>(value.AsFloat()), spec);
    }
    if (absl::string_view("eEfFgG").find(type) != absl::string_view::npos) {
      if (!value.is_number())
        return TypeError(absl::StrCat("'%", std::string(1, type), "'"), value);
      if (spec.precision > kMaxPrecision) return Bad("a precision that is not supported");
      if (type == 'F') spec.type = 'f';
      return PutReal(value.is_float() ? value.AsFloat() : static_cast<double>(Whole(value)), spec);
    }
    return Bad(absl::StrCat("'%", std::string(1, type), "' formatting is not supported"));
  }

  absl::string_view format_;
  const Value& args_;
  Budget* budget_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool mapping_;  // values may be left over
  std::optional<std::string> key_;
};

// ---- {} ----

bool IsAlign(char c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

absl::StatusOr<Spec> ReadSpec(absl::string_view text) {
  Spec spec;
  size_t at = 0, n = 0;
  if (!text.empty()) DecodeUtf8(text, 0, &n);
  if (n > 0 && n < text.size() && IsAlign(text[n])) {
    spec.fill = std::string(text.substr(0, n));
    spec.align = text[n];
    at = n + 1;
  } else if (!text.empty() && IsAlign(text[0])) {
    spec.align = text[at++];
  }
  const auto take = [&](absl::string_view any) -> char {
    if (at >= text.size() || any.find(text[at]) == absl::string_view::npos) return 0;
    return text[at++];
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  if (take("z") != 0) return Bad("'z' in a format is not supported");
  spec.alternate = take("#") != 0;
  if (take("0") != 0 && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  SOUP_ASSIGN_OR_RETURN(spec.width, ReadNumber(text, &at, kMaxWidth));
  spec.grouping = take(",_");
  if (take(".") != 0) {
    const size_t before = at;
    SOUP_ASSIGN_OR_RETURN(spec.precision, ReadNumber(text, &at, kMaxWidth));
    if (at == before) return Bad("a format with a '.' and no digits after it");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) return Bad(absl::StrCat("the format '", text, "' is not supported"));
  return spec;
}

// format(value, spec)
absl::StatusOr<std::string> FormatValue(const Value& value, absl::string_view text,
                                        Budget* budget) {
  if (text.empty()) return ToText(value, budget);
  SOUP_ASSIGN_OR_RETURN(Spec spec, ReadSpec(text));
  const auto refuse = [&] {
    return Bad(absl::StrCat("the format '", text, "' for ", value.KindName(), " is not supported"));
  };
  const bool padded_zero = spec.align == '=' && spec.fill == "0";
  if (padded_zero && spec.grouping != 0) return refuse();  // the zeros would be grouped too
  if (value.is_string()) {
    if ((spec.type != 0 && spec.type != 's') || spec.sign != '-' || spec.alternate ||
        spec.grouping != 0 || spec.align == '=')
      return refuse();
    return PutText(value.AsString(), spec);
  }
  const bool real_type =
      spec.type != 0 && absl::string_view("eEfFgG%").find(spec.type) != absl::string_view::npos;
  if (IsWhole(value) && !real_type) {
    if (spec.precision >= 0 ||
        (spec.type != 0 && absl::string_view("dxXob").find(spec.type) == absl::string_view::npos))
      return refuse();
    if (spec.grouping == ',' && spec.type != 0 && spec.type != 'd') return refuse();
    if (spec.type == 'o' && spec.grouping != 0) return refuse();
    return PutWhole(Whole(value), spec);
  }
  if (!value.is_number() || spec.precision > kMaxPrecision) return refuse();
  const double real = value.is_float() ? value.AsFloat() : static_cast<double>(Whole(value));
  if (spec.type == 0) {
    if (spec.precision >= 0 || spec.alternate || !std::isfinite(real)) return refuse();
    const std::string digits = FloatText(std::fabs(real));
    return PutNumber(std::signbit(real), "", digits, spec);
  }
  if (!real_type) return refuse();
  return PutReal(real, spec);
}

class Brace {
 public:
  Brace(const CallArgs& args, Budget* budget) : args_(args), budget_(budget) {}

  absl::StatusOr<std::string> Run(absl::string_view format, int depth) {
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at];
      if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
        out.push_back(c);
        at += 2;
      } else if (c == '}') {
        return Bad("a format with a single '}'");
      } else if (c != '{') {
        out.push_back(c);
        ++at;
      } else {
        size_t end = at + 1;
        for (int open = 1; end < format.size(); ++end) {
          if (format[end] == '{') ++open;
          if (format[end] == '}' && --open == 0) break;
        }
        if (end >= format.size()) return Bad("a format with an open '{'");
        SOUP_ASSIGN_OR_RETURN(const std::string text,
                              Field(format.substr(at + 1, end - at - 1), depth));
        SOUP_RETURN_IF_ERROR(budget_->Bytes(static_cast<int64_t>(text.size())));
        out += text;
        at = end + 1;
      }
    }
    return out;
  }

 private:
  // name[!conversion][:spec]
  absl::StatusOr<std::string> Field(absl::string_view field, int depth) {
    const size_t mark = field.find_first_of("!:[");
    size_t end = mark;
    if (mark != absl::string_view::npos && field[mark] == '[') {
      const size_t close = field.rfind(']');
      if (close == absl::string_view::npos) return Bad("a format with an open '['");
      end = field.find_first_of("!:", close);
    }
    SOUP_ASSIGN_OR_RETURN(Value value, Named(field.substr(0, std::min(end, field.size()))));
    absl::string_view rest = end < field.size() ? field.substr(end) : absl::string_view();
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        return Bad("a format with a malformed conversion");
      if (rest[1] != 'r' && rest[1] != 's')
        return Bad(absl::StrCat("the conversion '!", rest.substr(1, 1), "' is not supported"));
      SOUP_ASSIGN_OR_RETURN(std::string text,
                            rest[1] == 'r' ? ToRepr(value, budget_) : ToText(value, budget_));
      value = Value::String(std::move(text));
      rest = rest.substr(2);
    }
    std::string spec;
    if (!rest.empty()) {
      rest.remove_prefix(1);
      if (rest.find('{') != absl::string_view::npos && depth > 0)
        return Bad("a format nested too deep");
      SOUP_ASSIGN_OR_RETURN(spec, Run(rest, depth + 1));
    }
    return FormatValue(value, spec, budget_);
  }

  absl::StatusOr<Value> Named(absl::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    SOUP_ASSIGN_OR_RETURN(Value value, Argument(name.substr(0, end)));
    for (absl::string_view rest = name.substr(end); !rest.empty();) {
      std::string key;
      const bool attribute = rest[0] == '.';
      if (attribute) {
        const size_t stop = std::min(rest.find_first_of(".[", 1), rest.size());
        key = std::string(rest.substr(1, stop - 1));
        rest = rest.substr(stop);
      } else {
        const size_t close = rest.find(']');
        if (rest[0] != '[' || close == absl::string_view::npos || close == 1)
          return Bad("a format with a malformed name");
        key = std::string(rest.substr(1, close - 1));
        rest = rest.substr(close + 1);
      }
      if (key.empty()) return Bad("a format with an empty attribute");
      if (attribute && IsMethod(value, key))
        return Bad(absl::StrCat("'.", key, "' is a method of ", value.KindName()));
      int64_t index;
      const bool number = !attribute && absl::SimpleAtoi(key, &index) && index >= 0;
      SOUP_ASSIGN_OR_RETURN(value,
                            Item(value, number ? Value::Int(index) : Value::String(key), budget_));
    }
    return value;
  }

  absl::StatusOr<Value> Argument(absl::string_view name) {
    int64_t index;
    const bool number = !name.empty() && std::all_of(name.begin(), name.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    if (name.empty() || number) {
      if (numbered_ && *numbered_ != number) return Bad("a format with numbered and plain fields");
      numbered_ = number;
      if (!number) {
        index = next_++;
      } else if (!absl::SimpleAtoi(name, &index)) {
        return Bad("a format with a number too large");
      }
      if (index >= static_cast<int64_t>(args_.positional.size()))
        return Bad("a format has too few values");
      return args_.positional[static_cast<size_t>(index)];
    }
    for (const auto& [known, value] : args_.named)
      if (absl::string_view(known) == name) return value;
    return Bad(absl::StrCat("a format finds no value '", name, "'"));
  }

  const CallArgs& args_;
  Budget* budget_;
  int64_t next_ = 0;
  std::optional<bool> numbered_;
};

}  // namespace

absl::StatusOr<std::string> PercentFormat(absl::string_view format, const Value& args,
                                          Budget* budget) {
  SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(format.size())));
  return Percent(format, args, budget).Run();
}

absl::StatusOr<std::string> BraceFormat(absl::string_view format, const CallArgs& args,
                                        Budget* budget) {
  SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(format.size())));
  return Brace(args, budget).Run(format, 0);
}

}  // namespace soup::engine::jinja
