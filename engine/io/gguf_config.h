// The config.json of the model in a GGUF file, from its metadata. Used by gguf_model.cc.
#ifndef SOUP_ENGINE_IO_GGUF_CONFIG_H_
#define SOUP_ENGINE_IO_GGUF_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/io/gguf_reader.h"

namespace soup::engine {

// How an architecture's tensors are called, and what differs between architectures.
struct GgufArchitecture {
  const char* name;          // general.architecture
  const char* model_type;    // config.json's
  const char* architecture;  // config.json's architectures
  bool interleaved;          // rows of q and k lie by interleaved rotary pairs
  struct Part {
    const char* gguf;  // "attn_q.weight", of blk.<i>.
    const char* name;  // "self_attn.q_proj.weight", of model.layers.<i>.
  };
  absl::Span<const Part> parts;
};

struct GgufShape {
  const GgufArchitecture* architecture = nullptr;
  int64_t layers = 0, heads = 0, kv_heads = 0;
  std::string config_json;
};

// Errors: InvalidArgument, naming the key.
absl::StatusOr<GgufShape> ReadGgufConfig(const GgufFile& file);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_CONFIG_H_
