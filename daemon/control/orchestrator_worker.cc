// Passes: choosing, ordering, hearing about them; and what happens when the worker dies.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/daemon_orchestrator.h"
#include "daemon/control/text.h"
#include "engine/base/log.h"

namespace soup::daemon {

using soup::worker::v1::FromWorker;
using soup::worker::v1::ToWorker;

namespace {

constexpr int32_t kMaxDeviceLosses = 3;
constexpr int32_t kMaxBaseFailures = 3;

}  // namespace

// ---- from the supervisor's thread ----

void DaemonOrchestrator::OnWorkerUp(int64_t generation, const soup::worker::v1::Hello& hello) {
  loop_.PostWithRoom([this, generation, hello] { WorkerUp(generation, hello); });
}

void DaemonOrchestrator::OnWorkerMessage(int64_t generation, FromWorker message) {
  ++work_;
  if (message.item_case() == FromWorker::kHeartbeat) return;
  auto shared = std::make_shared<FromWorker>(std::move(message));
  loop_.PostWithRoom([this, generation, shared] {
    if (generation == generation_) Handle(*shared);
  });
}

void DaemonOrchestrator::OnWorkerDown(int64_t generation, bool was_up, bool clean,
                                      const std::string& cause) {
  if (!clean) parts_.metrics->WorkerRestarted();
  parts_.metrics->SetWorkerUp(config_.device, false);
  if (!was_up) {
    if (!clean) loop_.Post([this, cause] { TellNoWorker(cause); });
    return;
  }
  loop_.PostWithRoom([this, generation, clean, cause] { WorkerDown(generation, clean, cause); });
}

// ---- the worker's life ----

void DaemonOrchestrator::WorkerUp(int64_t generation, const soup::worker::v1::Hello& hello) {
  auto profile = engine::MachineProfile::FromText(hello.machine_profile());
  if (!profile.ok()) {
    supervisor_->Kill(generation, absl::StrCat("its machine profile cannot be read: ",
                                               profile.status().message()));
    return;
  }
  generation_ = generation;
  orders_out_ = 0;
  parts_.metrics->SetLinkRate(config_.device, profile->copy_bytes_per_second);
  parts_.metrics->SetWorkerUp(config_.device, true);
  parts_.metrics->SetDeviceOverhead(config_.device, hello.overhead_bytes());
  planner_.Forget();
  bool first = false;
  {
    absl::MutexLock lock(&mu_);
    first = device_.backend.empty();
    device_.up = true;
    device_.profile = *std::move(profile);
    device_.backend = hello.backend();
    if (!hello.backend_reason().empty()) device_.backend_reason = hello.backend_reason();
    device_.memory_apart = hello.device_memory_apart();
    device_.overhead_bytes = hello.overhead_bytes();
    device_.arena_bytes = 0;
  }
  // What auto took once stays: a card that is gone for a moment must not change anybody's bits.
  if (first && config_.backend == "auto")
    supervisor_->AddArgument(absl::StrCat("--backend=", hello.backend()));
  if (first && !hello.device_memory_apart() && config_.device_reserve_bytes > 0) {
    SOUP_LOG(kWarn, "worker") << "--device-reserve is of a card's memory: the CPU backend does not "
                                 "look at it; bound it with --device-memory-limit (otherwise it "
                                 "takes half of the memory that is available)";
  }
  SOUP_LOG(kInfo, "worker") << "worker " << generation << " is up: pid " << hello.pid() << ", "
                            << hello.backend() << ", " << hello.device_name() << ", "
                            << HumanBytes(hello.device_free_bytes()) << " free, "
                            << HumanBytes(hello.overhead_bytes()) << " of its own"
                            << (hello.backend_reason().empty() ? "" : "; auto: ")
                            << hello.backend_reason();
  Schedule();
}

void DaemonOrchestrator::WorkerDown(int64_t generation, bool clean, const std::string& cause) {
  if (generation != generation_) return;
  generation_ = 0;
  orders_out_ = 0;
  pass_in_flight_ = false;
  if (!clean) {
    for (const auto& [key, base] : bases_)
      if (!base.read_only) verify_bases_.insert(key);
  }
  bases_.clear();
  {
    absl::MutexLock lock(&mu_);
    device_.up = false;
    device_.arena_bytes = 0;
    worker_bases_.clear();
  }
  std::vector<std::string> ids;
  for (const auto& [id, job] : jobs_)
    if (job->open || job->waiting || job->in_pass) ids.push_back(id);
  for (const std::string& id : ids)
    if (Job* job = Find(id); job != nullptr)
      LostWithWorker(job, job->in_pass || job->waiting, soup::v1::WORKER_LOST, cause);
  Schedule();
}

void DaemonOrchestrator::LostWithWorker(Job* job, bool in_hand, Reason reason,
                                        const std::string& cause) {
  job->open = job->waiting = job->in_pass = false;
  const bool ran = job->state == soup::v1::RUNNING || job->state == soup::v1::FINALIZING;
  LogOf(job->id, absl::StrCat("the worker was lost: ", cause));
  if (ran && !draining_ && !job->move_pending && !job->exit.has_value()) {
    job->suspect = job->suspect || in_hand;
    if (!in_hand) {
      job->exit = Exit{JobTrigger::kRequeued, soup::v1::PREEMPTED,
                       "the worker died over another job; this one goes on from its mirror"};
    } else if (job->device_losses + 1 >= kMaxDeviceLosses) {
      job->exit = Exit{JobTrigger::kPaused, soup::v1::DEVICE_LOST,
                       absl::StrCat("the worker died ", kMaxDeviceLosses,
                                    " times over this job, at last by: ", cause,
                                    "; nothing is lost: resume it when the cause is found")};
    } else {
      job->exit =
          Exit{JobTrigger::kInterrupted, reason,
               absl::StrCat("the worker was lost (", cause, "); the job goes on from its mirror")};
    }
  }
  Attend(job);
}

// A worker that does not come up: jobs that wait for it say why.
void DaemonOrchestrator::TellNoWorker(const std::string& cause) {
  soup::v1::Progress progress;
  progress.set_stage("waiting for a worker");
  progress.set_message(absl::StrCat("the worker did not come up (", cause, "); tried again"));
  for (const auto& [id, job] : jobs_)
    if (job->preparing) parts_.hub->SetProgress(id, progress);
}

// ---- orders ----

bool DaemonOrchestrator::Order(const ToWorker& message, absl::Span<const int> fds) {
  if (generation_ == 0) return false;
  const absl::Status sent = supervisor_->Send(generation_, message, fds);
  if (!sent.ok()) {
    SOUP_LOG(kWarn, "worker") << "order not sent: " << sent.message();
    return false;  // its end is on the way
  }
  ++orders_out_;
  supervisor_->SetBusy(true);
  return true;
}

void DaemonOrchestrator::Answered() {
  orders_out_ = std::max(0, orders_out_ - 1);
  if (orders_out_ == 0) supervisor_->SetBusy(false);
}

// False: there is no worker, so nobody has the job.
bool DaemonOrchestrator::OrderJob(Job* job, const ToWorker& message) {
  if (Order(message)) {
    job->waiting = true;
    return true;
  }
  if (generation_ != 0) return true;  // the worker is about to be told dead; LostWithWorker follows
  job->open = false;
  return false;
}

void DaemonOrchestrator::Handle(const FromWorker& message) {
  Job* job = nullptr;
  switch (message.item_case()) {
    case FromWorker::kBaseLoaded:
      Answered();
      HandleBaseLoaded(message.base_loaded());
      break;
    case FromWorker::kBaseDropped: {
      Answered();
      bases_.erase(message.base_dropped().base_key());
      absl::MutexLock lock(&mu_);
      worker_bases_.erase(message.base_dropped().base_key());
      break;
    }
    case FromWorker::kJobOpened:
      Answered();
      HandleJobOpened(message.job_opened());
      break;
    case FromWorker::kStepDone:
      HandleStepDone(message.step_done());
      return;
    case FromWorker::kValidationDone:
      HandleValidationDone(message.validation_done());
      return;
    case FromWorker::kPassDone:
      Answered();
      HandlePassDone(message.pass_done());
      break;
    case FromWorker::kCheckpointDone:
      parts_.storage->Wrote();
      parts_.metrics->CheckpointDone(message.checkpoint_done().job_id(),
                                     parts_.clock->UnixNs() / 1'000'000);
      job = Find(message.checkpoint_done().job_id());
      if (job == nullptr) return;
      LogOf(job->id, absl::StrCat("checkpoint of step ", message.checkpoint_done().step()));
      if (!message.checkpoint_done().ordered()) return;  // one of every save_every steps
      Answered();
      job->waiting = false;
      Attend(job);
      break;
    case FromWorker::kFinalized:
      Answered();
      HandleFinalized(message.finalized());
      break;
    case FromWorker::kJobFault:
      HandleJobFault(message.job_fault());
      break;
    case FromWorker::kJobClosed:
      Answered();
      job = Find(message.job_closed().job_id());
      if (job == nullptr) break;
      job->open = job->waiting = false;
      Attend(job);
      break;
    default:
      SOUP_LOG(kWarn, "worker") << "unexpected message " << message.item_case();
      return;
  }
  Schedule();
}

// ---- choosing a pass ----

std::vector<std::shared_ptr<const PreparedJob>> DaemonOrchestrator::PreparedOf(
    const std::vector<std::string>& ids) {
  std::vector<std::shared_ptr<const PreparedJob>> prepared;
  for (const std::string& id : ids) prepared.push_back(Find(id)->prepared);
  return prepared;
}

bool DaemonOrchestrator::Fits(const std::vector<std::string>& ids, int64_t device_budget) {
  if (ids.size() > 1) {
    // Who was there when the worker died runs alone until it is cleared.
    for (const std::string& id : ids)
      if (Find(id)->suspect) return false;
  }
  engine::MachineProfile profile;
  int64_t overhead = 0;
  {
    absl::MutexLock lock(&mu_);
    profile = device_.profile;
    overhead = device_.overhead_bytes;
  }
  const auto jobs = PreparedOf(ids);
  const int64_t budget = SetBudget(jobs, device_budget, overhead, TableBytes(jobs));
  return planner_.Plan(jobs, budget, profile, HostBudget()).ok();
}

void DaemonOrchestrator::StartPass() {
  if (generation_ == 0 || orders_out_ > 0) return;
  const absl::Time now = absl::Now();
  std::vector<SchedulerJob> runnable;
  absl::Time wake = absl::InfiniteFuture();
  for (const auto& [id, job] : jobs_) {
    if (job->prepared == nullptr || job->exit.has_value() || job->move_pending || job->waiting)
      continue;
    if (job->state != soup::v1::PREPARING && job->state != soup::v1::QUEUED &&
        job->state != soup::v1::RUNNING)
      continue;
    if (job->not_before > now) {
      wake = std::min(wake, job->not_before);
      continue;
    }
    SchedulerJob s;
    s.id = id;
    s.user = job->user;
    s.priority = job->priority;
    s.base_key = job->prepared->base_key;
    s.order = job->order;
    s.waited_seconds = absl::ToDoubleSeconds(now - job->last_served);
    s.cost_seconds = job->step_cost_seconds;
    runnable.push_back(std::move(s));
  }
  ScheduleAt(wake);
  if (runnable.empty()) return;
  const int64_t budget = DeviceBudget();
  PassLimits limits;
  limits.jobs_per_pass = std::max(1, config_.max_jobs_a_pass);
  const PassChoice choice =
      NextPass(runnable, share_, limits, turn_base_, absl::ToDoubleSeconds(now - turn_since_),
               [this, budget](const std::vector<std::string>& ids) { return Fits(ids, budget); });
  RefuseUnfit(choice.unfit, budget);
  if (choice.empty()) return;
  if (choice.base_key != turn_base_) {
    turn_base_ = choice.base_key;
    turn_since_ = now;
  }
  const auto base = bases_.find(choice.base_key);
  if (base == bases_.end() || !base->second.loaded) {
    if (base == bases_.end()) LoadBaseOf(*Find(choice.job_ids.front())->prepared);
    return;
  }
  if (!OpenJobs(choice.job_ids)) return;
  RunPassOf(choice.job_ids, budget);
  // Prepared, but not its turn: it waits in the queue, and says so.
  for (const SchedulerJob& s : runnable) {
    Job* job = Find(s.id);
    if (job == nullptr || job->in_pass || job->state != soup::v1::PREPARING ||
        job->exit.has_value())
      continue;
    job->exit = Exit{JobTrigger::kRequeued, soup::v1::REASON_UNSPECIFIED,
                     "prepared; waits for its turn on the device"};
    Attend(job);
  }
}

// Jobs that do not fit even alone: told so with both numbers.
void DaemonOrchestrator::RefuseUnfit(const std::vector<std::string>& ids, int64_t device_budget) {
  const DeviceMemoryView memory = DeviceMemory();
  const int64_t overhead = memory.overhead_bytes;
  for (const std::string& id : ids) {
    Job* job = Find(id);
    if (job == nullptr) continue;
    auto least = LeastBudget(*job->prepared);
    if (!least.ok()) {
      job->exit =
          Exit{JobTrigger::kFailed, soup::v1::INTERNAL, std::string(least.status().message())};
      Attend(job);
      continue;
    }
    const int64_t needed = *least + overhead + TableBytes({job->prepared});
    const std::string never =
        NeverFits(memory, Limits(), needed, job->spec.resources().vram_bytes());
    if (!never.empty()) {
      job->exit = Exit{JobTrigger::kFailed, soup::v1::OUT_OF_MEMORY,
                       absl::StrCat("the job needs at least ", needed, " bytes on the device (",
                                    HumanBytes(needed), "); ", never)};
      Attend(job);
      continue;
    }
    job->not_before = absl::Now() + absl::Seconds(2);
    ScheduleAt(job->not_before);
    if (job->state == soup::v1::QUEUED) continue;
    job->exit = Exit{JobTrigger::kRequeued, soup::v1::OUT_OF_MEMORY,
                     absl::StrCat("the job needs at least ", needed, " bytes on the device (",
                                  HumanBytes(needed), "), it may have ", device_budget + overhead,
                                  " (", HumanBytes(device_budget + overhead),
                                  "): it waits for others to leave it more")};
    Attend(job);
  }
}

void DaemonOrchestrator::LoadBaseOf(const PreparedJob& job) {
  const cache::HostBase& base = job.lease.base();
  ToWorker m;
  soup::worker::v1::LoadBase* load = m.mutable_load_base();
  load->set_base_key(job.base_key);
  load->set_config_json(base.manifest().config_json);
  load->set_format(engine::BaseFormatName(base.manifest().key.format));
  load->set_tier(cache::MemoryTierName(base.tier()));
  std::vector<int> fds;
  for (int i = 0; i < base.segments(); ++i) {
    load->add_segment_bytes(base.segment_bytes(i));
    fds.push_back(base.segment_fd(i));
  }
  for (const cache::SlabPlace& slab : base.slabs()) {
    soup::worker::v1::SlabRef* ref = load->add_slabs();
    ref->set_segment(slab.segment);
    ref->set_offset(slab.offset);
    ref->set_bytes(slab.bytes);
    ref->set_xxh3(slab.xxh3);
  }
  load->set_verify(verify_bases_.erase(job.base_key) > 0);
  if (!Order(m, fds)) return;
  bases_[job.base_key] = LoadedBase{};
  absl::MutexLock lock(&mu_);
  worker_bases_.insert(job.base_key);
}

void DaemonOrchestrator::HandleBaseLoaded(const soup::worker::v1::BaseLoaded& m) {
  if (m.ok()) {
    bases_[m.base_key()] = LoadedBase{true, m.read_only()};
    return;
  }
  bases_.erase(m.base_key());
  {
    absl::MutexLock lock(&mu_);
    worker_bases_.erase(m.base_key());
  }
  SOUP_LOG(kError, "worker") << "base " << m.base_key() << " not loaded: " << m.error();
  // Memory that is damaged is let go and filled anew from the cache.
  std::vector<std::string> ids;
  for (const auto& [id, job] : jobs_)
    if (job->prepared != nullptr && job->prepared->base_key == m.base_key()) ids.push_back(id);
  for (const std::string& id : ids) {
    Job* job = Find(id);
    if (job == nullptr) continue;
    job->prepared.reset();
    job->admitted = false;
    if (++job->base_failures >= kMaxBaseFailures) {
      job->exit = Exit{JobTrigger::kFailed, soup::v1::INTERNAL,
                       absl::StrCat("the worker could not load the base: ", m.error())};
    } else if (job->state != soup::v1::QUEUED) {
      job->exit = Exit{JobTrigger::kRequeued, soup::v1::REASON_UNSPECIFIED,
                       absl::StrCat("the base is loaded anew: ", m.error())};
    }
    Attend(job);
  }
  auto key = cache::BaseKey::Parse(m.base_key());
  // Not on the loop: the store asks us back before it lets memory go.
  if (!key.ok()) return;
  const bool taken = prepare_pool_->TrySubmit([this, k = *key] {
    const auto dropped = cache_->host().Drop(k);
    if (dropped.ok()) return;
    SOUP_LOG(kWarn, "worker") << dropped.status().message();
  });
  if (taken) return;
  SOUP_LOG(kWarn, "worker") << "base " << m.base_key() << " stays in memory for now";
}

void DaemonOrchestrator::BeforeDrop(const std::string& base_key) {
  fd_store_->Remove(base_key);
  loop_.Post([this, base_key] {
    if (bases_.count(base_key) == 0) return;
    ToWorker m;
    m.mutable_drop_base()->set_base_key(base_key);
    Order(m);
  });
  absl::MutexLock lock(&mu_);
  auto gone = [this, &base_key]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closing_ || worker_bases_.count(base_key) == 0;
  };
  // A worker that never answers is killed by its supervisor, which ends this wait too.
  mu_.Await(absl::Condition(&gone));
}

// True when the worker has them all.
bool DaemonOrchestrator::OpenJobs(const std::vector<std::string>& ids) {
  bool all = true;
  for (const std::string& id : ids) {
    Job* job = Find(id);
    if (job->open) continue;
    all = false;
    if (job->state != soup::v1::RUNNING) {
      Move(job, JobTrigger::kRunStarted, soup::v1::REASON_UNSPECIFIED, "",
           [this](Job*) { Schedule(); });
      continue;
    }
    const PreparedJob& prepared = *job->prepared;
    ToWorker m;
    soup::worker::v1::OpenJob* open = m.mutable_open_job();
    open->set_job_id(id);
    *open->mutable_spec() = prepared.spec;
    open->set_base_key(prepared.base_key);
    open->set_dataset_path(prepared.dataset_path);
    open->set_job_dir(config_.JobDir(id));
    open->set_mirror_dir(config_.MirrorDir(id));
    open->set_artifact_dir(config_.ArtifactDir(id));
    open->set_numeric_plan(prepared.numeric.ToText());
    if (prepared.spec.lora().has_init_adapter()) {
      const soup::v1::LoraSpec& lora = prepared.spec.lora();
      open->set_init_adapter_path(config_.FilePath(lora.init_adapter().sha256()));
      open->set_init_adapter_config_path(config_.FilePath(lora.init_adapter_config().sha256()));
    }
    if (!OrderJob(job, m)) return false;
    job->checkpointed = false;
  }
  return all;
}

}  // namespace soup::daemon
