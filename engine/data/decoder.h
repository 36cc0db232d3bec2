// The decoder of a tokenizer.json: tokens back to text. ByteLevel, Replace, ByteFallback, Fuse,
// Strip, Metaspace and a Sequence of them, as Hugging Face tokenizers runs them; others are refused
// by name. Immutable; any thread.
#ifndef SOUP_ENGINE_DATA_DECODER_H_
#define SOUP_ENGINE_DATA_DECODER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/json_access.h"
#include "engine/data/regex.h"

namespace soup::engine {

// The byte that a token like "<0x0A>" stands for, or -1.
int ByteOfFallbackToken(absl::string_view token);

class Decoder {
 public:
  static absl::StatusOr<Decoder> Create(const JsonNode& node);

  // The text of `tokens` (spellings, each well-formed UTF-8). Without a decoder a blank stands
  // between tokens, as there; U+FFFD stands for bytes that are no UTF-8.
  std::string Decode(std::vector<std::string> tokens) const;

 private:
  struct Step {
    enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace } kind;
    std::shared_ptr<const Regex> pattern;  // kReplace
    std::string content;                   // kReplace: what stands there instead; else a character
    size_t start = 0, stop = 0;            // kStrip: characters at most
    bool drop_first = false;               // kMetaspace
  };

  absl::Status Append(const JsonNode& node);
  absl::Status AppendStrip(const JsonNode& node);
  static void Apply(const Step& step, std::vector<std::string>* tokens);

  std::vector<Step> steps_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_DECODER_H_
