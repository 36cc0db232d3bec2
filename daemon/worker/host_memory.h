// The host's memory. Any thread.
#ifndef SOUP_DAEMON_WORKER_HOST_MEMORY_H_
#define SOUP_DAEMON_WORKER_HOST_MEMORY_H_

#include <cstdint>

namespace soup::worker {

// MemTotal of /proc/meminfo; 0: unknown.
int64_t HostMemoryTotal();
// What may be taken now: MemAvailable, or less where a cgroup allows less
// (engine/base/available_memory.h). 0: unknown.
int64_t HostMemoryAvailable();

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_HOST_MEMORY_H_
