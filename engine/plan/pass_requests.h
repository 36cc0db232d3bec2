// The buffers of a pass with their lifetimes, before they are laid out. Internal to engine/plan.
// Pure; any thread.
#ifndef SOUP_ENGINE_PLAN_PASS_REQUESTS_H_
#define SOUP_ENGINE_PLAN_PASS_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "engine/plan/arena_layout.h"
#include "engine/plan/job_plan.h"

namespace soup::engine {

struct PassRequests {
  std::vector<BufferRequest> device;
  std::vector<BufferRequest> host;
  int64_t persistent_bytes = 0;  // of the first device requests: MemoryPlan::persistent_bytes
};

// `placement` is normal (NormalPlacement) and possible, jobs are not empty and of one backend.
// `named`: false leaves the names empty, for whoever asks for sizes only.
PassRequests MakePassRequests(const ModelSpec& model, BaseFormat format,
                              const std::vector<PassJob>& jobs, const Placement& placement,
                              bool named);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_PASS_REQUESTS_H_
