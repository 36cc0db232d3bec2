// Preparing jobs, moving them through their states, and leaving nothing behind.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/control/daemon_orchestrator.h"
#include "daemon/control/text.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"

namespace soup::daemon {
namespace {

constexpr absl::Duration kDiskRetry = absl::Seconds(1);
constexpr absl::Duration kRoomRetry = absl::Seconds(10);
constexpr int64_t kMaxLogBytes = int64_t{8} << 20;

}  // namespace

// ---- states ----

void DaemonOrchestrator::TakeRecord(Job* job, const JobRecord& record) {
  job->state = record.state;
  job->device_losses = record.device_losses;
  job->queued_at = absl::FromUnixMillis(record.queued_unix_ms);
  job->ran_before_ms = record.running_ms;
  job->run_started = AttemptBegun(record);
}

void DaemonOrchestrator::Move(Job* job, JobTrigger trigger, Reason reason,
                              const std::string& message, std::function<void(Job*)> then) {
  job->move_pending = true;
  MoveOnce(job->id, trigger, reason, message, then);
}

void DaemonOrchestrator::MoveOnce(const std::string& job_id, JobTrigger trigger, Reason reason,
                                  const std::string& message,
                                  const std::function<void(Job*)>& then) {
  Job* job = Find(job_id);
  if (job == nullptr) return;
  const JobState before = job->state;
  auto record = parts_.store->Transition(job_id, trigger, reason, message);
  if (absl::IsResourceExhausted(record.status()) || absl::IsUnavailable(record.status())) {
    SOUP_LOG(kWarn, "jobs") << job_id << ": " << record.status().message()
                            << "; trying again every second";
    loop_.After(kDiskRetry, [this, job_id, trigger, reason, message, then] {
      MoveOnce(job_id, trigger, reason, message, then);
    });
    return;
  }
  job->move_pending = false;
  ++work_;
  if (!record.ok()) {
    // A user's request came first (or the database is damaged): go by what the store says.
    SOUP_LOG(kInfo, "jobs") << record.status().message();
    auto now = parts_.store->GetJob(job_id);
    if (!now.ok()) {
      SOUP_LOG(kError, "jobs") << job_id << ": " << now.status().message();
      return;
    }
    TakeRecord(job, *now);
    if (now->state != before) {
      Attend(job);
      Schedule();
    }
    return;
  }
  // What an earlier soupd left, and there was no room to write it at the start.
  if (trigger == JobTrigger::kInterrupted && reason != soup::v1::WORKER_LOST &&
      reason != soup::v1::DEVICE_LOST) {
    CountCutAttempt(job->run_started, &*record);
  }
  TakeRecord(job, *record);
  LogOf(job_id,
        absl::StrCat(JobStateName(record->state), reason == soup::v1::REASON_UNSPECIFIED ? "" : " ",
                     ReasonName(reason), message.empty() ? "" : ": ", message));
  if (before == soup::v1::QUEUED &&
      (record->state == soup::v1::PREPARING || record->state == soup::v1::RUNNING))
    parts_.metrics->QueueWaited(absl::ToDoubleSeconds(absl::Now() - job->queued_at));
  UpdateQueuePositions();
  if (then) then(job);
}

// Does the next thing for a job, by the state that the store gave it.
void DaemonOrchestrator::Attend(Job* job) {
  if (job->move_pending || job->waiting || job->in_pass) return;
  switch (job->state) {
    case soup::v1::CANCELLING:
      job->exit = Exit{JobTrigger::kCancelled, soup::v1::USER_REQUEST, "cancelled as asked"};
      break;
    case soup::v1::PAUSING:
      // What went wrong meanwhile says more than the request.
      if (!job->exit.has_value() ||
          (job->exit->trigger != JobTrigger::kPaused && job->exit->trigger != JobTrigger::kFailed))
        job->exit = Exit{JobTrigger::kPaused, soup::v1::USER_REQUEST, "paused as asked"};
      break;
    case soup::v1::CANCELLED:
    case soup::v1::SUCCEEDED:
    case soup::v1::FAILED:
      if (!LeaveWorker(job, false, true)) return;
      Forget(job);
      return;
    case soup::v1::PAUSED:
      if (!LeaveWorker(job, true, false)) return;
      Forget(job);
      return;
    default:
      break;
  }
  if (job->exit.has_value()) {
    // Kept by value: a fault of the checkpoint may change it.
    if (!LeaveWorker(job, job->exit->checkpoint, job->state == soup::v1::CANCELLING)) return;
    Settle(job);
    return;
  }
  if (job->state == soup::v1::FINALIZING && job->open) {
    soup::worker::v1::ToWorker m;
    m.mutable_finalize()->set_job_id(job->id);
    m.mutable_finalize()->set_base_model_name(job->spec.base().path());
    OrderJob(job, m);
  }
}

// True once no thread and no worker has the job; else has begun what leads there.
bool DaemonOrchestrator::LeaveWorker(Job* job, bool checkpoint, bool remove_mirror) {
  if (job->preparing) {
    if (job->cancel != nullptr) job->cancel->Cancel();
    return false;
  }
  if (!job->open) return true;
  soup::worker::v1::ToWorker m;
  if (checkpoint && !job->checkpointed) {
    job->checkpointed = true;  // asked for once
    m.mutable_save_checkpoint()->set_job_id(job->id);
  } else {
    m.mutable_close_job()->set_job_id(job->id);
    m.mutable_close_job()->set_remove_mirror(remove_mirror);
  }
  return !OrderJob(job, m);  // no worker any more: nobody has it
}

// Writes the state that the job was being brought to.
void DaemonOrchestrator::Settle(Job* job) {
  const Exit exit = *job->exit;
  job->exit.reset();
  Move(job, exit.trigger, exit.reason, exit.message, [this](Job* j) {
    if (HasEnded(j->state) || j->state == soup::v1::PAUSED) {
      Attend(j);
    }
    Schedule();
  });
}

// The job has ended or rests: its place, its base and its memory are free.
void DaemonOrchestrator::Forget(Job* job) {
  const std::string id = job->id;
  const JobState state = job->state;
  // Paused: the mirror tells it again when the job goes on.
  if (HasEnded(state) && job->held_step.has_value()) Publish(job, *job->held_step);
  parts_.hub->ClearProgress(id);
  parts_.steps->Flush(id).IgnoreError();
  jobs_.erase(id);
  planner_.Forget();
  if (HasEnded(state)) CleanUp(id, state);
  for (auto& [other_id, other] : jobs_)  // room was made
    if (other->not_before != absl::InfiniteFuture()) other->not_before = absl::InfinitePast();
  UpdateQueuePositions();
  Schedule();
}

// What an ended job does not need: its mirror and its tokens; and what it must not show.
void DaemonOrchestrator::CleanUp(const std::string& job_id, JobState state) {
  engine::FileSystem& fs = engine::RealFileSystem();
  const std::string dir = config_.JobDir(job_id);
  for (const absl::Status& status :
       {fs.RemoveTree(config_.MirrorDir(job_id)), fs.Remove(dir + "/dataset.sds"),
        fs.Remove(dir + "/prepared.bin"),
        // The adapter is all that a job is for; one that did not come to it keeps its checkpoints.
        state == soup::v1::SUCCEEDED ? fs.RemoveTree(dir + "/checkpoints")
                                     : fs.RemoveTree(config_.ArtifactDir(job_id))}) {
    if (!status.ok()) {
      SOUP_LOG(kWarn, "jobs") << job_id << ": " << status.message();
    }
  }
  parts_.steps->Release(job_id);
}

void DaemonOrchestrator::LogOf(const std::string& job_id, const std::string& line) {
  engine::FileSystem& fs = engine::RealFileSystem();
  const std::string path = config_.JobLogPath(job_id);
  auto size = fs.FileSize(path);
  if (size.ok() && *size > kMaxLogBytes) return;
  if (!size.ok() && !fs.CreateDirectories(config_.JobDir(job_id)).ok()) return;
  const std::string stamped =
      absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                   CleanText(line, 4096), "\n");
  // A log that cannot be written must not stop the job that it tells of.
  fs.AppendFile(path, stamped, /*sync=*/false).IgnoreError();
  parts_.hub->Notify(job_id);
}

// ---- admission and preparing ----

void DaemonOrchestrator::Schedule() {
  if (schedule_asked_) return;
  schedule_asked_ = true;
  loop_.Post([this] { DoSchedule(); });
}

void DaemonOrchestrator::DoSchedule() {
  schedule_asked_ = false;
  if (draining_) {
    DrainStep();
    return;
  }
  Admit();
  StartPass();
}

void DaemonOrchestrator::ScheduleAt(absl::Time when) {
  if (when >= wake_at_) return;
  wake_at_ = when;
  loop_.After(when - absl::Now(), [this, when] {
    if (wake_at_ == when) wake_at_ = absl::InfiniteFuture();
    Schedule();
  });
}

void DaemonOrchestrator::Admit() {
  std::vector<SchedulerJob> queued;
  std::map<std::string, int32_t> active;
  std::vector<std::string> users;
  const absl::Time now = absl::Now();
  absl::Time wake = absl::InfiniteFuture();
  for (const auto& [id, job] : jobs_) {
    if (job->admitted) ++active[job->user];
    users.push_back(job->user);
    if (job->admitted || job->preparing || job->move_pending || job->state != soup::v1::QUEUED)
      continue;
    if (job->not_before > now) {
      wake = std::min(wake, job->not_before);
      continue;
    }
    SchedulerJob s;
    s.id = id;
    s.user = job->user;
    s.priority = job->priority;
    s.order = job->order;
    s.waited_seconds = absl::ToDoubleSeconds(now - job->queued_at);
    queued.push_back(std::move(s));
  }
  std::sort(users.begin(), users.end());
  users.erase(std::unique(users.begin(), users.end()), users.end());
  share_.SetActive(users);
  ScheduleAt(wake);
  AdmissionLimits limits;
  limits.running_per_user =
      config_.quota_running > 0
          ? static_cast<int32_t>(std::min<int64_t>(config_.quota_running, limits.running))
          : limits.running;
  for (const std::string& id : AdmitJobs(queued, active, share_, limits)) StartPreparing(Find(id));
}

void DaemonOrchestrator::StartPreparing(Job* job) {
  job->admitted = true;
  Move(job, JobTrigger::kPrepareStarted, soup::v1::REASON_UNSPECIFIED, "", [this](Job* j) {
    auto record = parts_.store->GetJob(j->id);
    if (!record.ok()) {
      SOUP_LOG(kError, "jobs") << j->id << ": " << record.status().message();
      return;
    }
    j->preparing = true;
    j->cancel = std::make_shared<Cancellation>();
    auto task = [this, r = *std::move(record), c = j->cancel] { PrepareOnThread(r, c); };
    if (!prepare_pool_->TrySubmit(task)) {
      j->preparing = false;
      j->exit = Exit{JobTrigger::kRequeued, soup::v1::REASON_UNSPECIFIED,
                     "too many jobs prepare at once; it waits"};
      j->admitted = false;
      j->not_before = absl::Now() + kRoomRetry;
      Attend(j);
    }
  });
}

absl::StatusOr<engine::MachineProfile> DaemonOrchestrator::AwaitProfile(Cancellation* cancel) {
  bool cancelled = false;
  cancel->SetWaker([this, &cancelled] {
    absl::MutexLock lock(&mu_);
    cancelled = true;
  });
  absl::StatusOr<engine::MachineProfile> profile = absl::CancelledError("cancelled");
  {
    absl::MutexLock lock(&mu_);
    auto ready = [this, &cancelled]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return cancelled || closing_ || !device_.backend.empty();
    };
    // A worker that does not come up at all is tried for ever; the job waits, and says so.
    mu_.Await(absl::Condition(&ready));
    if (!cancelled && !closing_) profile = device_.profile;
  }
  cancel->SetWaker(nullptr);
  return profile;
}

void DaemonOrchestrator::PrepareOnThread(JobRecord record, std::shared_ptr<Cancellation> cancel) {
  const std::string id = record.id;
  auto last = std::make_shared<std::pair<absl::Mutex, absl::Time>>();
  last->second = absl::InfinitePast();
  auto progress = [this, id, last](const soup::v1::Progress& p) {
    ++work_;
    {
      absl::MutexLock lock(&last->first);
      if (p.done() < p.total() && absl::Now() - last->second < absl::Milliseconds(100)) return;
      last->second = absl::Now();
    }
    parts_.hub->SetProgress(id, p);
  };
  auto store_plan = [this, &record](const std::string& text) {
    if (!record.numeric_plan.empty()) return absl::OkStatus();
    JobUpdate update;
    update.numeric_plan = text;
    return parts_.store->UpdateJob(record.id, update);
  };
  auto outcome = std::make_shared<PrepareOutcome>(
      preparer_->Prepare(record, cancel.get(), progress, store_plan));
  loop_.Post([this, id, outcome] { Prepared(id, outcome); });
}

void DaemonOrchestrator::Prepared(const std::string& job_id,
                                  std::shared_ptr<PrepareOutcome> outcome) {
  Job* job = Find(job_id);
  if (job == nullptr) return;  // forgotten meanwhile: the lease goes with the outcome
  job->preparing = false;
  job->cancel.reset();
  parts_.hub->ClearProgress(job_id);
  PublishCacheMetrics();
  JobUpdate update;
  if (outcome->dataset.records() > 0) update.dataset = outcome->dataset;
  update.add_warnings = outcome->warnings;
  if (outcome->job != nullptr) {
    update.base_key = outcome->job->base_key;
    update.base_fingerprint = outcome->job->base_key.substr(0, outcome->job->base_key.find('/'));
    update.steps_total = outcome->job->steps_total();
  }
  const absl::Status updated = parts_.store->UpdateJob(job_id, update);
  if (!updated.ok() && outcome->job != nullptr) {
    outcome->job = nullptr;
    outcome->failure.then = absl::IsResourceExhausted(updated) ? PrepareFailure::Then::kPause
                                                               : PrepareFailure::Then::kFail;
    outcome->failure.reason =
        absl::IsResourceExhausted(updated) ? soup::v1::STORAGE : soup::v1::INTERNAL;
    outcome->failure.message = std::string(updated.message());
  }
  const int64_t quota = config_.quota_pinned_bytes;
  if (outcome->job != nullptr && quota > 0) {
    const int64_t pinned = PinnedBytesOf(job->user, *outcome->job);
    if (pinned > quota) {
      outcome->job = nullptr;  // lets the base go: it stays in memory only while there is room
      outcome->failure.then = PrepareFailure::Then::kWait;
      outcome->failure.reason = soup::v1::OUT_OF_MEMORY;
      outcome->failure.message = absl::StrCat("the bases of your jobs would take ", pinned,
                                              " bytes of host memory, your quota is ", quota,
                                              " (--quota-pinned): it waits for your other jobs");
    }
  }
  if (outcome->job != nullptr) {
    std::string why;
    {
      absl::MutexLock lock(&mu_);
      why = engine::OtherMachine(outcome->job->numeric, device_.profile);
    }
    if (!why.empty()) {
      outcome->failure.then = PrepareFailure::Then::kPause;
      outcome->failure.reason = soup::v1::DEVICE_LOST;
      outcome->failure.message =
          absl::StrCat("the job began on another machine: ", why,
                       ": other bits would come out. Bring back what "
                       "it began on (soupd --backend ",
                       outcome->job->numeric.backend, ") and resume the job, or submit it anew");
      outcome->job = nullptr;
    }
  }
  if (outcome->job != nullptr) {
    job->prepared = outcome->job;
    job->last_served = absl::Now();
    fd_store_->Keep(outcome->job->lease.base());
    LogOf(job_id,
          absl::StrFormat("prepared: %d records, %d steps, %s activations, base %s (%s)",
                          outcome->dataset.records(), outcome->job->steps_total(),
                          engine::PrecisionName(outcome->job->numeric.precision()),
                          outcome->job->base_key,
                          outcome->imported              ? "imported"
                          : outcome->job->lease.loaded() ? "cache hit: read from the shard cache"
                                                         : "cache hit: already in host memory"));
    UpdateQueuePositions();
  } else {
    PrepareFailed(job, outcome->failure);
  }
  Attend(job);
  Schedule();
}

int64_t DaemonOrchestrator::PinnedBytesOf(const std::string& user, const PreparedJob& more) const {
  std::map<std::string, int64_t> bases = {{more.base_key, more.lease.base().bytes()}};
  for (const auto& [id, job] : jobs_)
    if (job->user == user && job->prepared != nullptr)
      bases[job->prepared->base_key] = job->prepared->lease.base().bytes();
  int64_t sum = 0;
  for (const auto& [key, bytes] : bases) sum += bytes;
  return sum;
}

void DaemonOrchestrator::PrepareFailed(Job* job, const PrepareFailure& failure) {
  job->admitted = false;
  switch (failure.then) {
    case PrepareFailure::Then::kCancelled:
      // Asked for by a user (the state says so, Attend does the rest), or by a drain.
      if (job->state == soup::v1::PREPARING)
        job->exit = Exit{JobTrigger::kRequeued, soup::v1::PREEMPTED, "soupd is stopping"};
      return;
    case PrepareFailure::Then::kPause:
      if (failure.reason == soup::v1::STORAGE) parts_.storage->Failed(failure.message);
      job->exit = Exit{JobTrigger::kPaused, failure.reason,
                       failure.reason == soup::v1::STORAGE
                           ? absl::StrCat(failure.message, "; free some room and resume the job")
                           : failure.message};
      return;
    case PrepareFailure::Then::kWait:
      job->not_before = absl::Now() + kRoomRetry;
      job->exit = Exit{JobTrigger::kRequeued, failure.reason, failure.message};
      return;
    case PrepareFailure::Then::kFail:
      job->exit = Exit{JobTrigger::kFailed, failure.reason, failure.message};
      return;
  }
}

}  // namespace soup::daemon
