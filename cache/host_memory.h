// Host memory: how much may be taken (engine/base/available_memory.h), and a port that takes it.
// Thread-safe.
#ifndef SOUP_CACHE_HOST_MEMORY_H_
#define SOUP_CACHE_HOST_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/available_memory.h"
#include "engine/base/unique_fd.h"

namespace soup::cache {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Best first. kPageable is reported by a worker that could not register the memory.
enum class MemoryTier : uint8_t { kHugetlb, kHuge, kPlain, kPageable };
const char* MemoryTierName(MemoryTier tier);  // "hugetlb" | "huge" | "plain" | "pageable"

using engine::AvailableMemory;
using engine::ReadAvailableMemory;

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

}  // namespace soup::cache

#endif  // SOUP_CACHE_HOST_MEMORY_H_
