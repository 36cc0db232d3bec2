// Text that may come from anywhere and goes into protos, the database and messages.
// Pure functions; any thread.
#ifndef SOUP_DAEMON_CONTROL_TEXT_H_
#define SOUP_DAEMON_CONTROL_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace soup::daemon {

// Valid UTF-8 (no overlong forms, no surrogates)?
bool IsUtf8(absl::string_view text);
// At most `max_bytes` of `text` as valid UTF-8: bad bytes become '?', a cut text ends by saying how
// many bytes were left out.
std::string CleanText(absl::string_view text, size_t max_bytes);
// `text` for a message: quoted, control characters and quotes escaped, at most 64 bytes of it.
std::string Quoted(absl::string_view text);
bool HasControlCharacters(absl::string_view text);
// "1.5 GiB"
std::string HumanBytes(int64_t bytes);
// 64 lower-case hex digits.
bool IsSha256Hex(absl::string_view text);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_TEXT_H_
