// A pass from its order to its end, and what each job does after it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/daemon_orchestrator.h"
#include "engine/base/log.h"

namespace soup::daemon {
namespace {

constexpr absl::Duration kMemoryRetryMin = absl::Milliseconds(500);
constexpr absl::Duration kMemoryRetryMax = absl::Seconds(30);

// So many steps without one that could be applied do not end by themselves; and what half of a run
// could not move is no adapter.
bool Diverged(int64_t skipped_in_a_row, int64_t done, int64_t total) {
  constexpr int64_t kMost = 50;
  return skipped_in_a_row >= kMost || (done >= total && 2 * skipped_in_a_row >= total);
}

}  // namespace

void DaemonOrchestrator::RunPassOf(const std::vector<std::string>& ids, int64_t device_budget) {
  engine::MachineProfile profile;
  int64_t overhead = 0;
  {
    absl::MutexLock lock(&mu_);
    profile = device_.profile;
    overhead = device_.overhead_bytes;
  }
  const auto prepared = PreparedOf(ids);
  std::vector<PassMember> members;
  for (const std::string& id : ids) members.push_back({Find(id)->prepared, Find(id)->cursor});
  const int64_t budget = SetBudget(prepared, device_budget, overhead, TableBytes(prepared));
  auto plan = planner_.Plan(prepared, budget, profile, HostBudget());
  absl::StatusOr<soup::worker::v1::RunPass> pass =
      plan.ok() ? PassPlanner::MakePass(members, *plan)
                : absl::StatusOr<soup::worker::v1::RunPass>(plan.status());
  if (!pass.ok()) {
    SOUP_LOG(kError, "jobs") << "pass of " << ids.front() << ": " << pass.status().message();
    Job* job = Find(ids.front());
    job->exit = Exit{JobTrigger::kFailed, soup::v1::INTERNAL,
                     absl::StrCat("no pass could be planned: ", pass.status().message())};
    Attend(job);
    Schedule();
    return;
  }
  pass_ = *std::move(pass);
  pass_.set_pass_id(next_pass_++);
  soup::worker::v1::ToWorker m;
  *m.mutable_run_pass() = pass_;
  if (!Order(m)) return;
  pass_in_flight_ = true;
  pass_tokens_.clear();
  for (const std::string& id : ids) {
    Job* job = Find(id);
    job->in_pass = true;
    if (job->planned_arena_bytes == 0) {
      job->planned_arena_bytes = plan->arena_bytes;
      JobUpdate update;
      update.planned_arena_bytes = plan->arena_bytes;
      parts_.store->UpdateJob(id, update).IgnoreError();  // told again with the next attempt
    }
    const engine::BatchSchedule& schedule =
        job->cursor.score ? *job->prepared->validation : job->prepared->train;
    for (const engine::MicroBatch& batch : schedule.Step(job->cursor.score ? 1 : job->cursor.step))
      pass_tokens_[id] += batch.tokens;
  }
}

// ---- steps ----

bool DaemonOrchestrator::ValidatesAfter(const Job& job, int64_t step) const {
  return job.prepared != nullptr && job.prepared->validation.has_value() &&
         job.prepared->train.EndsEpoch(step);
}

void DaemonOrchestrator::Publish(Job* job, const soup::v1::StepRecord& step) {
  const absl::Status appended = parts_.steps->Append(job->id, step);
  if (absl::IsResourceExhausted(appended)) parts_.storage->Failed(appended.message());
  if (!appended.ok() && !absl::IsResourceExhausted(appended)) {
    SOUP_LOG(kWarn, "jobs") << job->id << ": step " << step.step() << ": " << appended.message();
    return;
  }
  parts_.metrics->StepDone(job->id, step);
  parts_.hub->Notify(job->id);
}

void DaemonOrchestrator::HandleStepDone(const soup::worker::v1::StepDone& m) {
  Job* job = Find(m.job_id());
  if (job == nullptr) return;
  job->steps_done = m.step().step();
  job->checkpointed = false;
  job->suspect = false;
  job->memory_refusals = 0;
  job->skipped_in_a_row = m.step().skipped() ? job->skipped_in_a_row + 1 : 0;
  JobUpdate update;
  if (job->device_losses != 0) update.device_losses = 0;
  if (!m.warning().empty()) {
    update.add_warnings.push_back(m.warning());
    LogOf(job->id, m.warning());
  }
  if (update.device_losses.has_value() || !update.add_warnings.empty()) {
    const absl::Status written = parts_.store->UpdateJob(job->id, update);
    if (written.ok()) job->device_losses = 0;
    if (!written.ok()) {
      SOUP_LOG(kWarn, "jobs") << job->id << ": " << written.message();
    }
  }
  if (ValidatesAfter(*job, m.step().step())) {
    job->held_step = m.step();
  } else {
    Publish(job, m.step());
  }
}

void DaemonOrchestrator::HandleValidationDone(const soup::worker::v1::ValidationDone& m) {
  Job* job = Find(m.job_id());
  if (job == nullptr || !job->held_step.has_value() || job->held_step->step() != m.step()) return;
  if (!m.warning().empty()) {
    JobUpdate update;
    update.add_warnings.push_back(m.warning());
    LogOf(job->id, m.warning());
    const absl::Status written = parts_.store->UpdateJob(job->id, update);
    if (!written.ok()) {
      SOUP_LOG(kWarn, "jobs") << job->id << ": " << written.message();
    }
  }
  job->held_step->set_has_validation_loss(true);
  job->held_step->set_validation_loss(m.loss());
  Publish(job, *job->held_step);
  job->held_step.reset();
}

void DaemonOrchestrator::HandleJobOpened(const soup::worker::v1::JobOpened& m) {
  Job* job = Find(m.job_id());
  if (job == nullptr) return;
  job->waiting = false;
  job->open = true;
  job->checkpointed = false;
  job->steps_done = m.steps_done();
  const int64_t done = m.steps_done();
  const absl::Status cut = parts_.steps->CutAfter(job->id, done);
  if (!cut.ok()) {
    SOUP_LOG(kWarn, "jobs") << job->id << ": " << cut.message();
  }
  auto told = parts_.steps->Summary(job->id);
  // A step that was committed but not told: the mirror remembers it.
  if (job->held_step.has_value() && job->held_step->step() != done) job->held_step.reset();
  if (!job->held_step.has_value() && m.has_last_step() && m.last_step().step() == done &&
      told.ok() && told->steps_done < done) {
    if (ValidatesAfter(*job, done)) {
      job->held_step = m.last_step();
    } else {
      Publish(job, m.last_step());
    }
  }
  job->cursor =
      job->held_step.has_value() ? JobCursor{done, 0, true} : JobCursor{done + 1, 0, false};
  if (!m.warnings().empty()) {
    JobUpdate update;
    for (const std::string& w : m.warnings()) {
      update.add_warnings.push_back(w);
      LogOf(job->id, w);
    }
    parts_.store->UpdateJob(job->id, update).IgnoreError();
  }
  LogOf(job->id, absl::StrCat("at step ", done, " of ", m.steps_total(),
                              m.from_mirror()       ? ", from its mirror"
                              : m.from_checkpoint() ? ", from a checkpoint"
                                                    : ""));
  Advance(job);
}

// After a pass, or on opening: what the job does next, if it is not one more pass.
void DaemonOrchestrator::Advance(Job* job) {
  if (job->open && job->state == soup::v1::RUNNING && !job->exit.has_value() &&
      !job->move_pending) {
    const int64_t limit_s = job->spec.resources().time_limit_seconds();
    const absl::Duration ran = absl::Milliseconds(job->ran_before_ms) +
                               std::max(absl::Now() - job->run_started, absl::ZeroDuration());
    const int64_t total = job->prepared->steps_total();
    if (Diverged(job->skipped_in_a_row, job->steps_done, total)) {
      job->exit =
          Exit{JobTrigger::kFailed, soup::v1::DATA,
               absl::StrCat("diverged: loss or gradient of the last ", job->skipped_in_a_row,
                            " steps, from step ", job->steps_done - job->skipped_in_a_row + 1,
                            " on, was not finite, and none of them was applied; lower "
                            "training.learning_rate, or mend what the base or the data holds")};
    } else if (job->steps_done >= total && !job->cursor.score) {
      Move(job, JobTrigger::kFinalizeStarted, soup::v1::REASON_UNSPECIFIED, "",
           [this](Job* j) { Attend(j); });
      return;
    }
    if (limit_s > 0 && ran >= absl::Seconds(limit_s) && !job->exit.has_value())
      job->exit = Exit{
          JobTrigger::kFailed, soup::v1::TIME_LIMIT,
          absl::StrCat("the time limit of ", limit_s, " s was reached after step ", job->steps_done,
                       " of ", job->prepared->steps_total(), "; its last checkpoint is kept")};
  }
  Attend(job);
}

void DaemonOrchestrator::ChargePass(double seconds) {
  int64_t total = 0;
  for (const auto& [id, tokens] : pass_tokens_) total += tokens;
  for (const auto& [id, tokens] : pass_tokens_) {
    Job* job = Find(id);
    if (job == nullptr || total == 0) continue;
    const double share = seconds * static_cast<double>(tokens) / static_cast<double>(total);
    share_.Charge(job->user, job->priority, share);
    job->step_cost_seconds = share;
    job->last_served = absl::Now();
  }
}

void DaemonOrchestrator::HandlePassDone(const soup::worker::v1::PassDone& m) {
  if (!pass_in_flight_ || m.pass_id() != pass_.pass_id()) return;
  pass_in_flight_ = false;
  parts_.metrics->PassDone({m.seconds(), m.stall_seconds(), m.copy_bytes(), m.copy_busy_seconds(),
                            m.offload_out_bytes(), m.offload_in_bytes()});
  if (m.arena_planned_bytes() > 0)
    parts_.metrics->SetDeviceMemory(config_.device, m.arena_planned_bytes(), m.device_peak_bytes());
  if (m.arena_planned_bytes() > 0) {
    absl::MutexLock lock(&mu_);
    device_.arena_bytes = m.arena_planned_bytes();
  }
  ChargePass(m.seconds());
  const soup::worker::v1::RunPass pass = std::move(pass_);
  for (const soup::worker::v1::WorkItem& item : pass.items()) {
    Job* job = Find(item.job_id());
    if (job == nullptr || !job->in_pass) continue;
    job->in_pass = false;
    if (job->open && !job->exit.has_value()) {
      const bool step_over =
          item.score() ? !job->held_step.has_value() : job->steps_done >= item.step();
      if (!step_over) {
        job->cursor.micro_batch += item.micro_batches();
      } else if (job->held_step.has_value()) {
        job->cursor = JobCursor{item.step(), 0, true};
      } else {
        job->cursor = JobCursor{item.step() + 1, 0, false};
      }
    }
    Advance(job);
  }
}

// ---- ends ----

void DaemonOrchestrator::HandleJobFault(const soup::worker::v1::JobFault& m) {
  if (m.ordered()) Answered();
  Job* job = Find(m.job_id());
  if (job == nullptr) return;
  if (m.ordered()) job->waiting = false;
  job->open = false;
  LogOf(job->id, absl::StrCat("fault: ", m.message()));
  switch (m.reason()) {
    case soup::v1::STORAGE:
      parts_.storage->Failed(m.message());
      job->exit = Exit{JobTrigger::kPaused, soup::v1::STORAGE,
                       absl::StrCat(m.message(), "; free some room and resume the job")};
      break;
    case soup::v1::OUT_OF_MEMORY: {
      absl::Duration pause = kMemoryRetryMin;
      for (int i = 0; i < job->memory_refusals && pause < kMemoryRetryMax; ++i) pause *= 2;
      ++job->memory_refusals;
      job->not_before = absl::Now() + std::min(pause, kMemoryRetryMax);
      planner_.Forget();
      job->exit = Exit{JobTrigger::kRequeued, soup::v1::OUT_OF_MEMORY,
                       absl::StrCat(m.message(), "; it waits for memory")};
      break;
    }
    case soup::v1::DEVICE_LOST:
      // In answer to OpenJob: this is not the device, or not the library, that it began on.
      if (m.ordered()) {
        job->exit = Exit{JobTrigger::kPaused, soup::v1::DEVICE_LOST, m.message()};
        break;
      }
      LostWithWorker(job, true, soup::v1::DEVICE_LOST, m.message());
      return;
    case soup::v1::PREEMPTED:
      break;  // closed by a failed pass of others: opened again at its next turn
    default:
      job->exit = Exit{JobTrigger::kFailed, m.reason(), m.message()};
  }
  // What the job's state is worth is settled when its pass is over.
  Attend(job);
}

void DaemonOrchestrator::HandleFinalized(const soup::worker::v1::Finalized& m) {
  Job* job = Find(m.job_id());
  if (job == nullptr) return;
  job->waiting = false;
  parts_.storage->Wrote();
  Move(job, JobTrigger::kSucceeded, soup::v1::REASON_UNSPECIFIED, "",
       [this](Job* j) { Attend(j); });
}

}  // namespace soup::daemon
