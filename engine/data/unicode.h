// UTF-8 and the few Unicode properties that tokenizers and chat templates ask for. Pure functions;
// any thread. Properties follow the meaning that Hugging Face tokenizers gives them (Rust's char
// and regex): utf8proc holds the tables.
#ifndef SOUP_ENGINE_DATA_UNICODE_H_
#define SOUP_ENGINE_DATA_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// Offset of the first byte that is no part of well-formed UTF-8 (surrogates and overlong forms are
// not); nullopt: all is well.
std::optional<size_t> FindInvalidUtf8(absl::string_view text);

// The character at `text[at]` of well-formed UTF-8; its bytes in *length.
char32_t DecodeUtf8(absl::string_view text, size_t at, size_t* length);

// Appends a character (a Unicode scalar value).
void AppendUtf8(char32_t c, std::string* out);

// Each maximal ill-formed part becomes one U+FFFD.
std::string ReplaceInvalidUtf8(absl::string_view bytes);

// Characters in well-formed UTF-8.
size_t CountCharacters(absl::string_view text);

bool IsSpace(char32_t c);        // White_Space
bool IsPythonSpace(char32_t c);  // str.isspace(): the same and U+001C to U+001F
bool IsWord(char32_t c);         // \w: letters, marks, decimal digits, connectors, joiners
bool IsLetter(char32_t c);       // L*
bool IsNumeric(char32_t c);      // Nd, Nl, No
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
char32_t ToUpper(char32_t c);  // simple mapping
char32_t ToLower(char32_t c);
char32_t ToTitle(char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Errors: InvalidArgument (ill-formed UTF-8), ResourceExhausted.
absl::StatusOr<std::string> Normalize(absl::string_view text, NormalForm form);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_UNICODE_H_
