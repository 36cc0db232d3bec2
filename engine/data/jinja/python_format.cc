#include "engine/data/jinja/python_format.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

// str.isprintable() of one character: not of the categories Other and Separator, but a blank is.
bool IsPrintable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string StringRepr(const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t i = 0, n; i < text.size(); i += n) {
    const char32_t c = DecodeUtf8(text, i, &n);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      out.append(text, i, n);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned>(c));
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", static_cast<unsigned>(c));
    }
  }
  out += quote;
  return out;
}

absl::Status NoForm(const Value& value, absl::string_view form) {
  return absl::InvalidArgumentError(absl::StrCat(value.KindName(), " cannot be written as ", form));
}

// Both writers append to one string and count what they append.
class Writer {
 public:
  explicit Writer(Budget* budget) : budget_(budget) {}
  absl::Status Put(absl::string_view text) {
    SOUP_RETURN_IF_ERROR(budget_->Bytes(static_cast<int64_t>(text.size())));
    absl::StrAppend(&out_, text);
    return absl::OkStatus();
  }
  std::string Take() { return std::move(out_); }

 protected:
  Budget* budget_;
  std::string out_;
};

class ReprWriter : public Writer {
 public:
  using Writer::Writer;

  absl::Status Write(const Value& v) {
    SOUP_RETURN_IF_ERROR(budget_->Steps(1));
    switch (v.kind()) {
      case Value::Kind::kUndefined:
        return Put("Undefined");
      case Value::Kind::kNone:
        return Put("None");
      case Value::Kind::kBool:
        return Put(v.AsBool() ? "True" : "False");
      case Value::Kind::kInt:
        return Put(absl::StrCat(v.AsInt()));
      case Value::Kind::kFloat:
        return Put(FloatText(v.AsFloat()));
      case Value::Kind::kString:
        return Put(StringRepr(v.AsString()));
      case Value::Kind::kList:
        return WriteList(v);
      case Value::Kind::kDict:
        return WriteDict(v);
      case Value::Kind::kObject:
        return NoForm(v, "text");
    }
    return absl::InternalError("unknown kind of value");
  }

 private:
  absl::Status WriteList(const Value& v) {
    const bool tuple = v.is_tuple();
    SOUP_RETURN_IF_ERROR(Put(tuple ? "(" : "["));
    bool first = true;
    for (const Value& item : v.AsList()) {
      if (!std::exchange(first, false)) SOUP_RETURN_IF_ERROR(Put(", "));
      SOUP_RETURN_IF_ERROR(Write(item));
    }
    return Put(tuple ? (v.AsList().size() == 1 ? ",)" : ")") : "]");
  }
  absl::Status WriteDict(const Value& v) {
    SOUP_RETURN_IF_ERROR(Put("{"));
    bool first = true;
    for (const auto& [key, value] : v.AsDict()) {
      if (!std::exchange(first, false)) SOUP_RETURN_IF_ERROR(Put(", "));
      SOUP_RETURN_IF_ERROR(Put(absl::StrCat(StringRepr(key), ": ")));
      SOUP_RETURN_IF_ERROR(Write(value));
    }
    return Put("}");
  }
};

class JsonWriter : public Writer {
 public:
  JsonWriter(const JsonOptions& options, Budget* budget) : Writer(budget), options_(options) {}

  absl::Status Write(const Value& v, int level) {
    SOUP_RETURN_IF_ERROR(budget_->Steps(1));
    switch (v.kind()) {
      case Value::Kind::kNone:
        return Put("null");
      case Value::Kind::kBool:
        return Put(v.AsBool() ? "true" : "false");
      case Value::Kind::kInt:
        return Put(absl::StrCat(v.AsInt()));
      case Value::Kind::kFloat:
        return Put(Number(v.AsFloat()));
      case Value::Kind::kString:
        return PutString(v.AsString());
      case Value::Kind::kList:
        return WriteList(v, level);
      case Value::Kind::kDict:
        return WriteDict(v, level);
      default:
        return NoForm(v, "JSON");
    }
  }

 private:
  static std::string Number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return FloatText(d);
  }

  absl::Status PutString(const std::string& text) {
    std::string out = "\"";
    for (size_t i = 0, n; i < text.size(); i += n) {
      const char32_t c = DecodeUtf8(text, i, &n);
      static constexpr std::pair<char32_t, const char*> kShort[] = {
          {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"},
          {'\t', "\\t"}, {'\f', "\\f"},  {'\b', "\\b"}};
      const auto* known = std::find_if(std::begin(kShort), std::end(kShort),
                                       [c](const auto& s) { return s.first == c; });
      if (known != std::end(kShort)) {
        out += known->second;
      } else if (c < 0x20 || (options_.ensure_ascii && c >= 0x7f && c < 0x10000 && c != 0x7f)) {
        absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned>(c));
      } else if (options_.ensure_ascii && c >= 0x10000) {
        const unsigned high = 0xd800 + ((static_cast<unsigned>(c) - 0x10000) >> 10);
        const unsigned low = 0xdc00 + ((static_cast<unsigned>(c) - 0x10000) & 0x3ff);
        absl::StrAppendFormat(&out, "\\u%04x\\u%04x", high, low);
      } else {
        out.append(text, i, n);
      }
    }
    out += '"';
    return Put(out);
  }

  absl::Status NewLine(int level) {
    if (!options_.indent) return absl::OkStatus();
    std::string out = "\n";
    for (int i = 0; i < level; ++i) out += *options_.indent;
    return Put(out);
  }

  absl::Status WriteList(const Value& v, int level) {
    if (v.AsList().empty()) return Put("[]");
    SOUP_RETURN_IF_ERROR(Put("["));
    bool first = true;
    for (const Value& item : v.AsList()) {
      if (!std::exchange(first, false)) SOUP_RETURN_IF_ERROR(Put(options_.item_separator));
      SOUP_RETURN_IF_ERROR(NewLine(level + 1));
      SOUP_RETURN_IF_ERROR(Write(item, level + 1));
    }
    SOUP_RETURN_IF_ERROR(NewLine(level));
    return Put("]");
  }

  absl::Status WriteDict(const Value& v, int level) {
    std::vector<const std::pair<std::string, Value>*> items;
    for (const auto& item : v.AsDict()) items.push_back(&item);
    if (items.empty()) return Put("{}");
    if (options_.sort_keys) {
      // UTF-8 in the order of bytes is in the order of characters, as Python sorts.
      std::sort(items.begin(), items.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    SOUP_RETURN_IF_ERROR(Put("{"));
    bool first = true;
    for (const auto* item : items) {
      if (!std::exchange(first, false)) SOUP_RETURN_IF_ERROR(Put(options_.item_separator));
      SOUP_RETURN_IF_ERROR(NewLine(level + 1));
      SOUP_RETURN_IF_ERROR(PutString(item->first));
      SOUP_RETURN_IF_ERROR(Put(options_.key_separator));
      SOUP_RETURN_IF_ERROR(Write(item->second, level + 1));
    }
    SOUP_RETURN_IF_ERROR(NewLine(level));
    return Put("}");
  }

  const JsonOptions& options_;
};

}  // namespace

// The shortest digits that read back the same; an exponent below 1e-4 and from 1e16 on.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  const bool negative = text[0] == '-';
  std::string digits;
  for (char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string out(negative ? 1 : 0, '-');
  if (exponent < -4 || exponent >= 16) {
    out.push_back(digits[0]);
    if (digits.size() > 1) absl::StrAppend(&out, ".", digits.substr(1));
    absl::StrAppendFormat(&out, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out;
  }
  if (exponent < 0) {
    return absl::StrCat(out, "0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    return absl::StrCat(out, digits, std::string(whole - digits.size(), '0'), ".0");
  }
  return absl::StrCat(out, digits.substr(0, whole), ".", digits.substr(whole));
}

absl::StatusOr<std::string> ToText(const Value& value, Budget* budget) {
  if (value.is_undefined()) return std::string();
  if (value.is_string()) {
    SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(value.AsString().size())));
    return value.AsString();
  }
  return ToRepr(value, budget);
}

absl::StatusOr<std::string> ToRepr(const Value& value, Budget* budget) {
  ReprWriter writer(budget);
  SOUP_RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

absl::StatusOr<std::string> ToJson(const Value& value, const JsonOptions& options, Budget* budget) {
  JsonWriter writer(options, budget);
  SOUP_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

absl::StatusOr<std::string> FormatTime(absl::string_view format, int64_t unix_seconds) {
  if (format.size() > 256) return absl::InvalidArgumentError("a time format over 256 bytes");
  const auto seconds = static_cast<time_t>(unix_seconds);
  tm local;
  if (localtime_r(&seconds, &local) == nullptr)
    return absl::InvalidArgumentError("the time cannot be told");
  // A mark at the end tells an empty result from a full buffer.
  const std::string marked = absl::StrCat(format, "|");
  char buffer[4096];
  const size_t n = strftime(buffer, sizeof buffer, marked.c_str(), &local);
  if (n == 0) return absl::InvalidArgumentError("a time format that gives over 4 KiB");
  return std::string(buffer, n - 1);
}

}  // namespace soup::engine::jinja
