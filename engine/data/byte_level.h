// The byte <-> character table of byte-level BPE (GPT-2): printable Latin-1 bytes stand for
// themselves, the other 68 for U+0100 and up in order. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_BYTE_LEVEL_H_
#define SOUP_ENGINE_DATA_BYTE_LEVEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace soup::engine {

char32_t ByteToCharacter(uint8_t byte);
// The bytes that a token of a byte-level vocabulary stands for; nullopt when it holds a character
// that stands for none (an added token with a blank in it, say). `token` is well-formed UTF-8.
std::optional<std::string> BytesOfToken(absl::string_view token);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_BYTE_LEVEL_H_
