// Where Hugging Face tokenizers and the libraries that we ask (PCRE2, utf8proc) know different
// versions of Unicode. Characters that Unicode 15 and 16 added, and their categories: they know
// them, tables of Unicode 14 take them for unassigned. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_UNICODE_RECENT_H_
#define SOUP_ENGINE_DATA_UNICODE_RECENT_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace soup::engine {

struct RecentCharacters {
  char32_t first, last;
  char category[3];  // "Lo", "Nd", ...
};

// In order, apart from each other.
absl::Span<const RecentCharacters> RecentTable();
// The row that `c` is in, or null.
const RecentCharacters* FindRecent(char32_t c);
// Some character of a well-formed text is one of them.
bool HasRecent(absl::string_view text);

// Normal forms have tables older still there (Unicode 12): a character that they change since then
// (or that combines, or composes) is left alone by Hugging Face tokenizers, and nothing is moved or
// composed across it.
bool IsTooRecentToNormalize(char32_t c);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_UNICODE_RECENT_H_
