// The normaliser of a tokenizer.json: none, NFC, NFD, NFKC, NFKD, or a Sequence of them. Others are
// refused by name. Immutable; any thread.
#ifndef SOUP_ENGINE_DATA_NORMALIZER_H_
#define SOUP_ENGINE_DATA_NORMALIZER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/json_access.h"
#include "engine/data/unicode.h"

namespace soup::engine {

class Normalizer {
 public:
  static absl::StatusOr<Normalizer> Create(const JsonNode& node);
  bool identity() const { return forms_.empty(); }
  absl::StatusOr<std::string> Apply(absl::string_view text) const;

 private:
  absl::Status Append(const JsonNode& node);
  std::vector<NormalForm> forms_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_NORMALIZER_H_
