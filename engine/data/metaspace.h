// What normaliser, pre-tokenizer and decoder of a tokenizer.json share: the Metaspace component's
// settings, and replacing in texts. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_METASPACE_H_
#define SOUP_ENGINE_DATA_METASPACE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/json_access.h"
#include "engine/data/regex.h"

namespace soup::engine {

struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;  // one character, U+2581 as a rule
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// Where a text begins: at the user's text's start, after an added token, or in the middle of a text
// (what puts something before a text puts nothing before such a one).
enum class TextStart { kText, kLater, kContinued };

// {"type": "Metaspace", "replacement", "prepend_scheme" or the older "add_prefix_space", "split"}.
absl::StatusOr<Metaspace> ReadMetaspace(const JsonNode& node);

// {"String": text} or {"Regex": pattern}, of a Replace. Errors: InvalidArgument (also for a pattern
// that may match nothing).
absl::StatusOr<std::unique_ptr<Regex>> ReadReplacePattern(const JsonNode& node);

// `text` with each match replaced by `content`, taken literally. Errors: of Regex::FindAll.
absl::StatusOr<std::string> ReplaceAll(const Regex& pattern, absl::string_view text,
                                       absl::string_view content);
// The same for a literal `from`, which is not empty.
std::string ReplaceEvery(absl::string_view text, absl::string_view from, absl::string_view to);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_METASPACE_H_
