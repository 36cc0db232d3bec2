// A BPE tokenizer, over bytes or over characters, read from a Hugging Face tokenizer.json: added
// tokens, normaliser, pre-tokenizer, merges, post-processor, decoder. Ids equal Hugging Face
// tokenizers'. A component that is not known is refused by its name and path in the file, never
// passed over; `truncation` and `padding` are not the tokenizer's business here (transformers sets
// both anew a call too).
//
// Immutable after Create: any thread. What a thread keeps between calls lies in its EncodeContext.
#ifndef SOUP_ENGINE_DATA_TOKENIZER_H_
#define SOUP_ENGINE_DATA_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/data/added_tokens.h"

namespace soup::engine {

// A bounded memory of words already merged, and counts. One a thread, for one tokenizer.
struct EncodeContext {
  absl::flat_hash_map<std::string, std::vector<int32_t>> words;
  int64_t dropped_bytes = 0;  // bytes that this vocabulary has no token for
};

class Tokenizer {
 public:
  // `json`: the content of tokenizer.json; `file`: its name, for messages. Errors: InvalidArgument.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(absl::string_view json,
                                                           const std::string& file);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  ~Tokenizer();

  // Appends the ids of `text` without the post-processor's. Errors: InvalidArgument (not UTF-8, a
  // pattern that backtracks without end).
  absl::Status Encode(absl::string_view text, EncodeContext* context,
                      std::vector<int32_t>* ids) const;

  // The same for a text that goes on where another ended: the blank that some tokenizers put before
  // a text is not put before this one.
  absl::Status EncodeContinued(absl::string_view text, EncodeContext* context,
                               std::vector<int32_t>* ids) const;

  // A place where a reader stops and a writer goes on: at `at`, or, where that is within a token,
  // at `floor` (<= at). Cuts are in order: each `floor` is no less than the `at` before it.
  struct Cut {
    size_t at = 0;
    size_t floor = 0;
  };
  // Encode, and (*counts)[i]: how many of the appended ids lie before cuts[i]. The ids are those of
  // the whole text, so long as what stands before a cut has the ids alone that it has in the whole
  // (first tried at `at`, then at `floor`): a model that has read them can go on with the next one.
  // Where neither holds, both sides of `floor` are encoded apart.
  absl::Status EncodeCut(absl::string_view text, absl::Span<const Cut> cuts, EncodeContext* context,
                         std::vector<int32_t>* ids, std::vector<size_t>* counts) const;

  // What the post-processor puts before and after one text.
  const std::vector<int32_t>& prefix() const;
  const std::vector<int32_t>& suffix() const;

  // Special tokens are kept; ids without a token are left out; U+FFFD stands for bytes that are no
  // UTF-8.
  std::string Decode(absl::Span<const int32_t> ids) const;

  // add_prefix_space of a pre-tokenizer that is ByteLevel alone; nullopt: another one. transformers
  // lets tokenizer_config.json change it.
  std::optional<bool> prefix_space() const;
  // Of a token by its spelling in tokenizer.json (added tokens first); -1: none.
  int32_t IdOf(absl::string_view token) const;
  // An added token by its content; null: none.
  const AddedToken* FindAdded(absl::string_view content) const;
  // Added tokens in a text, left to right (as Encode finds them when the normaliser leaves the text
  // as it is).
  std::vector<AddedSpan> FindAddedTokens(absl::string_view text) const;
  // One more than the largest id.
  int64_t vocab_size() const;

 private:
  Tokenizer();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_TOKENIZER_H_
