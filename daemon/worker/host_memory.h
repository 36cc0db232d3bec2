// The host's memory, as /proc/meminfo tells it. Any thread.
#ifndef SOUP_DAEMON_WORKER_HOST_MEMORY_H_
#define SOUP_DAEMON_WORKER_HOST_MEMORY_H_

#include <cstdint>

namespace soup::worker {

// All of it, and what of it is available. 0: unknown.
int64_t HostMemoryTotal();
int64_t HostMemoryAvailable();

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_HOST_MEMORY_H_
