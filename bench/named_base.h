// Shapes by name: the decoders that benchmarks speak of, or any config.json.
#ifndef SOUP_BENCH_NAMED_BASE_H_
#define SOUP_BENCH_NAMED_BASE_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"

namespace soup::bench {

// `name`: llama-8b (Llama-3.1-8B), llama-70b (Llama-3.1-70B), smollm-135m (SmolLM2-135M), or the
// path of a config.json. Errors: InvalidArgument (neither a name nor a file; lists the names),
// those of ParseModelSpec.
absl::StatusOr<engine::ModelSpec> FindBase(const std::string& name);

}  // namespace soup::bench

#endif  // SOUP_BENCH_NAMED_BASE_H_
