#include "engine/data/unicode.h"

#include <utf8proc.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode_recent.h"

namespace soup::engine {
namespace {

// In the order of utf8proc_category_t.
constexpr const char* kCategoryNames[] = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

// Bytes of the well-formed character at p, or 0. *bad: bytes of the maximal ill-formed part.
size_t WellFormedLength(const unsigned char* p, size_t n, size_t* bad) {
  *bad = 1;
  if (p[0] < 0x80) return 1;
  size_t need;
  unsigned char low = 0x80, high = 0xbf;  // of the second byte (Unicode, table 3-7)
  if (p[0] >= 0xc2 && p[0] <= 0xdf) {
    need = 2;
  } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
    need = 3;
    if (p[0] == 0xe0) low = 0xa0;
    if (p[0] == 0xed) high = 0x9f;
  } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
    need = 4;
    if (p[0] == 0xf0) low = 0x90;
    if (p[0] == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  for (size_t i = 1; i < need; ++i) {
    if (i >= n || p[i] < low || p[i] > high) {
      *bad = i;
      return 0;
    }
    low = 0x80;
    high = 0xbf;
  }
  return need;
}

utf8proc_category_t Category(char32_t c) {
  if (const RecentCharacters* recent = FindRecent(c)) {
    for (int k = UTF8PROC_CATEGORY_LU; k <= UTF8PROC_CATEGORY_CO; ++k) {
      if (absl::string_view(kCategoryNames[k]) == recent->category)
        return static_cast<utf8proc_category_t>(k);
    }
  }
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

absl::Status AppendNormalized(absl::string_view text, NormalForm form, std::string* out) {
  // ASCII is its own normal form.
  bool ascii = true;
  for (char c : text) ascii &= static_cast<signed char>(c) >= 0;
  if (ascii) {
    out->append(text.data(), text.size());
    return absl::OkStatus();
  }
  int options = UTF8PROC_STABLE;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                          static_cast<utf8proc_ssize_t>(text.size()), &made,
                                          static_cast<utf8proc_option_t>(options));
  if (n == UTF8PROC_ERROR_NOMEM)
    return absl::ResourceExhaustedError("no memory to normalise a text");
  if (n < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot normalise a text: ", utf8proc_errmsg(n)));
  }
  out->append(reinterpret_cast<const char*>(made), static_cast<size_t>(n));
  std::free(made);
  return absl::OkStatus();
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(absl::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  size_t i = 0, bad;
  while (i < text.size()) {
    const size_t n = WellFormedLength(p + i, text.size() - i, &bad);
    if (n == 0) return i;
    i += n;
  }
  return std::nullopt;
}

char32_t DecodeUtf8(absl::string_view text, size_t at, size_t* length) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + at;
  if (p[0] < 0x80) {
    *length = 1;
    return p[0];
  }
  if (p[0] < 0xe0) {
    *length = 2;
    return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
  }
  if (p[0] < 0xf0) {
    *length = 3;
    return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
  }
  *length = 4;
  return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out->push_back(static_cast<char>(0xf0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

std::string ReplaceInvalidUtf8(absl::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  std::string out;
  out.reserve(bytes.size());
  size_t i = 0, bad;
  while (i < bytes.size()) {
    const size_t n = WellFormedLength(p + i, bytes.size() - i, &bad);
    if (n > 0) {
      out.append(bytes.data() + i, n);
      i += n;
    } else {
      out.append("\xef\xbf\xbd");
      i += bad;
    }
  }
  return out;
}

size_t CountCharacters(absl::string_view text) {
  size_t n = 0;
  for (char c : text) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  switch (c) {
    case 0x85:
    case 0xa0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202f:
    case 0x205f:
    case 0x3000:
      return true;
    default:
      return c >= 0x2000 && c <= 0x200a;
  }
}

bool IsPythonSpace(char32_t c) { return IsSpace(c) || (c >= 0x1c && c <= 0x1f); }

bool IsWord(char32_t c) {
  if (c < 0x80) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  if (c == 0x200c || c == 0x200d) return true;  // Join_Control
  // Other_Alphabetic outside of letters and marks: circled and squared Latin letters.
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
      (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189)) {
    return true;
  }
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool IsLetter(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t k = Category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU; }
bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL; }
char32_t ToUpper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t ToLower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}
char32_t ToTitle(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

absl::StatusOr<std::string> Normalize(absl::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;
  for (size_t i = 0, n; i < text.size(); i += n) {
    n = 1;
    if (static_cast<signed char>(text[i]) >= 0) continue;
    if (!IsTooRecentToNormalize(DecodeUtf8(text, i, &n))) continue;
    SOUP_RETURN_IF_ERROR(AppendNormalized(text.substr(begin, i - begin), form, &out));
    out.append(text.data() + i, n);
    begin = i + n;
  }
  SOUP_RETURN_IF_ERROR(AppendNormalized(text.substr(begin), form, &out));
  return out;
}

}  // namespace soup::engine
