// Checkpoints that ended jobs have left behind. A job that succeeded has its adapter and loses them
// at once (DaemonOrchestrator::CleanUp); those of cancelled and failed jobs are kept for a while,
// for whoever wants to look, and collected here.
#ifndef SOUP_DAEMON_CONTROL_CHECKPOINT_COLLECTOR_H_
#define SOUP_DAEMON_CONTROL_CHECKPOINT_COLLECTOR_H_

#include <cstdint>

#include "daemon/control/config.h"
#include "daemon/control/job_store.h"

namespace soup::daemon {

// Removes the checkpoints of jobs that ended `age_seconds` ago or earlier. Any thread; what cannot
// be removed is logged and tried at the next call.
void CollectCheckpoints(const Config& config, const JobStore& store, int64_t now_unix_ms,
                        int64_t age_seconds);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_CHECKPOINT_COLLECTOR_H_
