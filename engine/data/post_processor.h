// What a tokenizer.json's post-processor puts around one text: TemplateProcessing ("single"),
// ByteLevel (nothing), or a Sequence of them. Others are refused by name. Plain value; any thread.
#ifndef SOUP_ENGINE_DATA_POST_PROCESSOR_H_
#define SOUP_ENGINE_DATA_POST_PROCESSOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/json_access.h"

namespace soup::engine {

struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

absl::StatusOr<PostProcessor> ReadPostProcessor(const JsonNode& node);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_POST_PROCESSOR_H_
