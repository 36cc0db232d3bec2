// Reads the rotary embedding's parameters in all their spellings: `rope_parameters` (newer), or
// `rope_theta` with `rope_scaling` (older), and inside either `rope_type` or (oldest) `type`. Two
// spellings in one file must agree. Types: default, linear, llama3; any other is refused by name,
// never run as plain rope. Errors: InvalidArgument. Any thread.
#ifndef SOUP_ENGINE_MODEL_ROPE_CONFIG_H_
#define SOUP_ENGINE_MODEL_ROPE_CONFIG_H_

#include "absl/status/statusor.h"
#include "engine/model/config_reader.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

absl::StatusOr<RopeSpec> ReadRope(const ConfigReader& config);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_ROPE_CONFIG_H_
