// The config.json of the model in a GGUF file, from its metadata. Used by gguf_model.cc.
#ifndef SOUP_ENGINE_IO_GGUF_CONFIG_H_
#define SOUP_ENGINE_IO_GGUF_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/io/gguf_architecture.h"
#include "engine/io/gguf_reader.h"

namespace soup::engine {

struct GgufShape {
  const GgufArchitecture* architecture = nullptr;
  int64_t layers = 0, heads = 0, kv_heads = 0;
  int64_t experts = 0;  // 0: none
  std::string config_json;
};

// Errors: InvalidArgument, naming the key.
absl::StatusOr<GgufShape> ReadGgufConfig(const GgufFile& file);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_CONFIG_H_
