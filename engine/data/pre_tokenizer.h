// The pre-tokenizer of a tokenizer.json: cuts a text into the pieces within which merges happen.
// None, ByteLevel (own pattern or not, prefix space or not; last of a sequence), Split (pattern or
// literal, every behaviour), Digits, Metaspace, and a Sequence of them. Others are refused by name.
// Immutable; any thread.
#ifndef SOUP_ENGINE_DATA_PRE_TOKENIZER_H_
#define SOUP_ENGINE_DATA_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/json_access.h"
#include "engine/data/metaspace.h"
#include "engine/data/regex.h"

namespace soup::engine {

// A text and the pieces of it that are left, in order. `text` may grow (prefix spaces).
struct PreTokenized {
  std::string text;
  std::vector<MatchSpan> pieces;
};

class PreTokenizer {
 public:
  static absl::StatusOr<PreTokenizer> Create(const JsonNode& node);

  // The vocabulary spells bytes (it ends in ByteLevel); else characters.
  bool byte_level() const { return byte_level_; }

  // Cuts out->text; `out->pieces` is overwritten. Errors: of a pattern (Regex::FindAll).
  absl::Status Apply(TextStart start, PreTokenized* out) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    enum class Kind { kPrefixSpace, kSplit, kDigits, kMetaspace } kind;
    std::shared_ptr<const Regex> pattern;  // kSplit
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    Metaspace space;  // kMetaspace
  };
  struct Cut {
    size_t begin, end;
    bool match;
  };

  absl::Status Append(const JsonNode& node, bool last);
  absl::Status AppendByteLevel(const JsonNode& node);
  absl::Status AppendSplit(const JsonNode& node);
  absl::Status AppendDigits(const JsonNode& node);
  static void MarkSpaces(const Metaspace& space, TextStart start, PreTokenized* out);
  static void AddPrefixSpaces(TextStart start, PreTokenized* out);
  static void Join(const std::vector<Cut>& cuts, Behavior behavior, std::vector<MatchSpan>* out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_PRE_TOKENIZER_H_
