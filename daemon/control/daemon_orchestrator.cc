#include "daemon/control/daemon_orchestrator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/text.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr int kPrepareThreads = 8;
constexpr size_t kPrepareQueue = 256;
constexpr double kPinnedShare = 0.6;  // of the host's memory, when no limit was given
constexpr int64_t kLeastReserveBytes = int64_t{512} << 20;

int64_t TotalMemory() {
  auto text = engine::RealFileSystem().ReadFile("/proc/meminfo");
  long long kib = 0;
  if (text.ok() && std::sscanf(text->c_str(), "MemTotal: %lld kB", &kib) == 1) return kib * 1024;
  return int64_t{4} << 30;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Orchestrator>> MakeOrchestrator(const OrchestratorParts& parts) {
  auto orchestrator = std::make_unique<DaemonOrchestrator>(parts, TakeAttachedSegments());
  SOUP_RETURN_IF_ERROR(orchestrator->Open());
  return orchestrator;
}

DaemonOrchestrator::DaemonOrchestrator(const OrchestratorParts& parts, AttachedSegments attached)
    : parts_(parts), config_(*parts.config), attached_(std::move(attached)) {}

DaemonOrchestrator::~DaemonOrchestrator() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  if (supervisor_ != nullptr) supervisor_->Stop(absl::Now());
  // Preparations are told to stop by the loop, which owns them; then their threads come home.
  loop_.Post([this] {
    for (auto& [id, job] : jobs_)
      if (job->cancel != nullptr) job->cancel->Cancel();
  });
  loop_.Stop();
  prepare_pool_.reset();
}

absl::Status DaemonOrchestrator::Open() {
  cache::BaseCacheOptions options;
  options.shards.folder = config_.cache_dir;
  options.shards.cap_bytes = config_.cache_cap_bytes;
  options.shards.clock = parts_.clock;
  const int64_t total = TotalMemory();
  options.host.limit_bytes = config_.host_store_limit_bytes > 0
                                 ? config_.host_store_limit_bytes
                                 : static_cast<int64_t>(kPinnedShare * total);
  options.host.reserve_bytes = config_.host_reserve_bytes > 0
                                   ? config_.host_reserve_bytes
                                   : std::max(kLeastReserveBytes, total / 20);
  options.host.clock = parts_.clock;
  options.host.before_drop = [this](const std::string& key) { BeforeDrop(key); };
  options.model_roots = config_.model_roots;
  pinned_limit_ = options.host.limit_bytes;
  fd_store_ = std::make_unique<FdStore>();
  SOUP_ASSIGN_OR_RETURN(cache_, cache::BaseCache::Open(std::move(options)));

  for (auto& [text, segments] : attached_) {
    auto key = cache::BaseKey::Parse(text);
    if (!key.ok()) continue;
    const int count = static_cast<int>(segments.size());
    fd_store_->Kept(text, count);
    const absl::Status status = cache_->Attach(*key, std::move(segments), {});
    if (!status.ok()) {
      SOUP_LOG(kWarn, "fdstore") << "base " << text << " is not taken back: " << status.message();
      fd_store_->Remove(text);
    } else {
      SOUP_LOG(kInfo, "fdstore") << "base " << text << " taken back from systemd";
    }
  }
  attached_.clear();

  PrepareRunnerOptions prepare;
  prepare.binary = config_.worker_binary;
  prepare.max_at_once = std::max(1, config_.max_prepares);
  prepare.memory_limit_bytes = config_.prepare_memory_bytes;
  prepare.cpu_limit_seconds = config_.prepare_cpu_seconds;
  runner_ = std::make_unique<PrepareRunner>(prepare);
  preparer_ =
      std::make_unique<JobPreparer>(&config_, cache_.get(), runner_.get(),
                                    [this](Cancellation* cancel) { return AwaitProfile(cancel); });
  return absl::OkStatus();
}

absl::Status DaemonOrchestrator::Start() {
  WorkerOptions options;
  options.binary = config_.worker_binary;
  options.args = {absl::StrCat("--backend=", config_.backend),
                  absl::StrCat("--device=", config_.device),
                  absl::StrCat("--profile-dir=", config_.ProfileDir())};
  if (config_.cpu_threads > 0)
    options.args.push_back(absl::StrCat("--cpu-threads=", config_.cpu_threads));
  options.mark_path = config_.state_dir + "/worker-0.mark";
  options.heartbeat_timeout = absl::Seconds(config_.worker_heartbeat_timeout_seconds);
  options.stall_timeout = 2 * options.heartbeat_timeout;
  options.hello_timeout = std::max(options.heartbeat_timeout, absl::Seconds(60));
  supervisor_ = std::make_unique<WorkerSupervisor>(options, static_cast<WorkerListener*>(this));
  SOUP_RETURN_IF_ERROR(supervisor_->AwaitPredecessor(absl::Now() + absl::Seconds(15)));
  prepare_pool_ = std::make_unique<ThreadPool>(kPrepareThreads, kPrepareQueue);
  SOUP_RETURN_IF_ERROR(AdoptUnfinished());
  loop_.Start();
  supervisor_->Start();
  loop_.Post([this] {
    PublishCacheMetrics();
    UpdateQueuePositions();
    std::vector<std::string> ids;
    for (const auto& [id, job] : jobs_) ids.push_back(id);
    for (const std::string& id : ids)
      if (Job* job = Find(id); job != nullptr) Attend(job);
    Schedule();
  });
  return absl::OkStatus();
}

// Before the loop runs: takes up what the last soupd left.
absl::Status DaemonOrchestrator::AdoptUnfinished() {
  SOUP_ASSIGN_OR_RETURN(const std::vector<JobRecord> records, parts_.store->ListUnfinished());
  for (const JobRecord& record : records) {
    JobRecord now = record;
    if (IsWorkedOn(record.state)) {
      const bool asked = record.state == soup::v1::PAUSING || record.state == soup::v1::CANCELLING;
      const bool cancelled = record.state == soup::v1::CANCELLING;
      auto moved = parts_.store->Transition(
          record.id, JobTrigger::kInterrupted,
          asked ? soup::v1::USER_REQUEST : soup::v1::REASON_UNSPECIFIED,
          asked ? absl::StrCat(cancelled ? "cancelled" : "paused", " as asked; soupd was restarted")
                : "soupd was restarted; the job goes on from its last step");
      if (moved.ok()) {
        now = *std::move(moved);
        CountCutAttempt(AttemptBegun(record), &now);
      } else if (!absl::IsResourceExhausted(moved.status())) {
        return moved.status();
      } else {
        // No room to write it down yet: tried again until there is.
        SOUP_LOG(kWarn, "jobs") << record.id << ": " << moved.status().message();
        Adopt(record)->exit = Exit{JobTrigger::kInterrupted,
                                   asked ? soup::v1::USER_REQUEST : soup::v1::REASON_UNSPECIFIED,
                                   "soupd was restarted"};
        continue;
      }
      LogOf(record.id, "soupd was restarted");
    }
    if (HasEnded(now.state)) {
      CleanUp(now.id, now.state);
      continue;
    }
    Adopt(now);
  }
  return absl::OkStatus();
}

absl::Time DaemonOrchestrator::AttemptBegun(const JobRecord& record) {
  return record.attempt_started_unix_ms == 0 ? absl::InfiniteFuture()
                                             : absl::FromUnixMillis(record.attempt_started_unix_ms);
}

void DaemonOrchestrator::CountCutAttempt(absl::Time begun, JobRecord* record) {
  auto told = parts_.steps->Summary(record->id);
  if (begun == absl::InfiniteFuture() || !told.ok() || told->steps_done == 0) return;
  const auto last = parts_.steps->Read(record->id, told->steps_done - 1, 1);
  if (!last.ok() || last->empty()) return;
  const absl::Time ended = std::min(absl::FromUnixMillis(last->front().unix_ms()), absl::Now());
  if (ended <= begun) return;  // no step was done in it
  record->running_ms += absl::ToInt64Milliseconds(ended - begun);
  JobUpdate update;
  update.running_ms = record->running_ms;
  const absl::Status written = parts_.store->UpdateJob(record->id, update);
  if (!written.ok()) {
    SOUP_LOG(kWarn, "jobs") << record->id << ": " << written.message();
  }
}

void DaemonOrchestrator::Drain(absl::Time deadline) {
  loop_.Post([this] {
    draining_ = true;
    for (auto& [id, job] : jobs_)
      if (job->preparing && job->cancel != nullptr) job->cancel->Cancel();
    DrainStep();
  });
  {
    absl::MutexLock lock(&mu_);
    // The worker's own goodbye needs a moment at the end.
    mu_.AwaitWithDeadline(absl::Condition(&drained_), deadline - absl::Seconds(1));
    closing_ = true;
  }
  supervisor_->Stop(deadline);
}

// Brings every job to a step boundary and out of the worker's hands, then says so.
void DaemonOrchestrator::DrainStep() {
  bool busy = pass_in_flight_;
  std::vector<Job*> jobs;
  for (auto& [id, job] : jobs_) jobs.push_back(job.get());
  for (Job* job : jobs) {
    if (job->move_pending) continue;  // no room on the disk: mirrors keep it
    if (!job->exit.has_value() &&
        (job->state == soup::v1::RUNNING || job->state == soup::v1::PREPARING) && !job->preparing)
      job->exit = Exit{JobTrigger::kRequeued, soup::v1::PREEMPTED,
                       "soupd is stopping; the job goes on from here when it is back"};
  }
  for (Job* job : jobs) {
    const std::string id = job->id;
    Attend(job);
    if (Job* still = Find(id); still != nullptr)
      busy = busy || still->preparing || still->open || still->waiting || still->exit.has_value();
  }
  if (busy) return;
  absl::MutexLock lock(&mu_);
  drained_ = true;
}

// ---- told ----

void DaemonOrchestrator::JobSubmitted(const std::string& job_id) { Tell(job_id); }
void DaemonOrchestrator::PauseRequested(const std::string& job_id) { Tell(job_id); }
void DaemonOrchestrator::ResumeRequested(const std::string& job_id) { Tell(job_id); }
void DaemonOrchestrator::CancelRequested(const std::string& job_id) { Tell(job_id); }

void DaemonOrchestrator::Tell(const std::string& job_id) {
  loop_.Post([this, job_id] { Touch(job_id); });
}

// The store is the truth: looks at what it says now.
void DaemonOrchestrator::Touch(const std::string& job_id) {
  auto record = parts_.store->GetJob(job_id);
  if (!record.ok()) {
    SOUP_LOG(kError, "jobs") << job_id << ": " << record.status().message();
    return;
  }
  Job* job = Find(job_id);
  if (job == nullptr) {
    if (HasEnded(record->state)) {
      CleanUp(job_id, record->state);
      return;
    }
    job = Adopt(*record);
  }
  if (!job->move_pending) TakeRecord(job, *record);
  if (job->state == soup::v1::QUEUED) job->not_before = absl::InfinitePast();
  Attend(job);
  UpdateQueuePositions();
  Schedule();
}

DaemonOrchestrator::Job* DaemonOrchestrator::Find(const std::string& job_id) {
  auto it = jobs_.find(job_id);
  return it == jobs_.end() ? nullptr : it->second.get();
}

DaemonOrchestrator::Job* DaemonOrchestrator::Adopt(const JobRecord& record) {
  auto job = std::make_unique<Job>();
  job->id = record.id;
  job->user = record.user;
  job->spec = record.spec;
  job->priority = ParsePriority(record.spec.resources().priority());
  job->order = next_order_++;
  job->last_served = absl::Now();
  TakeRecord(job.get(), record);
  Job* raw = job.get();
  jobs_[record.id] = std::move(job);
  return raw;
}

// ---- watchdog and queue ----

uint64_t DaemonOrchestrator::ProgressTick() const {
  // The loop itself answers: a loop that is stuck does not tick.
  if (!ping_out_.exchange(true)) {
    auto* self = const_cast<DaemonOrchestrator*>(this);
    loop_.Post([self] { self->Ping(); });
  }
  return tick_.load();
}

void DaemonOrchestrator::Ping() {
  ping_out_ = false;
  const uint64_t work = work_.load();
  if (work != work_seen_ || !Working()) ++tick_;
  work_seen_ = work;
}

bool DaemonOrchestrator::Working() const {
  if (orders_out_ > 0) return true;
  for (const auto& [id, job] : jobs_)
    if (job->preparing) return true;
  return false;
}

void DaemonOrchestrator::UpdateQueuePositions() {
  std::vector<SchedulerJob> queued;
  std::map<std::string, std::vector<std::string>> on_base;
  for (const auto& [id, job] : jobs_) {
    if (job->prepared != nullptr) on_base[job->prepared->base_key].push_back(id);
    if (job->state != soup::v1::QUEUED) continue;
    SchedulerJob s;
    s.id = id;
    s.user = job->user;
    s.priority = job->priority;
    s.order = job->order;
    s.waited_seconds = absl::ToDoubleSeconds(absl::Now() - job->queued_at);
    queued.push_back(std::move(s));
  }
  std::map<std::string, int64_t> positions;
  int64_t n = 0;
  for (const std::string& id : QueueOrder(queued, share_, AdmissionLimits().aging_seconds))
    positions[id] = ++n;
  absl::MutexLock lock(&mu_);
  positions_ = std::move(positions);
  jobs_on_base_ = std::move(on_base);
}

int64_t DaemonOrchestrator::QueuePosition(const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  auto it = positions_.find(job_id);
  return it == positions_.end() ? 0 : it->second;
}

}  // namespace soup::daemon
