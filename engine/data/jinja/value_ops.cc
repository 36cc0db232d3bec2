#include "engine/data/jinja/value_ops.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/text_format.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

absl::Status Overflow() { return absl::InvalidArgumentError("an integer beyond 64 bits"); }

bool IsWhole(const Value& v) { return v.is_bool() || v.is_int(); }
int64_t Whole(const Value& v) { return v.is_bool() ? (v.AsBool() ? 1 : 0) : v.AsInt(); }
double Real(const Value& v) { return v.is_float() ? v.AsFloat() : static_cast<double>(Whole(v)); }

int Sign(double d) { return d < 0 ? -1 : (d > 0 ? 1 : 0); }

// Offsets of the characters of a text, and its size at the end.
std::vector<size_t> CharacterOffsets(absl::string_view text) {
  std::vector<size_t> out;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) out.push_back(i);
  out.push_back(text.size());
  return out;
}

absl::StatusOr<int64_t> WholePower(int64_t base, int64_t exponent) {
  int64_t out = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(out, base, &out)) return Overflow();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return out;
}

// Python's // and %: rounded towards minus infinity.
int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}
double FloorModulo(double a, double b) {
  double m = std::fmod(a, b);
  if (m != 0 && (m < 0) != (b < 0)) m += b;
  return m;
}

absl::StatusOr<Value> WholeArithmetic(absl::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == "+")
    return __builtin_add_overflow(a, b, &out) ? Overflow() : absl::StatusOr<Value>(Value::Int(out));
  if (op == "-")
    return __builtin_sub_overflow(a, b, &out) ? Overflow() : absl::StatusOr<Value>(Value::Int(out));
  if (op == "*")
    return __builtin_mul_overflow(a, b, &out) ? Overflow() : absl::StatusOr<Value>(Value::Int(out));
  if (op == "**") {
    if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
    SOUP_ASSIGN_OR_RETURN(out, WholePower(a, b));
    return Value::Int(out);
  }
  if (b == 0) return absl::InvalidArgumentError("a division by zero");
  if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1)
    return a == INT64_MIN && op == "//" ? absl::StatusOr<Value>(Overflow())
                                        : Value::Int(op == "//" ? -a : 0);
  if (op == "//") return Value::Int(FloorDivide(a, b));
  return Value::Int(a - FloorDivide(a, b) * b);
}

absl::StatusOr<Value> RealArithmetic(absl::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return absl::InvalidArgumentError("a division by zero");
  if (op == "/") return Value::Float(a / b);
  if (op == "//") return Value::Float(std::floor(a / b));
  return Value::Float(FloorModulo(a, b));
}

absl::StatusOr<Value> Repeat(const Value& v, int64_t times, Budget* budget) {
  times = std::max<int64_t>(times, 0);
  const bool text = v.is_string();
  const auto size = static_cast<int64_t>(text ? v.AsString().size() : v.AsList().size());
  int64_t total;
  if (__builtin_mul_overflow(size, times, &total)) return Overflow();
  SOUP_RETURN_IF_ERROR(budget->Bytes(total));
  if (text) {
    std::string out;
    out.reserve(static_cast<size_t>(total));
    for (int64_t i = 0; i < times && size > 0; ++i) out += v.AsString();
    return Value::String(std::move(out));
  }
  SOUP_RETURN_IF_ERROR(budget->Steps(total));
  std::vector<Value> out;
  for (int64_t i = 0; i < times && size > 0; ++i)
    out.insert(out.end(), v.AsList().begin(), v.AsList().end());
  return Value::List(std::move(out), v.is_tuple());
}

absl::StatusOr<Value> Add(const Value& a, const Value& b, Budget* budget) {
  if (a.is_string() && b.is_string()) {
    SOUP_RETURN_IF_ERROR(
        budget->Bytes(static_cast<int64_t>(a.AsString().size() + b.AsString().size())));
    return Value::String(absl::StrCat(a.AsString(), b.AsString()));
  }
  if (a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
    SOUP_RETURN_IF_ERROR(
        budget->Steps(static_cast<int64_t>(a.AsList().size() + b.AsList().size())));
    std::vector<Value> out = a.AsList();
    out.insert(out.end(), b.AsList().begin(), b.AsList().end());
    return Value::List(std::move(out), a.is_tuple());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'+' between ", a.KindName(), " and ", b.KindName()));
}

absl::StatusOr<std::optional<int64_t>> SlicePart(const Value& v) {
  if (v.is_none()) return std::optional<int64_t>();
  if (!IsWhole(v)) return TypeError("a slice", v);
  return std::optional<int64_t>(Whole(v));
}

}  // namespace

bool IsHashable(const Value& v) {
  if (!v.is_tuple()) return !v.is_list() && !v.is_dict();
  return std::all_of(v.AsList().begin(), v.AsList().end(), &IsHashable);
}

absl::Status UndefinedError(const Value& v) {
  return absl::InvalidArgumentError(absl::StrCat(
      v.UndefinedHint().empty() ? "a value" : absl::StrCat("'", v.UndefinedHint(), "'"),
      " is undefined"));
}

absl::Status TypeError(absl::string_view what, const Value& v) {
  if (v.is_undefined()) return UndefinedError(v);
  return absl::InvalidArgumentError(absl::StrCat(what, " cannot take ", v.KindName()));
}

bool Truth(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
      return v.AsBool();
    case Value::Kind::kInt:
      return v.AsInt() != 0;
    case Value::Kind::kFloat:
      return v.AsFloat() != 0;
    case Value::Kind::kString:
      return !v.AsString().empty();
    case Value::Kind::kList:
      return !v.AsList().empty();
    case Value::Kind::kDict:
      return !v.AsDict().empty();
    case Value::Kind::kObject:
      return true;
  }
  return false;
}

absl::StatusOr<bool> Equal(const Value& a, const Value& b, Budget* budget) {
  SOUP_RETURN_IF_ERROR(budget->Steps(1));
  if (a.is_number() && b.is_number()) {
    if (IsWhole(a) && IsWhole(b)) return Whole(a) == Whole(b);
    return Real(a) == Real(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kString:
      SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(a.AsString().size() / 256)));
      return a.AsString() == b.AsString();
    case Value::Kind::kList: {
      const auto &x = a.AsList(), &y = b.AsList();
      if (x.size() != y.size() || a.is_tuple() != b.is_tuple()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        SOUP_ASSIGN_OR_RETURN(const bool same, Equal(x[i], y[i], budget));
        if (!same) return false;
      }
      return true;
    }
    case Value::Kind::kDict:
      if (a.AsDict().size() != b.AsDict().size()) return false;
      for (const auto& [key, value] : a.AsDict()) {
        const Value* other = b.Find(key);
        if (other == nullptr) return false;
        SOUP_ASSIGN_OR_RETURN(const bool same, Equal(value, *other, budget));
        if (!same) return false;
      }
      return true;
    case Value::Kind::kObject:
      return a.AsObject() == b.AsObject();
    default:
      return true;  // none and none, undefined and undefined
  }
}

absl::StatusOr<int> Order(const Value& a, const Value& b, Budget* budget) {
  SOUP_RETURN_IF_ERROR(budget->Steps(1));
  if (a.is_number() && b.is_number()) {
    if (IsWhole(a) && IsWhole(b)) return Whole(a) < Whole(b) ? -1 : (Whole(a) > Whole(b) ? 1 : 0);
    return Sign(Real(a) - Real(b));
  }
  if (a.is_string() && b.is_string()) return a.AsString().compare(b.AsString());
  if (a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
    const auto &x = a.AsList(), &y = b.AsList();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      SOUP_ASSIGN_OR_RETURN(const bool same, Equal(x[i], y[i], budget));
      if (!same) return Order(x[i], y[i], budget);
    }
    return x.size() < y.size() ? -1 : (x.size() > y.size() ? 1 : 0);
  }
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  return absl::InvalidArgumentError(
      absl::StrCat(a.KindName(), " and ", b.KindName(), " have no order"));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget* budget) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!item.is_string()) return TypeError("'in' a text", item);
    SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(container.AsString().size() / 64)));
    return container.AsString().find(item.AsString()) != std::string::npos;
  }
  if (container.is_dict() && !IsHashable(item)) return TypeError("'in' an object", item);
  if (container.is_dict()) return item.is_string() && container.Find(item.AsString()) != nullptr;
  if (!container.is_list()) return TypeError("'in'", container);
  for (const Value& v : container.AsList()) {
    SOUP_ASSIGN_OR_RETURN(const bool same, Equal(v, item, budget));
    if (same) return true;
  }
  return false;
}

absl::StatusOr<int64_t> Length(const Value& v, Budget* budget) {
  if (v.is_undefined()) return 0;
  if (v.is_string())
    SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(v.AsString().size() / 16)));
  if (v.is_string()) return static_cast<int64_t>(CountCharacters(v.AsString()));
  if (v.is_list()) return static_cast<int64_t>(v.AsList().size());
  if (v.is_dict()) return static_cast<int64_t>(v.AsDict().size());
  return TypeError("a length", v);
}

absl::StatusOr<std::vector<Value>> Elements(const Value& v, Budget* budget) {
  std::vector<Value> out;
  if (v.is_undefined()) return out;
  if (v.is_list()) {
    SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(v.AsList().size())));
    return v.AsList();
  }
  if (v.is_dict()) {
    SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(v.AsDict().size())));
    for (const auto& [key, value] : v.AsDict()) out.push_back(Value::String(key));
    return out;
  }
  if (v.is_string()) {
    const std::string& text = v.AsString();
    SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(text.size())));
    SOUP_RETURN_IF_ERROR(budget->Bytes(64 * static_cast<int64_t>(text.size())));
    for (size_t i = 0, n; i < text.size(); i += n) {
      DecodeUtf8(text, i, &n);
      out.push_back(Value::String(text.substr(i, n)));
    }
    return out;
  }
  return TypeError("a loop", v);
}

absl::StatusOr<Value> Item(const Value& v, const Value& key, Budget* budget) {
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_dict() && key.is_string()) {
    const Value* found = v.Find(key.AsString());
    return found != nullptr ? *found : Value::Undefined(key.AsString());
  }
  if ((v.is_list() || v.is_string()) && IsWhole(key)) {
    SOUP_ASSIGN_OR_RETURN(const int64_t size, Length(v, budget));
    int64_t index = Whole(key);
    if (index < 0) index += size;
    if (index < 0 || index >= size) return Value::Undefined(absl::StrCat("index ", Whole(key)));
    if (v.is_list()) return v.AsList()[static_cast<size_t>(index)];
    return Slice(v, Value::Int(index), Value::Int(index + 1), Value::None(), budget);
  }
  if (v.is_group() && key.is_string() && key.AsString() == "grouper") return v.AsList()[0];
  if (v.is_group() && key.is_string() && key.AsString() == "list") return v.AsList()[1];
  return Value::Undefined(key.is_string() ? key.AsString() : "item");
}

absl::StatusOr<Value> Slice(const Value& v, const Value& start, const Value& stop,
                            const Value& step, Budget* budget) {
  if (!v.is_list() && !v.is_string()) return TypeError("a slice", v);
  SOUP_ASSIGN_OR_RETURN(const auto from, SlicePart(start));
  SOUP_ASSIGN_OR_RETURN(const auto to, SlicePart(stop));
  SOUP_ASSIGN_OR_RETURN(const auto by, SlicePart(step));
  const int64_t stride = by.value_or(1);
  if (stride == 0) return absl::InvalidArgumentError("a slice with step 0");
  std::vector<size_t> offsets;  // of a text's characters
  if (v.is_string()) {
    SOUP_RETURN_IF_ERROR(budget->Steps(1 + static_cast<int64_t>(v.AsString().size() / 16)));
    offsets = CharacterOffsets(v.AsString());
  }
  const auto size = static_cast<int64_t>(v.is_string() ? offsets.size() - 1 : v.AsList().size());
  // As Python's slice.indices().
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto clamp = [&](std::optional<int64_t> part, int64_t otherwise) {
    if (!part) return otherwise;
    const int64_t index = *part < 0 ? *part + size : *part;
    return std::min(std::max(index, low), high);
  };
  const int64_t begin = clamp(from, stride > 0 ? low : high);
  const int64_t end = clamp(to, stride > 0 ? high : low);
  if (v.is_string() && stride == 1) {
    if (end <= begin) return Value::String("");
    std::string out = v.AsString().substr(offsets[begin], offsets[end] - offsets[begin]);
    SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(out.size())));
    return Value::String(std::move(out));
  }
  std::string text;
  std::vector<Value> items;
  for (int64_t i = begin; stride > 0 ? i < end : i > end;) {
    SOUP_RETURN_IF_ERROR(budget->Steps(1));
    if (v.is_string()) {
      text.append(v.AsString(), offsets[i], offsets[i + 1] - offsets[i]);
    } else {
      items.push_back(v.AsList()[static_cast<size_t>(i)]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (v.is_string()) return Value::String(std::move(text));
  return Value::List(std::move(items), v.is_tuple());
}

absl::StatusOr<Value> Arithmetic(absl::string_view op, const Value& a, const Value& b,
                                 Budget* budget) {
  if (op == "%" && a.is_string()) {
    SOUP_ASSIGN_OR_RETURN(std::string text, PercentFormat(a.AsString(), b, budget));
    return Value::String(std::move(text));
  }
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) {
    if (IsWhole(a) && IsWhole(b)) return WholeArithmetic(op, Whole(a), Whole(b));
    return RealArithmetic(op, Real(a), Real(b));
  }
  if (op == "+") return Add(a, b, budget);
  if (op == "*") {
    if ((a.is_string() || a.is_list()) && IsWhole(b)) return Repeat(a, Whole(b), budget);
    if ((b.is_string() || b.is_list()) && IsWhole(a)) return Repeat(b, Whole(a), budget);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", op, "' between ", a.KindName(), " and ", b.KindName()));
}

absl::StatusOr<Value> Negate(const Value& v) {
  if (v.is_float()) return Value::Float(-v.AsFloat());
  if (!IsWhole(v)) return TypeError("'-'", v);
  if (Whole(v) == INT64_MIN) return Overflow();
  return Value::Int(-Whole(v));
}

}  // namespace soup::engine::jinja
