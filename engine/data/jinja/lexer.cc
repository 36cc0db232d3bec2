#include "engine/data/jinja/lexer.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;

// "\r\n" and "\r" become "\n"; one newline at the end goes.
std::string NormalizeNewlines(absl::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else if (i + 1 >= source.size() || source[i + 1] != '\n') {
      out.push_back('\n');
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// Blanks at the end of `text` that Python's rstrip() takes.
size_t LengthWithoutTrailingSpace(absl::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end, n;
    do --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
    if (!IsPythonSpace(DecodeUtf8(text, begin, &n))) break;
    end = begin;
  }
  return end;
}

bool IsNameCharacter(char32_t c) {
  return c < 0x80 ? (absl::ascii_isalnum(c) || c == '_') : IsWord(c);
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) SOUP_RETURN_IF_ERROR(Root());
    Push(TokenKind::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  absl::string_view Rest() const { return absl::string_view(source_).substr(at_); }
  bool Has(absl::string_view what) const { return absl::StartsWith(Rest(), what); }

  // Positions only move forward: each character is counted once.
  Position At(size_t offset) {
    for (; counted_ < offset; ++counted_) {
      const auto c = static_cast<unsigned char>(source_[counted_]);
      if (c == '\n') {
        ++position_.line;
        position_.column = 1;
      } else if ((c & 0xc0) != 0x80) {
        ++position_.column;
      }
    }
    return position_;
  }
  absl::Status Error(absl::string_view what) { return ErrorAt(At(at_), what); }
  void Push(TokenKind kind, absl::string_view text, size_t offset) {
    tokens_.push_back({kind, std::string(text), At(offset)});
  }

  void SkipSpace() {
    size_t n;
    while (at_ < source_.size() && IsPythonSpace(DecodeUtf8(source_, at_, &n))) at_ += n;
  }
  // After a tag's end: `minus` takes all white space, `newline` one line feed.
  void EndTag(bool minus, bool newline) {
    if (minus) {
      SkipSpace();
    } else if (newline && Has("\n")) {
      ++at_;
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  // The text [begin, end) before a tag with this sign; `block`: lstrip_blocks applies.
  void PushText(size_t begin, size_t end, char sign, bool block) {
    absl::string_view text = absl::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      text = text.substr(0, LengthWithoutTrailingSpace(text));
    } else if (sign != '+' && block) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == absl::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && LengthWithoutTrailingSpace(text) <= line)
        text = text.substr(0, line);
    }
    if (!text.empty()) Push(TokenKind::kText, text, begin);
  }

  char SignAt(size_t offset) const {
    if (offset < source_.size() && (source_[offset] == '-' || source_[offset] == '+'))
      return source_[offset];
    return 0;
  }

  // Text up to the next tag, and that tag.
  absl::Status Root() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        PushText(begin, source_.size(), '+', false);
        at_ = source_.size();
        return absl::OkStatus();
      }
      if (absl::StrContains("{%#", source_[tag + 1])) break;
    }
    const char kind = source_[tag + 1];
    const char sign = SignAt(tag + 2);
    PushText(begin, tag, sign, kind != '{');
    line_starting_ = false;
    at_ = tag;
    at_ = tag + 2 + (sign != 0 ? 1 : 0);
    if (kind == '#') return Comment(tag);
    if (kind == '%' && IsRawTag()) return Raw();
    Push(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "", tag);
    return Inside(kind == '%');
  }

  absl::Status Comment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return ErrorAt(At(tag), "a comment without its end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    EndTag(sign == '-', sign != '+');
    return absl::OkStatus();
  }

  bool IsRawTag() const {
    const absl::string_view rest = absl::StripLeadingAsciiWhitespace(Rest());
    if (!absl::StartsWith(rest, "raw")) return false;
    const absl::string_view after = absl::StripLeadingAsciiWhitespace(rest.substr(3));
    return absl::StartsWith(after, "%}") || absl::StartsWith(after, "-%}");
  }

  absl::Status Raw() {
    const size_t close = source_.find("%}", at_);
    const bool minus = source_[close - 1] == '-';
    at_ = close + 2;
    EndTag(minus, /*newline=*/false);
    const size_t begin = at_;
    for (size_t tag = begin;; ++tag) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) return Error("a raw block without its end");
      const char sign = SignAt(tag + 2);
      absl::string_view rest = absl::string_view(source_).substr(tag + 2 + (sign != 0 ? 1 : 0));
      rest = absl::StripLeadingAsciiWhitespace(rest);
      if (!absl::StartsWith(rest, "endraw")) continue;
      rest = absl::StripLeadingAsciiWhitespace(rest.substr(6));
      const char end_sign = rest.empty() ? '\0' : rest[0];
      if (end_sign == '-' || end_sign == '+') rest.remove_prefix(1);
      if (!absl::StartsWith(rest, "%}")) continue;
      PushText(begin, tag, sign, /*block=*/true);
      at_ = static_cast<size_t>(rest.data() - source_.data()) + 2;
      EndTag(end_sign == '-', end_sign != '+');
      return absl::OkStatus();
    }
  }

  // Tokens of a tag up to its end. Within brackets an end is none: {{ {'a': {}} }}.
  absl::Status Inside(bool block) {
    const absl::string_view end = block ? "%}" : "}}";
    const TokenKind end_kind = block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd;
    std::string open;
    for (;;) {
      SkipSpace();
      if (at_ >= source_.size()) return Error("a tag without its end");
      if (open.empty()) {
        const size_t sign = SignAt(at_) != 0 ? 1 : 0;
        const bool allowed = sign == 0 || source_[at_] == '-' || block;  // no "+}}"
        if (allowed && absl::StartsWith(Rest().substr(sign), end)) {
          const char c = source_[at_];
          Push(end_kind, "", at_);
          at_ += sign + 2;
          EndTag(sign != 0 && c == '-', block && sign == 0);
          return absl::OkStatus();
        }
      }
      SOUP_RETURN_IF_ERROR(Token1(&open));
    }
  }

  absl::Status Token1(std::string* open) {
    size_t n;
    const char32_t c = DecodeUtf8(source_, at_, &n);
    if (c == '\'' || c == '"') return String(static_cast<char>(c));
    if (c >= '0' && c <= '9') return Number();
    if (IsNameCharacter(c)) {
      const size_t begin = at_;
      while (at_ < source_.size() && IsNameCharacter(DecodeUtf8(source_, at_, &n))) at_ += n;
      Push(TokenKind::kName, absl::string_view(source_).substr(begin, at_ - begin), begin);
      return absl::OkStatus();
    }
    for (absl::string_view op :
         {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
          "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","}) {
      if (!Has(op)) continue;
      if (op == "(" || op == "[" || op == "{") {
        open->push_back(op == "(" ? ')' : (op == "[" ? ']' : '}'));
      } else if (op == ")" || op == "]" || op == "}") {
        if (open->empty() || open->back() != op[0])
          return Error(absl::StrCat("unexpected '", op, "'"));
        open->pop_back();
      }
      Push(TokenKind::kOperator, op, at_);
      at_ += op.size();
      return absl::OkStatus();
    }
    return Error(absl::StrCat("unexpected character '", source_.substr(at_, n), "'"));
  }

  absl::Status Number() {
    const size_t begin = at_;
    const auto digits = [this] {
      while (at_ < source_.size() && (absl::ascii_isdigit(source_[at_]) ||
                                      (source_[at_] == '_' && at_ + 1 < source_.size() &&
                                       absl::ascii_isdigit(source_[at_ + 1]))))
        ++at_;
    };
    const auto digit_at = [this](size_t i) {
      return i < source_.size() && absl::ascii_isdigit(source_[i]);
    };
    digits();
    bool is_float = false;
    if (Has(".") && digit_at(at_ + 1)) {
      is_float = true;
      ++at_;
      digits();
    }
    if (Has("e") || Has("E")) {
      const size_t sign = SignAt(at_ + 1) != 0 ? 1 : 0;
      if (digit_at(at_ + 1 + sign)) {
        is_float = true;
        at_ += 1 + sign;
        digits();
      }
    }
    std::string text;
    for (char c : absl::string_view(source_).substr(begin, at_ - begin))
      if (c != '_') text.push_back(c);
    if (!is_float && text.size() > 1 && text[0] == '0' &&
        text.find_first_not_of('0') != std::string::npos) {
      at_ = begin;
      return Error("an integer with leading zeros");
    }
    size_t n;
    if (at_ < source_.size() && IsNameCharacter(DecodeUtf8(source_, at_, &n)))
      return Error("a name right after a number");
    Push(is_float ? TokenKind::kFloat : TokenKind::kInteger, text, begin);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    const size_t begin = at_++;
    std::string value;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\') {
        SOUP_RETURN_IF_ERROR(Escape(&value));
      } else {
        value.push_back(source_[at_++]);
      }
    }
    if (at_ >= source_.size()) {
      at_ = begin;
      return Error("a string without its end");
    }
    ++at_;
    Push(TokenKind::kString, value, begin);
    return absl::OkStatus();
  }

  // Python's escapes; an unknown one stays as it is written.
  absl::Status Escape(std::string* out) {
    if (at_ + 1 >= source_.size()) return Error("a string without its end");
    const char c = source_[at_ + 1];
    static constexpr std::pair<char, char> kSimple[] = {
        {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''},
        {'"', '"'},  {'a', '\a'}, {'b', '\b'}, {'f', '\f'},  {'v', '\v'}};
    for (const auto& [name, value] : kSimple) {
      if (c != name) continue;
      out->push_back(value);
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == '\n') {
      at_ += 2;
      return absl::OkStatus();
    }
    if (c >= '0' && c <= '7') return NumericEscape(1, 3, 8, out);
    if (c == 'x') return NumericEscape(2, 2, 16, out);
    if (c == 'u') return NumericEscape(2, 4, 16, out);
    if (c == 'U') return NumericEscape(2, 8, 16, out);
    if (c == 'N') return Error("the escape '\\N' is not supported");
    out->push_back('\\');
    ++at_;
    return absl::OkStatus();
  }

  // `skip` bytes, then up to `most` digits (all of them unless octal).
  absl::Status NumericEscape(size_t skip, size_t most, int base, std::string* out) {
    size_t i = at_ + skip;
    const size_t first = i;
    char32_t value = 0;
    for (; i < source_.size() && i - first < most; ++i) {
      const char c = source_[i];
      if (base == 8 ? (c < '0' || c > '7') : !absl::ascii_isxdigit(c)) break;
      const int digit = absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
      value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    if (base == 16 && i - first != most) return Error("a malformed escape in a string");
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
      return Error("an escape in a string is no character");
    AppendUtf8(value, out);
    at_ = i;
    return absl::OkStatus();
  }

  const std::string source_;
  size_t at_ = 0;
  bool line_starting_ = true;
  size_t counted_ = 0;
  Position position_;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status ErrorAt(Position at, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", at.line, " column ", at.column, ": ", what));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the template has ", source.size(), " bytes, over the limit of ", kMaxTemplateBytes));
  }
  if (const auto bad = FindInvalidUtf8(source))
    return absl::InvalidArgumentError(absl::StrCat("the template is not UTF-8 at byte ", *bad));
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace soup::engine::jinja
