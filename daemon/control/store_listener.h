// What follows from a committed state event: watchers wake, metrics move, the step log of an ended
// job is closed. Runs on the job store's writer thread.
#ifndef SOUP_DAEMON_CONTROL_STORE_LISTENER_H_
#define SOUP_DAEMON_CONTROL_STORE_LISTENER_H_

#include "absl/status/status.h"
#include "daemon/control/event_hub.h"
#include "daemon/control/job_store.h"
#include "daemon/control/metrics.h"
#include "daemon/control/step_log.h"

namespace soup::daemon {

class StoreListener {
 public:
  // Everything outlives the store's writer thread.
  StoreListener(JobStore* store, EventHub* hub, Metrics* metrics, StepLogs* steps)
      : store_(store), hub_(hub), metrics_(metrics), steps_(steps) {}

  // Takes up the jobs that are there and listens from now on. Before any write.
  absl::Status Attach();

 private:
  void OnEvent(const JobRecord& record, const soup::v1::JobEvent& event);
  void CountJobs();

  JobStore* const store_;
  EventHub* const hub_;
  Metrics* const metrics_;
  StepLogs* const steps_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_STORE_LISTENER_H_
