// A tokenizer's pattern, matched by PCRE2 with the meaning that Hugging Face tokenizers gives it
// (Oniguruma, Unicode). What the two read differently is translated (\s, \v, \uXXXX) or refused by
// name (\w, \h, anchors, nested classes, ...). Immutable; any thread.
#ifndef SOUP_ENGINE_DATA_REGEX_H_
#define SOUP_ENGINE_DATA_REGEX_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

struct MatchSpan {
  size_t begin = 0;
  size_t end = 0;
};

class Regex {
 public:
  // Errors: InvalidArgument (names the construct and its place in the pattern).
  static absl::StatusOr<std::unique_ptr<Regex>> Create(absl::string_view pattern);
  static absl::StatusOr<std::unique_ptr<Regex>> CreateLiteral(absl::string_view text);
  ~Regex();

  bool MayMatchNothing() const;  // some text has an empty match

  // All matches from left to right, none empty, in well-formed UTF-8. Errors: InvalidArgument
  // (the pattern backtracks without end on this text), ResourceExhausted (memory).
  absl::Status FindAll(absl::string_view text, std::vector<MatchSpan>* out) const;

 private:
  Regex();
  struct Code;
  static absl::Status Compile(const std::string& pattern, unsigned options, Code* out);
  static absl::StatusOr<std::unique_ptr<Regex>> Make(const std::string& plain,
                                                     const std::string& recent, unsigned options);
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_REGEX_H_
