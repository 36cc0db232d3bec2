#include "engine/data/jinja/text_ops.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/data/unicode.h"

namespace soup::engine::jinja {
namespace {

// Full mappings that are not one character to one: the German sharp s is the one that texts have.
void AppendUpper(char32_t c, std::string* out) {
  if (c == 0xdf) {
    *out += "SS";
  } else {
    AppendUtf8(ToUpper(c), out);
  }
}

void AppendTitle(char32_t c, std::string* out) {
  if (c == 0xdf) {
    *out += "Ss";
  } else {
    AppendUtf8(ToTitle(c), out);
  }
}

bool IsCased(char32_t c) { return ToUpper(c) != c || ToLower(c) != c || IsUpper(c) || IsLower(c); }

size_t PreviousCharacter(absl::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

}  // namespace

std::string Upper(absl::string_view text) {
  std::string out;
  for (size_t i = 0, n; i < text.size(); i += n) AppendUpper(DecodeUtf8(text, i, &n), &out);
  return out;
}

std::string Lower(absl::string_view text) {
  std::string out;
  for (size_t i = 0, n; i < text.size(); i += n) AppendUtf8(ToLower(DecodeUtf8(text, i, &n)), &out);
  return out;
}

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  size_t n;
  std::string out;
  AppendTitle(DecodeUtf8(text, 0, &n), &out);
  return out + Lower(text.substr(n));
}

std::string TitleMethod(absl::string_view text) {
  std::string out;
  bool after_cased = false;
  for (size_t i = 0, n; i < text.size(); i += n) {
    const char32_t c = DecodeUtf8(text, i, &n);
    if (after_cased) {
      AppendUtf8(ToLower(c), &out);
    } else {
      AppendTitle(c, &out);
    }
    after_cased = IsCased(c);
  }
  return out;
}

std::string TitleFilter(absl::string_view text) {
  std::string out;
  bool first = true;
  for (size_t i = 0, n; i < text.size(); i += n) {
    const char32_t c = DecodeUtf8(text, i, &n);
    if (c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || IsPythonSpace(c)) {
      out.append(text.data() + i, n);
      first = true;
    } else if (first) {
      AppendUpper(c, &out);
      first = false;
    } else {
      AppendUtf8(ToLower(c), &out);
    }
  }
  return out;
}

std::string Strip(absl::string_view text, const std::optional<std::string>& set, bool left,
                  bool right) {
  const auto goes = [&](size_t at, size_t* n) {
    const char32_t c = DecodeUtf8(text, at, n);
    if (!set) return IsPythonSpace(c);
    return absl::StrContains(*set, text.substr(at, *n));
  };
  size_t begin = 0, end = text.size(), n;
  while (left && begin < end && goes(begin, &n)) begin += n;
  while (right && end > begin) {
    const size_t last = PreviousCharacter(text, end);
    if (!goes(last, &n)) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

std::string Replace(absl::string_view text, absl::string_view from, absl::string_view to,
                    int64_t count) {
  std::string out;
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    if (from.empty()) {
      absl::StrAppend(&out, to);
      if (at >= text.size()) return out;
      size_t n;
      DecodeUtf8(text, at, &n);
      absl::StrAppend(&out, text.substr(at, n));
      at += n;
      continue;
    }
    const size_t found = text.find(from, at);
    if (found == absl::string_view::npos) break;
    absl::StrAppend(&out, text.substr(at, found - at), to);
    at = found + from.size();
  }
  absl::StrAppend(&out, text.substr(at));
  return out;
}

std::vector<std::string> Split(absl::string_view text, const std::optional<std::string>& separator,
                               int64_t most) {
  std::vector<std::string> out;
  if (separator) {
    size_t at = 0;
    while (most < 0 || static_cast<int64_t>(out.size()) < most) {
      const size_t found = text.find(*separator, at);
      if (found == absl::string_view::npos) break;
      out.emplace_back(text.substr(at, found - at));
      at = found + separator->size();
    }
    out.emplace_back(text.substr(at));
    return out;
  }
  for (size_t at = 0, n;;) {
    while (at < text.size() && IsPythonSpace(DecodeUtf8(text, at, &n))) at += n;
    if (at >= text.size()) return out;
    if (most >= 0 && static_cast<int64_t>(out.size()) >= most) {
      out.emplace_back(text.substr(at));
      return out;
    }
    const size_t begin = at;
    while (at < text.size() && !IsPythonSpace(DecodeUtf8(text, at, &n))) at += n;
    out.emplace_back(text.substr(begin, at - begin));
  }
}

std::vector<std::string> SplitFromRight(absl::string_view text,
                                        const std::optional<std::string>& separator, int64_t most) {
  if (most < 0) return Split(text, separator, most);
  std::vector<std::string> out;
  size_t end = text.size();
  if (separator) {
    while (static_cast<int64_t>(out.size()) < most && end >= separator->size()) {
      const size_t found = text.substr(0, end).rfind(*separator);
      if (found == absl::string_view::npos) break;
      out.emplace_back(text.substr(found + separator->size(), end - found - separator->size()));
      end = found;
    }
    out.emplace_back(text.substr(0, end));
  } else {
    for (size_t n;;) {
      while (end > 0 && IsPythonSpace(DecodeUtf8(text, PreviousCharacter(text, end), &n)))
        end = PreviousCharacter(text, end);
      if (end == 0) break;
      if (static_cast<int64_t>(out.size()) >= most) {
        out.emplace_back(text.substr(0, end));
        break;
      }
      const size_t last = end;
      while (end > 0 && !IsPythonSpace(DecodeUtf8(text, PreviousCharacter(text, end), &n)))
        end = PreviousCharacter(text, end);
      out.emplace_back(text.substr(end, last - end));
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t i = 0, n; i < text.size();) {
    const char32_t c = DecodeUtf8(text, i, &n);
    const bool ends = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    const size_t end = i;
    i += n;
    if (!ends) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    out.emplace_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
}

bool AllOf(absl::string_view text, bool (*predicate)(char32_t)) {
  for (size_t i = 0, n; i < text.size(); i += n)
    if (!predicate(DecodeUtf8(text, i, &n))) return false;
  return !text.empty();
}

}  // namespace soup::engine::jinja
