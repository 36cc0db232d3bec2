#include "engine/data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode.h"
#include "engine/data/unicode_recent.h"

namespace soup::engine {
namespace {

// Unicode White_Space, as IsSpace: PCRE2's own \s also takes U+180E.
constexpr char kSpaceRanges[] =
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr uint32_t kMatchLimit = 50'000'000;

// The recent characters of a general category ("L", "Lu", ...), as members of a class.
std::string RecentMembers(absl::string_view category) {
  std::string out;
  for (const RecentCharacters& r : RecentTable()) {
    if (absl::StartsWith(r.category, category))
      absl::StrAppend(&out, absl::StrFormat("\\x{%x}-\\x{%x}", r.first, r.last));
  }
  return out;
}

// Rewrites an Oniguruma pattern for PCRE2, or says what it cannot. `recent`: for texts that hold
// characters newer than PCRE2's tables.
class Translator {
 public:
  Translator(absl::string_view in, bool recent) : in_(in), recent_(recent) {}

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
      const absl::string_view property = in_.substr(at_, close + 1 - at_);
      at_ = close + 1;
      const std::string members =
          recent_ ? RecentMembers(property.substr(3, property.size() - 4)) : "";
      // "\P" among others in a class has no such spelling; it is left to PCRE2's tables.
      if (members.empty() || (c == 'P' && in_class)) {
        absl::StrAppend(&out_, property);
      } else if (in_class) {
        absl::StrAppend(&out_, property, members);
      } else {
        absl::StrAppend(&out_, c == 'P' ? "[^\\p" : "[\\p", property.substr(2), members, "]");
      }
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
  bool recent_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
};

struct Regex::Rep {
  std::string pattern;
  Code plain;
  Code recent;  // for texts with characters newer than PCRE2's tables; null: the same
  pcre2_match_context* context = nullptr;
};

Regex::Regex() : rep_(std::make_unique<Rep>()) {}

Regex::~Regex() {
  pcre2_match_context_free(rep_->context);
  pcre2_code_free(rep_->plain.code);
  pcre2_code_free(rep_->recent.code);
}

absl::Status Regex::Compile(const std::string& pattern, unsigned options, Code* out) {
  int error = 0;
  PCRE2_SIZE at = 0;
  out->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            options | PCRE2_UTF, &error, &at, nullptr);
  if (out->code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof message);
    return absl::InvalidArgumentError(absl::StrCat(
        "pattern '", pattern, "' does not compile: ", reinterpret_cast<const char*>(message),
        " (at byte ", at, ")"));
  }
  out->jit = pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::Make(const std::string& plain,
                                                   const std::string& recent, unsigned options) {
  std::unique_ptr<Regex> out(new Regex);
  Rep& rep = *out->rep_;
  rep.pattern = plain;
  SOUP_RETURN_IF_ERROR(Compile(plain, options, &rep.plain));
  if (!recent.empty()) SOUP_RETURN_IF_ERROR(Compile(recent, options, &rep.recent));
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
  SOUP_ASSIGN_OR_RETURN(const std::string plain, Translator(pattern, false).Run());
  SOUP_ASSIGN_OR_RETURN(const std::string recent, Translator(pattern, true).Run());
  return Make(plain, recent == plain ? "" : recent, PCRE2_UCP);
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::CreateLiteral(absl::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError("an empty pattern");
  return Make(std::string(text), "", PCRE2_LITERAL);
}

bool Regex::MayMatchNothing() const {
  uint32_t yes = 1;
  return pcre2_pattern_info(rep_->plain.code, PCRE2_INFO_MATCHEMPTY, &yes) != 0 || yes != 0;
}

absl::Status Regex::FindAll(absl::string_view text, std::vector<MatchSpan>* out) const {
  out->clear();
  const Code& code = rep_->recent.code != nullptr && HasRecent(text) ? rep_->recent : rep_->plain;
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  if (data == nullptr) return absl::ResourceExhaustedError("no memory for a match");
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data.get());
  for (size_t at = 0; at < text.size();) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (code.jit) {
      rc = pcre2_jit_match(code.code, subject, text.size(), at, 0, data.get(), rep_->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
      rc = pcre2_match(code.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
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
