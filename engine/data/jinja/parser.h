// Parses the tokens of a chat template. What is not known (statements, filters, tests) is refused
// here, with line and column, whether it would be reached or not. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_PARSER_H_
#define SOUP_ENGINE_DATA_JINJA_PARSER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/ast.h"

namespace soup::engine::jinja {

// Errors: InvalidArgument (line and column).
absl::StatusOr<Block> Parse(absl::string_view source);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_PARSER_H_
