// DaemonOrchestrator: the life of every job, on one event loop.
//
// The loop's thread owns all state of jobs and of the talk with the worker. Preparing runs on a few
// threads of its own and posts its end. The worker does one thing at a time: at most one pass is in
// flight, and each job has at most one order out (`waiting`). Whatever happens to a job ends in
// Attend(), which looks at what state the store says the job is in and does the next thing;
// whatever makes room ends in Schedule(). A state that cannot be written (full disk) is kept and
// tried again: the job stands still meanwhile.
//
// Sources: daemon_orchestrator.cc (life, calls of the API that tell), orchestrator_jobs.cc
// (preparing, Attend, transitions), orchestrator_worker.cc (the worker's life and death, orders,
// what it is to run next), orchestrator_passes.cc (passes and what becomes of them),
// orchestrator_queries.cc (Plan, PreviewData, cache, node).
#ifndef SOUP_DAEMON_CONTROL_DAEMON_ORCHESTRATOR_H_
#define SOUP_DAEMON_CONTROL_DAEMON_ORCHESTRATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/base_cache.h"
#include "daemon/control/device_budget.h"
#include "daemon/control/event_loop.h"
#include "daemon/control/fd_store.h"
#include "daemon/control/job_preparer.h"
#include "daemon/control/make_orchestrator.h"
#include "daemon/control/pass_planner.h"
#include "daemon/control/prepare_runner.h"
#include "daemon/control/scheduler.h"
#include "daemon/control/thread_pool.h"
#include "daemon/control/worker_supervisor.h"

namespace soup::daemon {

class DaemonOrchestrator final : public Orchestrator, private WorkerListener {
 public:
  DaemonOrchestrator(const OrchestratorParts& parts, AttachedSegments attached);
  ~DaemonOrchestrator() override;
  // Opens cache and host store. Called once, before anything else.
  absl::Status Open();

  absl::Status Start() override;
  void Drain(absl::Time deadline) override;
  uint64_t ProgressTick() const override;

  void JobSubmitted(const std::string& job_id) override;
  void PauseRequested(const std::string& job_id) override;
  void ResumeRequested(const std::string& job_id) override;
  void CancelRequested(const std::string& job_id) override;

  absl::Status CheckSubmit(const soup::v1::JobSpec& spec, const std::string& user,
                           const std::string& base_real_path) override;
  absl::StatusOr<soup::v1::PlanReply> Plan(const soup::v1::JobSpec& spec, const std::string& user,
                                           const std::string& base_real_path,
                                           const CallLimits& limits) override;
  absl::StatusOr<soup::v1::PreviewDataReply> PreviewData(const soup::v1::JobSpec& spec,
                                                         const std::string& user,
                                                         const std::string& base_real_path,
                                                         int records,
                                                         const CallLimits& limits) override;
  absl::StatusOr<soup::v1::CacheEntry> Prefetch(const soup::v1::BaseSpec& base,
                                                const std::string& base_real_path,
                                                const ProgressFn& progress,
                                                const CallLimits& limits) override;
  absl::StatusOr<soup::v1::ListCacheReply> ListCache() override;
  absl::StatusOr<int64_t> Evict(const std::string& fingerprint, const std::string& format) override;
  void FillNode(soup::v1::Node* node) override;
  int64_t QueuePosition(const std::string& job_id) override;

 private:
  // A state that a job is being brought to, once it is out of the worker's hands.
  struct Exit {
    JobTrigger trigger = JobTrigger::kRequeued;
    Reason reason = soup::v1::REASON_UNSPECIFIED;
    std::string message;
    bool checkpoint = true;  // write one first, when it is open
  };

  struct Job {
    std::string id;
    std::string user;
    soup::v1::JobSpec spec;
    JobState state = soup::v1::QUEUED;  // as the store last said
    Priority priority = Priority::kNormal;
    int64_t order = 0;
    int32_t device_losses = 0;
    absl::Time queued_at;                          // entered QUEUED
    absl::Time last_served;                        // its last pass, or when it became runnable
    absl::Time not_before = absl::InfinitePast();  // not to be admitted or run earlier

    // Preparing
    bool admitted = false;   // holds a place of its user's quota
    bool preparing = false;  // a thread works on it
    std::shared_ptr<Cancellation> cancel;
    std::shared_ptr<const PreparedJob> prepared;
    int32_t base_failures = 0;
    int64_t planned_arena_bytes = 0;  // of its first pass; 0: none was planned yet

    // With the worker
    bool open = false;     // the worker has it
    bool waiting = false;  // one order is out (open, checkpoint, close, finalize)
    bool in_pass = false;
    bool suspect =
        false;  // was in the worker's hands when it died: runs alone until a step is done
    bool checkpointed = false;  // since the last step
    JobCursor cursor;
    int64_t steps_done = 0;
    double step_cost_seconds = 0.01;
    int64_t ran_before_ms = 0;  // in RUNNING, earlier attempts
    absl::Time run_started = absl::InfiniteFuture();
    int32_t memory_refusals = 0;   // in a row
    int64_t skipped_in_a_row = 0;  // steps, since the job was opened

    // A step whose validation is not over yet: told together with it.
    std::optional<soup::v1::StepRecord> held_step;

    std::optional<Exit> exit;
    // A transition that could not be written yet.
    bool move_pending = false;
  };

  // What other threads want to know of the worker.
  struct DeviceView {
    bool up = false;
    engine::MachineProfile profile;
    std::string backend;  // of the last worker that came up; empty: none has yet
    std::string backend_reason;
    bool memory_apart = false;
    int64_t overhead_bytes = 0;
    int64_t arena_bytes = 0;  // of the last pass
  };

  // ---- daemon_orchestrator.cc ----
  void Tell(const std::string& job_id);
  void Touch(const std::string& job_id);
  Job* Find(const std::string& job_id);
  Job* Adopt(const JobRecord& record);
  absl::Status AdoptUnfinished();
  // When the attempt under way began; InfiniteFuture: there is none.
  static absl::Time AttemptBegun(const JobRecord& record);
  // The death of an earlier soupd has ended the attempt that had `begun`, nobody knows when: counts
  // its time up to the last step. `record` is the job's after that.
  void CountCutAttempt(absl::Time begun, JobRecord* record);
  void UpdateQueuePositions();
  void Ping();
  bool Working() const;
  void DrainStep();

  // ---- orchestrator_jobs.cc ----
  // Writes a transition, then does `then`. When the disk is full, tries again every second; when
  // the table refuses because a user was quicker, takes the store's state and attends to it.
  void Move(Job* job, JobTrigger trigger, Reason reason, const std::string& message,
            std::function<void(Job*)> then = nullptr);
  void MoveOnce(const std::string& job_id, JobTrigger trigger, Reason reason,
                const std::string& message, const std::function<void(Job*)>& then);
  void TakeRecord(Job* job, const JobRecord& record);
  void Attend(Job* job);
  bool LeaveWorker(Job* job, bool checkpoint, bool remove_mirror);
  void Settle(Job* job);
  void Forget(Job* job);
  void CleanUp(const std::string& job_id, JobState state);
  void LogOf(const std::string& job_id, const std::string& line);

  // Asks for one round of DoSchedule; cheap, never re-entered.
  void Schedule();
  void DoSchedule();
  void ScheduleAt(absl::Time when);
  void Admit();
  void StartPreparing(Job* job);
  void PrepareOnThread(JobRecord record, std::shared_ptr<Cancellation> cancel);
  void Prepared(const std::string& job_id, std::shared_ptr<PrepareOutcome> outcome);
  void PrepareFailed(Job* job, const PrepareFailure& failure);
  // Host memory of the bases that this user's jobs hold, with `more` among them.
  int64_t PinnedBytesOf(const std::string& user, const PreparedJob& more) const;
  absl::StatusOr<engine::MachineProfile> AwaitProfile(Cancellation* cancel);

  // ---- orchestrator_worker.cc ----
  void OnWorkerUp(int64_t generation, const soup::worker::v1::Hello& hello) override;
  void OnWorkerMessage(int64_t generation, soup::worker::v1::FromWorker message) override;
  void OnWorkerDown(int64_t generation, bool was_up, bool clean, const std::string& cause) override;
  void TellNoWorker(const std::string& cause);
  // The backend that jobs run on; empty: not known before a worker is up (--backend auto).
  std::string BackendName() const;
  void WorkerUp(int64_t generation, const soup::worker::v1::Hello& hello);
  void WorkerDown(int64_t generation, bool clean, const std::string& cause);
  // `in_hand`: the worker was at this very job. `reason`: WORKER_LOST or DEVICE_LOST.
  void LostWithWorker(Job* job, bool in_hand, Reason reason, const std::string& cause);
  void Handle(const soup::worker::v1::FromWorker& message);
  void HandleBaseLoaded(const soup::worker::v1::BaseLoaded& m);
  bool Order(const soup::worker::v1::ToWorker& message,
             absl::Span<const int> fds = absl::Span<const int>());
  void Answered();
  bool OrderJob(Job* job, const soup::worker::v1::ToWorker& message);

  void StartPass();
  std::vector<std::shared_ptr<const PreparedJob>> PreparedOf(const std::vector<std::string>& ids);
  bool Fits(const std::vector<std::string>& ids, int64_t device_budget);
  bool OpenJobs(const std::vector<std::string>& ids);
  void LoadBaseOf(const PreparedJob& job);
  void RefuseUnfit(const std::vector<std::string>& ids, int64_t device_budget);
  // Called by the host store on any thread before an idle base's memory is let go.
  void BeforeDrop(const std::string& base_key);

  // ---- orchestrator_passes.cc ----
  void RunPassOf(const std::vector<std::string>& ids, int64_t device_budget);
  void HandleJobOpened(const soup::worker::v1::JobOpened& m);
  void HandleStepDone(const soup::worker::v1::StepDone& m);
  void HandleValidationDone(const soup::worker::v1::ValidationDone& m);
  void HandlePassDone(const soup::worker::v1::PassDone& m);
  void HandleJobFault(const soup::worker::v1::JobFault& m);
  void HandleFinalized(const soup::worker::v1::Finalized& m);
  void Publish(Job* job, const soup::v1::StepRecord& step);
  bool ValidatesAfter(const Job& job, int64_t step) const;
  void Advance(Job* job);
  void ChargePass(double seconds);

  // ---- orchestrator_queries.cc ----
  // Whether the base fits what soupd may ever store and pin. Errors: ResourceExhausted.
  absl::Status CheckBaseFits(const cache::InspectedModel& model, engine::BaseFormat format,
                             const std::string& user) const;
  DeviceMemoryView DeviceMemory() const;
  DeviceLimits Limits() const {
    return {config_.device_memory_limit_bytes, config_.device_reserve_bytes};
  }
  // The most that an arena and page tables to come may take now.
  int64_t DeviceBudget() const { return ArenaBudget(DeviceMemory(), Limits()); }
  // Page tables of what these jobs pin (SetTableBytes), by what the worker could pin.
  int64_t TableBytes(const std::vector<std::shared_ptr<const PreparedJob>>& jobs) const {
    return SetTableBytes(jobs, !supervisor_->info().host_memory_pageable);
  }
  // Host memory that passes may keep activations in.
  int64_t HostBudget() const;
  void PublishCacheMetrics();

  const OrchestratorParts parts_;
  const Config& config_;
  AttachedSegments attached_;

  int64_t pinned_limit_ = 0;
  std::unique_ptr<cache::BaseCache> cache_;
  std::unique_ptr<FdStore> fd_store_;
  std::unique_ptr<PrepareRunner> runner_;
  std::unique_ptr<JobPreparer> preparer_;

  // ---- loop thread ----
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  FairShare share_;
  PassPlanner planner_;
  int64_t next_order_ = 1;
  int64_t next_pass_ = 1;
  bool draining_ = false;
  bool schedule_asked_ = false;
  absl::Time wake_at_ = absl::InfiniteFuture();

  int64_t generation_ = 0;  // 0: no worker is up
  int32_t orders_out_ = 0;  // that the worker has not answered
  struct LoadedBase {
    bool loaded = false;
    bool read_only = true;
  };
  std::map<std::string, LoadedBase> bases_;  // in the worker
  std::set<std::string> verify_bases_;       // were mapped writable when a worker died badly
  std::string turn_base_;                    // whose turn it is, since when
  absl::Time turn_since_;
  bool pass_in_flight_ = false;
  soup::worker::v1::RunPass pass_;
  std::map<std::string, int64_t> pass_tokens_;  // of the pass in flight, by job
  cache::CacheCounters told_counters_;

  // ---- any thread ----
  mutable absl::Mutex mu_;
  DeviceView device_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, int64_t> positions_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<std::string>> jobs_on_base_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> worker_bases_ ABSL_GUARDED_BY(mu_);  // bases mapped by the worker
  bool drained_ ABSL_GUARDED_BY(mu_) = false;
  mutable std::atomic<bool> ping_out_{false};
  std::atomic<uint64_t> tick_{0};
  std::atomic<uint64_t> work_{0};  // grows with every sign of work
  uint64_t work_seen_ = 0;         // loop thread

  mutable EventLoop loop_;
  std::unique_ptr<WorkerSupervisor> supervisor_;
  std::unique_ptr<ThreadPool> prepare_pool_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_DAEMON_ORCHESTRATOR_H_
