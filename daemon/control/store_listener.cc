#include "daemon/control/store_listener.h"

#include "engine/base/status_macros.h"

namespace soup::daemon {

absl::Status StoreListener::Attach() {
  SOUP_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs, store_->ListUnfinished());
  for (const JobRecord& job : jobs) {
    if (IsWorkedOn(job.state)) metrics_->JobActive(job.id);
  }
  CountJobs();
  store_->SetListener(
      [this](const JobRecord& record, const soup::v1::JobEvent& event) { OnEvent(record, event); });
  return absl::OkStatus();
}

void StoreListener::OnEvent(const JobRecord& record, const soup::v1::JobEvent& event) {
  if (IsWorkedOn(event.state())) {
    metrics_->JobActive(record.id);
  } else {
    metrics_->JobInactive(record.id);
    hub_->ClearProgress(record.id);
  }
  if (HasEnded(event.state())) steps_->Release(record.id);
  CountJobs();
  hub_->Notify(record.id);
}

void StoreListener::CountJobs() {
  const auto counts = store_->CountByState();
  if (counts.ok()) metrics_->SetJobCounts(*counts);
}

}  // namespace soup::daemon
