// Reads the rotary embedding's parameters in all their spellings: `rope_parameters` (newer), or
// `rope_theta` with `rope_scaling` (older), and inside either `rope_type` or (oldest) `type`. Two
// spellings in one file must agree. Types: default, linear, dynamic, llama3, yarn, longrope; any
// other is refused by name, never run as plain rope, and so is a key that no type knows. Errors:
// InvalidArgument. Any thread.
#ifndef SOUP_ENGINE_MODEL_ROPE_CONFIG_H_
#define SOUP_ENGINE_MODEL_ROPE_CONFIG_H_

#include "absl/status/status.h"
#include "engine/model/config_reader.h"
#include "engine/model/family.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

// Fills rope, local_rope, has_local_rope and rotary_dim; heads, head_dim and max_position are there
// already.
absl::Status ReadRope(const Family& family, const ConfigReader& config, ModelSpec& spec);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_ROPE_CONFIG_H_
