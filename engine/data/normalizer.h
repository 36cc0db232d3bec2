// The normaliser of a tokenizer.json: none, NFC, NFD, NFKC, NFKD, Prepend, Replace, or a Sequence
// of them. Others are refused by name. Immutable; any thread.
#ifndef SOUP_ENGINE_DATA_NORMALIZER_H_
#define SOUP_ENGINE_DATA_NORMALIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/json_access.h"
#include "engine/data/metaspace.h"
#include "engine/data/regex.h"
#include "engine/data/unicode.h"

namespace soup::engine {

class Normalizer {
 public:
  static absl::StatusOr<Normalizer> Create(const JsonNode& node);
  bool identity() const { return steps_.empty(); }
  absl::StatusOr<std::string> Apply(absl::string_view text,
                                    TextStart start = TextStart::kText) const;

 private:
  struct Step {
    enum class Kind { kForm, kPrepend, kReplace } kind;
    NormalForm form = NormalForm::kNfc;    // kForm
    std::shared_ptr<const Regex> pattern;  // kReplace; null: `from`, a literal
    std::string from;                      // kReplace
    std::string content;                   // kPrepend, kReplace
  };

  absl::Status Append(const JsonNode& node);
  absl::Status AppendReplace(const JsonNode& node);
  std::vector<Step> steps_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_NORMALIZER_H_
