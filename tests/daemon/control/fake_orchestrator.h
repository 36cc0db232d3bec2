// An orchestrator without workers: tests drive a job's life by hand.
#ifndef SOUP_TESTS_DAEMON_CONTROL_FAKE_ORCHESTRATOR_H_
#define SOUP_TESTS_DAEMON_CONTROL_FAKE_ORCHESTRATOR_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/control/config.h"
#include "daemon/control/event_hub.h"
#include "daemon/control/job_store.h"
#include "daemon/control/metrics.h"
#include "daemon/control/orchestrator.h"
#include "daemon/control/step_log.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"

namespace soup::daemon {

class FakeOrchestrator final : public Orchestrator {
 public:
  FakeOrchestrator(const Config& config, JobStore& store, StepLogs& steps, EventHub& hub,
                   Metrics& metrics)
      : config_(config), store_(store), steps_(steps), hub_(hub), metrics_(metrics) {}

  // ---- what a test does ----
  void Move(const std::string& id, JobTrigger trigger, Reason reason = soup::v1::REASON_UNSPECIFIED,
            const std::string& message = "") {
    const auto moved = store_.Transition(id, trigger, reason, message);
    if (!moved.ok()) CheckFailed(moved.status());
  }
  void DoStep(const std::string& id, int64_t n, double loss = 1.0) {
    soup::v1::StepRecord step;
    step.set_step(n);
    step.set_loss(loss);
    step.set_tokens(10);
    step.set_step_seconds(0.1);
    step.set_unix_ms(absl::ToUnixMillis(absl::Now()));
    const absl::Status appended = steps_.Append(id, step);
    if (!appended.ok()) CheckFailed(appended);
    metrics_.StepDone(id, step);
    metrics_.PassDone(
        {.seconds = 0.1, .stall_seconds = 0.01, .copy_bytes = 1000, .copy_busy_seconds = 0.05});
    metrics_.CheckpointDone(id, step.unix_ms());
    hub_.Notify(id);
  }
  void StartRunning(const std::string& id, int64_t steps_total) {
    Move(id, JobTrigger::kPrepareStarted);
    metrics_.QueueWaited(0.1);
    JobUpdate update;
    update.steps_total = steps_total;
    const absl::Status updated = store_.UpdateJob(id, update);
    if (!updated.ok()) CheckFailed(updated);
    Move(id, JobTrigger::kRunStarted);
  }
  void Finish(const std::string& id, const std::string& artifact = "weights") {
    Move(id, JobTrigger::kFinalizeStarted);
    auto& fs = engine::RealFileSystem();
    const std::string folder = config_.ArtifactDir(id);
    SOUP_CHECK(fs.CreateDirectories(folder).ok());
    SOUP_CHECK(fs.WriteFileSynced(folder + "/adapter_model.safetensors", artifact).ok());
    SOUP_CHECK(fs.WriteFileSynced(folder + "/adapter_config.json", "{}").ok());
    Move(id, JobTrigger::kSucceeded);
  }
  void RunWhole(const std::string& id, int64_t steps) {
    StartRunning(id, steps);
    for (int64_t n = 1; n <= steps; ++n) DoStep(id, n);
    Finish(id);
  }
  std::vector<std::string> told() const {
    absl::MutexLock lock(&mutex_);
    return told_;
  }
  absl::Status submit_answer = absl::OkStatus();  // before calls come
  // Prefetch sends this many messages of progress, then waits for the caller to go away when
  // `hang`.
  int prefetch_progress = 3;
  bool prefetch_hang = false;
  bool prefetch_saw_cancel() const {
    absl::MutexLock lock(&mutex_);
    return saw_cancel_;
  }
  bool AwaitCancelSeen(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&saw_cancel_), timeout);
  }

  // ---- Orchestrator ----
  absl::Status Start() override { return absl::OkStatus(); }
  void Drain(absl::Time) override {}
  uint64_t ProgressTick() const override { return ++tick_; }
  void JobSubmitted(const std::string& id) override { Tell("submitted", id); }
  void PauseRequested(const std::string& id) override { Tell("pause", id); }
  void ResumeRequested(const std::string& id) override { Tell("resume", id); }
  void CancelRequested(const std::string& id) override { Tell("cancel", id); }
  absl::Status CheckSubmit(const soup::v1::JobSpec&, const std::string&,
                           const std::string&) override {
    return submit_answer;
  }
  absl::StatusOr<soup::v1::PlanReply> Plan(const soup::v1::JobSpec&, const std::string&,
                                           const std::string& base, const CallLimits&) override {
    soup::v1::PlanReply reply;
    reply.set_fits(true);
    reply.set_verdict("fits " + base);
    return reply;
  }
  absl::StatusOr<soup::v1::PreviewDataReply> PreviewData(const soup::v1::JobSpec&,
                                                         const std::string&, const std::string&,
                                                         int records, const CallLimits&) override {
    soup::v1::PreviewDataReply reply;
    for (int i = 0; i < records; ++i) {
      reply.add_records()->add_tokens()->set_text(std::string(100'000, 'x'));
    }
    return reply;
  }
  absl::StatusOr<soup::v1::CacheEntry> Prefetch(const soup::v1::BaseSpec& base, const std::string&,
                                                const ProgressFn& progress,
                                                const CallLimits& limits) override {
    for (int i = 1; i <= prefetch_progress; ++i) {
      soup::v1::Progress p;
      p.set_stage("quantise");
      p.set_done(i);
      progress(p);
    }
    while (prefetch_hang && !limits.cancelled()) absl::SleepFor(absl::Milliseconds(1));
    if (prefetch_hang) {
      absl::MutexLock lock(&mutex_);
      saw_cancel_ = true;
      return absl::CancelledError("the caller went away");
    }
    soup::v1::CacheEntry entry;
    entry.set_fingerprint("f00");
    entry.set_format(base.format());
    return entry;
  }
  absl::StatusOr<soup::v1::ListCacheReply> ListCache() override {
    soup::v1::ListCacheReply reply;
    reply.add_entries()->set_fingerprint("f00");
    return reply;
  }
  absl::StatusOr<int64_t> Evict(const std::string& fingerprint, const std::string&) override {
    if (fingerprint != "f00") return absl::NotFoundError("no base " + fingerprint);
    return 123;
  }
  void FillNode(soup::v1::Node* node) override { node->add_devices()->set_name("fake"); }
  int64_t QueuePosition(const std::string&) override { return 1; }

 private:
  static void CheckFailed(const absl::Status& status) {
    engine::CheckFailed(status.ToString().c_str(), __FILE__, __LINE__);
  }
  void Tell(const char* what, const std::string& id) {
    absl::MutexLock lock(&mutex_);
    told_.push_back(absl::StrCat(what, " ", id));
  }

  const Config& config_;
  JobStore& store_;
  StepLogs& steps_;
  EventHub& hub_;
  Metrics& metrics_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> told_ ABSL_GUARDED_BY(mutex_);
  bool saw_cancel_ ABSL_GUARDED_BY(mutex_) = false;
  mutable std::atomic<uint64_t> tick_{0};
};

}  // namespace soup::daemon

#endif  // SOUP_TESTS_DAEMON_CONTROL_FAKE_ORCHESTRATOR_H_
