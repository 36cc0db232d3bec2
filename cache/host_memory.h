// Host memory: how much may be taken, and a port that takes it.
//
// Available = the smallest of MemAvailable and, for every cgroup (v1 or v2) from ours to the root,
// its limit less its use (page cache that can be given back counts as free). Source: proc(5), the
// kernel's cgroup-v1/memory and cgroup-v2 documents. Thread-safe.
#ifndef SOUP_CACHE_HOST_MEMORY_H_
#define SOUP_CACHE_HOST_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/unique_fd.h"

namespace soup::cache {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Best first. kPageable is reported by a worker that could not register the memory.
enum class MemoryTier : uint8_t { kHugetlb, kHuge, kPlain, kPageable };
const char* MemoryTierName(MemoryTier tier);  // "hugetlb" | "huge" | "plain" | "pageable"

struct AvailableMemory {
  int64_t bytes = 0;
  std::string bound_by;  // "MemAvailable" or "cgroup /path (memory.max)"
};

class HostMemory {
 public:
  virtual ~HostMemory() = default;
  virtual absl::StatusOr<AvailableMemory> Available() = 0;
  // A memfd of `bytes` (a multiple of 2 MiB). tier kHugetlb: hugetlb pages, reserved at once, or
  // ResourceExhausted; otherwise ordinary memory.
  virtual absl::StatusOr<engine::UniqueFd> CreateSegment(const std::string& name, int64_t bytes,
                                                         MemoryTier tier) = 0;
};

HostMemory& RealHostMemory();

// Available() against files under `root` ("" in production; a made-up tree in tests).
absl::StatusOr<AvailableMemory> ReadAvailableMemory(const std::string& root);

}  // namespace soup::cache

#endif  // SOUP_CACHE_HOST_MEMORY_H_
