// The added tokens of a tokenizer.json and where they occur in a text: leftmost, longest; a
// `single_word` token needs neighbours that are no word characters; `lstrip` and `rstrip` tokens
// take the white space that touches them. As Hugging Face tokenizers' AddedVocabulary. Immutable
// once built; any thread.
#ifndef SOUP_ENGINE_DATA_ADDED_TOKENS_H_
#define SOUP_ENGINE_DATA_ADDED_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;  // looked for in the normalised text
  bool special = false;
};

// A match in a text: bytes [begin, end), swallowed white space included.
struct AddedSpan {
  size_t begin = 0;
  size_t end = 0;
  const AddedToken* token = nullptr;
};

// Finds the tokens of one group (those that are `normalized`, or those that are not).
class AddedTokenMatcher {
 public:
  // `pattern`: the content as it is looked for (normalised, if need be). Empty ones never match.
  void Add(const AddedToken* token, absl::string_view pattern);
  bool empty() const { return patterns_.empty(); }
  // Appends the matches from left to right.
  void Find(absl::string_view text, std::vector<AddedSpan>* out) const;

 private:
  // Longest pattern that is a prefix of `text`; its length, or 0.
  size_t LongestAt(absl::string_view text, const AddedToken** token) const;

  absl::flat_hash_map<std::string, const AddedToken*> patterns_;
  std::vector<size_t> lengths_[256];  // by first byte, longest first, each once
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_ADDED_TOKENS_H_
