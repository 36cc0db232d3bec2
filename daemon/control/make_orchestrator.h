// The factory of soupd's real Orchestrator, for the composition root (main.cc).
#ifndef SOUP_DAEMON_CONTROL_MAKE_ORCHESTRATOR_H_
#define SOUP_DAEMON_CONTROL_MAKE_ORCHESTRATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/control/config.h"
#include "daemon/control/event_hub.h"
#include "daemon/control/job_store.h"
#include "daemon/control/metrics.h"
#include "daemon/control/orchestrator.h"
#include "daemon/control/step_log.h"
#include "daemon/control/storage_watch.h"
#include "engine/base/clock.h"

namespace soup::daemon {

// Borrowed; all of it outlives the orchestrator. The orchestrator does not call
// JobStore::SetListener.
struct OrchestratorParts {
  const Config* config = nullptr;
  JobStore* store = nullptr;
  StepLogs* steps = nullptr;
  EventHub* hub = nullptr;
  Metrics* metrics = nullptr;
  StorageWatch* storage = nullptr;
  const engine::Clock* clock = nullptr;
};

// Opens the shard cache and the host store, and takes back what systemd kept (FDSTORE). No process
// is started before Start(). Errors: those of BaseCache::Open.
absl::StatusOr<std::unique_ptr<Orchestrator>> MakeOrchestrator(const OrchestratorParts& parts);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_MAKE_ORCHESTRATOR_H_
