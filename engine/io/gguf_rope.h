// The rope keys of a config.json from a GGUF file's metadata and rope tensors. Used by
// gguf_config.cc.
#ifndef SOUP_ENGINE_IO_GGUF_ROPE_H_
#define SOUP_ENGINE_IO_GGUF_ROPE_H_

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "engine/io/gguf_architecture.h"
#include "engine/io/gguf_reader.h"

namespace soup::engine {

// A float of the file as the decimal number that it was written from: 1e-05, not 9.9999997e-06.
double DecimalOf(double value);

// Adds rope_theta, rope_scaling and what the architecture has beside them (rope_local_base_freq,
// partial_rotary_factor, original_max_position_embeddings). Errors: InvalidArgument, naming the key
// or tensor.
absl::Status AddGgufRope(const GgufFile& file, const GgufArchitecture& arch, int64_t head_dim,
                         int64_t positions, nlohmann::ordered_json& config);

// Tensors that are part of the config.
bool IsGgufRopeTensor(absl::string_view name);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_ROPE_H_
