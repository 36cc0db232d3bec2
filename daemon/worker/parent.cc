#include "daemon/worker/parent.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace soup::worker {

void DieWithParent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died between our start and the line above.
  if (parent > 0 && ::getppid() != parent) ::_exit(1);
}

}  // namespace soup::worker
