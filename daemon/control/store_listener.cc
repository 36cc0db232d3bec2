#include "daemon/control/store_listener.h"

#include "engine/base/status_macros.h"

namespace soup::daemon {

absl::Status StoreListener::Attach() {
  SOUP_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs, store_->ListUnfinished());
  for (const JobRecord& job : jobs) {
    unfinished_[job.id] = Seen{job.state, job.queued_unix_ms};
    if (IsWorkedOn(job.state)) metrics_->JobActive(job.id);
  }
  CountJobs();
  store_->SetListener(
      [this](const JobRecord& record, const soup::v1::JobEvent& event) { OnEvent(record, event); });
  return absl::OkStatus();
}

void StoreListener::OnEvent(const JobRecord& record, const soup::v1::JobEvent& event) {
  const auto before = unfinished_.find(record.id);
  const bool starts = event.state() == soup::v1::PREPARING || event.state() == soup::v1::RUNNING;
  if (starts && before != unfinished_.end() && before->second.state == soup::v1::QUEUED) {
    metrics_->QueueWaited(static_cast<double>(event.unix_ms() - before->second.queued_unix_ms) /
                          1000.0);
  }
  if (IsWorkedOn(event.state())) {
    metrics_->JobActive(record.id);
  } else {
    metrics_->JobInactive(record.id);
    hub_->ClearProgress(record.id);
  }
  if (HasEnded(event.state())) {
    unfinished_.erase(record.id);
    steps_->Release(record.id);
  } else {
    unfinished_[record.id] = Seen{event.state(), record.queued_unix_ms};
  }
  CountJobs();
  hub_->Notify(record.id);
}

void StoreListener::CountJobs() {
  const auto counts = store_->CountByState();
  if (counts.ok()) metrics_->SetJobCounts(*counts);
}

}  // namespace soup::daemon
