// Cuts a chat template into tokens as jinja2 does with trim_blocks and lstrip_blocks on (Hugging
// Face's setting): `-` and `+` in tags, comments, raw blocks, one newline at the template's end
// left out. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_LEXER_H_
#define SOUP_ENGINE_DATA_JINJA_LEXER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine::jinja {

struct Position {
  int line = 1;    // from 1
  int column = 1;  // in characters, from 1
};

// "line 3 column 7: <what>", InvalidArgument.
absl::Status ErrorAt(Position at, absl::string_view what);

enum class TokenKind {
  kText,  // outside of tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // its value, escapes read
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  Position at;
};

// The last token is kEnd. Errors: InvalidArgument (line and column).
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_LEXER_H_
