#include "daemon/control/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace soup::daemon {
namespace {

// Bytes of the UTF-8 sequence that starts at `i`; 0 when it is not one.
size_t SequenceBytes(absl::string_view s, size_t i) {
  const auto at = [&](size_t k) { return static_cast<unsigned char>(s[k]); };
  const unsigned char c = at(i);
  if (c < 0x80) return 1;
  size_t n = 0;
  uint32_t code = 0;
  if (c >= 0xc2 && c <= 0xdf) {
    n = 2;
    code = c & 0x1fu;
  } else if (c >= 0xe0 && c <= 0xef) {
    n = 3;
    code = c & 0x0fu;
  } else if (c >= 0xf0 && c <= 0xf4) {
    n = 4;
    code = c & 0x07u;
  } else {
    return 0;
  }
  if (i + n > s.size()) return 0;
  for (size_t k = 1; k < n; ++k) {
    if ((at(i + k) & 0xc0u) != 0x80u) return 0;
    code = (code << 6) | (at(i + k) & 0x3fu);
  }
  const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  const bool outside = code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff);
  return overlong || outside ? 0 : n;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = SequenceBytes(text, i);
    if (n == 0) return false;
    i += n;
  }
  return true;
}

std::string CleanText(absl::string_view text, size_t max_bytes) {
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    const size_t n = SequenceBytes(text, i);
    const size_t add = n == 0 ? 1 : n;
    if (out.size() + add > max_bytes) break;
    if (n == 0) {
      out.push_back('?');
    } else {
      out.append(text.data() + i, n);
    }
    i += add;
  }
  if (i < text.size()) absl::StrAppend(&out, " … (", text.size() - i, " more bytes)");
  return out;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, 64)), text.size() > 64 ? "…" : "",
                      "\"");
}

bool HasControlCharacters(absl::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
  }
  return false;
}

std::string HumanBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

bool IsSha256Hex(absl::string_view text) {
  if (text.size() != 64) return false;
  for (const char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

}  // namespace soup::daemon
