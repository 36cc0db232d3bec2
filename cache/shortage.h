// What a ResourceExhausted status of the cache is short of, so that a caller need not read its
// message: host memory comes back when other jobs end; disk, when somebody makes room. Any thread.
#ifndef SOUP_CACHE_SHORTAGE_H_
#define SOUP_CACHE_SHORTAGE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace soup::cache {

enum class Shortage {
  kNone,         // another status
  kDisk,         // of the shard store's disk, or its cap
  kMemoryInUse,  // host memory, of which bases in use hold a part: may fit once they are released
  kMemoryNever,  // host memory, with no base in use: waiting for other jobs does not help
};

Shortage ShortageOf(const absl::Status& status);

// A ResourceExhausted status for want of host memory.
absl::Status MemoryShortage(absl::string_view message, bool bases_in_use);

}  // namespace soup::cache

#endif  // SOUP_CACHE_SHORTAGE_H_
