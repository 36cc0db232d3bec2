#include "engine/data/byte_level.h"

#include <array>

#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

struct Tables {
  std::array<char32_t, 256> character;
  std::array<int16_t, 512> byte;  // -1: none

  Tables() {
    byte.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      character[b] = itself ? static_cast<char32_t>(b) : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};

const Tables& GetTables() {
  static const Tables* const tables = new Tables;
  return *tables;
}

}  // namespace

char32_t ByteToCharacter(uint8_t byte) { return GetTables().character[byte]; }

std::optional<std::string> BytesOfToken(absl::string_view token) {
  const Tables& tables = GetTables();
  std::string out;
  out.reserve(token.size());
  for (size_t i = 0, n; i < token.size(); i += n) {
    const char32_t c = DecodeUtf8(token, i, &n);
    if (c >= tables.byte.size() || tables.byte[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(tables.byte[c]));
  }
  return out;
}

}  // namespace soup::engine
