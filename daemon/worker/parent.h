// A worker does not outlive its soupd. Thread-safe.
#ifndef SOUP_DAEMON_WORKER_PARENT_H_
#define SOUP_DAEMON_WORKER_PARENT_H_

#include <sys/types.h>

namespace soup::worker {

// Asks the kernel to kill this process when the thread that spawned it ends, and ends it at once
// when that has happened already. `parent`: soupd's pid; 0: not checked.
void DieWithParent(pid_t parent);

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_PARENT_H_
