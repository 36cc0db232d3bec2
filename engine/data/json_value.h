// JSON text to Value: the order of keys is kept, and what Python's json would read otherwise than
// written is refused rather than bent (integers beyond 64 bits, a key told twice, halves of
// surrogate pairs). Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JSON_VALUE_H_
#define SOUP_ENGINE_DATA_JSON_VALUE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/value.h"

namespace soup::engine {

// `text` is well-formed UTF-8. Errors: InvalidArgument; where the place is known the message
// starts with "column N: ", counted in characters from 1 (the text is taken to be one line).
absl::StatusOr<Value> ParseJsonValue(absl::string_view text);

// The same with the place of an error apart, for texts of several lines: *error_at is a byte offset
// in `text`, npos when it is not known.
absl::StatusOr<Value> ParseJsonValue(absl::string_view text, size_t* error_at);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_JSON_VALUE_H_
