// How much host memory may be taken now.
//
// Available = the smallest of MemAvailable and, for every cgroup (v1 or v2) from ours to the root,
// its limit less its use (page cache that can be given back counts as free). Source: proc(5), the
// kernel's cgroup-v1/memory and cgroup-v2 documents. Any thread.
#ifndef SOUP_ENGINE_BASE_AVAILABLE_MEMORY_H_
#define SOUP_ENGINE_BASE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace soup::engine {

struct AvailableMemory {
  int64_t bytes = 0;
  std::string bound_by;  // "MemAvailable" or "cgroup /path (memory.max)"
  // What it could be at most, were nobody else there: the smallest of MemTotal and those limits. 0:
  // not known.
  int64_t total_bytes = 0;
};

// From files under `root` ("" in production; a made-up tree in tests).
absl::StatusOr<AvailableMemory> ReadAvailableMemory(const std::string& root);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_AVAILABLE_MEMORY_H_
