#include "engine/data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

// Unicode White_Space, as IsSpace: PCRE2's own \s also takes U+180E.
constexpr char kSpaceRanges[] =
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr uint32_t kMatchLimit = 50'000'000;

// Rewrites an Oniguruma pattern for PCRE2, or says what it cannot.
class Translator {
 public:
  explicit Translator(absl::string_view in) : in_(in) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        SOUP_RETURN_IF_ERROR(Escape(/*in_class=*/false));
      } else if (c == '[') {
        SOUP_RETURN_IF_ERROR(Class());
      } else if (c == '(') {
        SOUP_RETURN_IF_ERROR(Group());
      } else if (c == '^' || c == '$') {
        return Refuse(absl::StrCat("the anchor '", std::string(1, c), "'"));
      } else if (c == '}' && at_ + 1 < in_.size() && in_[at_ + 1] == '+') {
        return Refuse("a possessive interval '{n,m}+'");
      } else {
        out_.push_back(c);
        ++at_;
      }
    }
    return out_;
  }

 private:
  absl::Status Refuse(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("pattern '", in_, "' uses ", what, " at byte ",
                                                   at_, ", which is not supported"));
  }

  absl::Status Escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return Refuse("a lone backslash");
    const char c = in_[at_ + 1];
    if (c == 's' || (c == 'S' && !in_class)) {
      absl::StrAppend(&out_, in_class ? "" : (c == 's' ? "[" : "[^"), kSpaceRanges,
                      in_class ? "" : "]");
    } else if (c == 'p' || c == 'P') {
      const size_t close = in_.find('}', at_);
      if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == absl::string_view::npos)
        return Refuse("a property without braces");
      absl::StrAppend(&out_, in_.substr(at_, close + 1 - at_));
      at_ = close + 1;
      return absl::OkStatus();
    } else if (c == 'v') {
      out_ += "\\x{0b}";
    } else if (c == 'u') {
      if (at_ + 6 > in_.size()) return Refuse("a short \\u");
      for (size_t i = at_ + 2; i < at_ + 6; ++i)
        if (!absl::ascii_isxdigit(in_[i])) return Refuse("a malformed \\u");
      absl::StrAppend(&out_, "\\x{", in_.substr(at_ + 2, 4), "}");
      at_ += 6;
      return absl::OkStatus();
    } else if (absl::StrContains("rntfeadDx", c) || !absl::ascii_isalnum(c)) {
      absl::StrAppend(&out_, in_.substr(at_, 2));
    } else {
      return Refuse(absl::StrCat("'\\", std::string(1, c), "'"));
    }
    at_ += 2;
    return absl::OkStatus();
  }

  absl::Status Class() {
    out_.push_back('[');
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') {
      out_.push_back('^');
      ++at_;
    }
    for (bool first = true; at_ < in_.size(); first = false) {
      const char c = in_[at_];
      if (c == ']' && !first) {
        out_.push_back(c);
        ++at_;
        return absl::OkStatus();
      }
      if (c == ']') return Refuse("an unescaped ']' at the start of a class");
      if (c == '[') return Refuse("a class within a class");
      if (c == '&' && at_ + 1 < in_.size() && in_[at_ + 1] == '&')
        return Refuse("an intersection of classes");
      if (c == '\\') {
        SOUP_RETURN_IF_ERROR(Escape(/*in_class=*/true));
      } else {
        out_.push_back(c);
        ++at_;
      }
    }
    return Refuse("a class without its end");
  }

  absl::Status Group() {
    if (at_ + 1 < in_.size() && in_[at_ + 1] == '*') return Refuse("a verb '(*'");
    if (at_ + 1 >= in_.size() || in_[at_ + 1] != '?') {
      out_.push_back('(');
      ++at_;
      return absl::OkStatus();
    }
    for (absl::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (absl::StartsWith(in_.substr(at_), known)) {
        absl::StrAppend(&out_, known);
        at_ += known.size();
        return absl::OkStatus();
      }
    }
    return Refuse(absl::StrCat("the group '", in_.substr(at_, 4), "'"));
  }

  absl::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

struct Regex::Rep {
  std::string pattern;
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  bool jit = false;
};

Regex::Regex() : rep_(std::make_unique<Rep>()) {}

Regex::~Regex() {
  pcre2_match_context_free(rep_->context);
  pcre2_code_free(rep_->code);
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(const std::string& pattern,
                                                      unsigned options) {
  std::unique_ptr<Regex> out(new Regex);
  Rep& rep = *out->rep_;
  rep.pattern = pattern;
  int error = 0;
  PCRE2_SIZE at = 0;
  rep.code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                           options | PCRE2_UTF, &error, &at, nullptr);
  if (rep.code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof message);
    return absl::InvalidArgumentError(absl::StrCat(
        "pattern '", pattern, "' does not compile: ", reinterpret_cast<const char*>(message),
        " (at byte ", at, ")"));
  }
  rep.jit = pcre2_jit_compile(rep.code, PCRE2_JIT_COMPLETE) == 0;
  rep.context = pcre2_match_context_create(nullptr);
  if (rep.context == nullptr) return absl::ResourceExhaustedError("no memory for a pattern");
  pcre2_set_match_limit(rep.context, kMatchLimit);
  pcre2_set_heap_limit(rep.context, 64 << 10);  // KiB
  return out;
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::Create(absl::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a pattern of ", pattern.size(), " bytes is over the limit of ", kMaxPatternBytes));
  }
  if (FindInvalidUtf8(pattern)) return absl::InvalidArgumentError("a pattern is not UTF-8");
  SOUP_ASSIGN_OR_RETURN(const std::string translated, Translator(pattern).Run());
  return Compile(translated, PCRE2_UCP);
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::CreateLiteral(absl::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError("an empty pattern");
  return Compile(std::string(text), PCRE2_LITERAL);
}

bool Regex::MayMatchNothing() const {
  uint32_t yes = 1;
  return pcre2_pattern_info(rep_->code, PCRE2_INFO_MATCHEMPTY, &yes) != 0 || yes != 0;
}

absl::Status Regex::FindAll(absl::string_view text, std::vector<MatchSpan>* out) const {
  out->clear();
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  if (data == nullptr) return absl::ResourceExhaustedError("no memory for a match");
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data.get());
  for (size_t at = 0; at < text.size();) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (rep_->jit) {
      rc = pcre2_jit_match(rep_->code, subject, text.size(), at, 0, data.get(), rep_->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
      rc = pcre2_match(rep_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data.get(), rep_->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("pattern '", rep_->pattern,
                                                       "' gives up on a text of ", text.size(),
                                                       " bytes (PCRE2 error ", rc, ")"));
    }
    if (span[1] > span[0]) {
      out->push_back({span[0], span[1]});
      at = span[1];
    } else {  // an empty match: on to the next character
      size_t length = 1;
      if (span[0] >= text.size()) break;
      DecodeUtf8(text, span[0], &length);
      at = span[0] + length;
    }
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
