// SIGINT and SIGTERM as a flag that every wait of the client looks at, so that a watch can detach,
// a download can remove its temporary file, and a second Ctrl-C still kills at once. Thread-safe.
#ifndef SOUP_CLIENT_INTERRUPT_H_
#define SOUP_CLIENT_INTERRUPT_H_

#include "absl/time/time.h"

namespace soup::client {

// Called once by main. The first SIGINT or SIGTERM sets the flag, the second has its default
// effect.
void InstallSignalHandlers();
// 0, or the signal that came.
int PendingSignal();
// Waits, and returns false at once when a signal comes.
bool SleepUnlessInterrupted(absl::Duration duration);

}  // namespace soup::client

#endif  // SOUP_CLIENT_INTERRUPT_H_
