// What a pass leaves to do: losses, optimizer steps, mirror commits, validations.
#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer_rep.h"

namespace soup::engine {

namespace {

void AddTimes(const PassTimes& taken, StepStats& stats) {
  stats.seconds += taken.seconds;
  stats.stall_seconds += taken.stall_seconds;
  stats.copy_bytes += taken.copy_bytes;
  stats.copy_seconds += taken.copy_seconds;
}

// Adds an item's losses, row after row in double, and notes the records whose loss is not finite.
void AddLosses(const PassItemState& item, StepProgress& progress) {
  for (size_t i = 0; i < item.row_loss.size(); ++i) {
    const double loss = static_cast<double>(item.row_loss[i]);
    progress.loss_sum += loss;
    const int32_t record = item.batch.row_record[i];
    if (!std::isfinite(loss) &&
        (progress.bad_records.empty() || progress.bad_records.back() != record)) {
      progress.bad_records.push_back(record);
    }
  }
  progress.stats.tokens += item.batch.tokens;
  progress.stats.supervised_tokens += item.supervised();
  progress.stats.bucket_tail_tokens += item.T - item.batch.tokens;
  progress.stats.padding_tokens += item.batch.padding;
  ++progress.next_micro_batch;
}

}  // namespace

PassTimes Trainer::Rep::Since(int64_t start_ns, const BackendCounters& before) const {
  const BackendCounters now = backend->counters();
  PassTimes taken;
  taken.seconds = static_cast<double>(options.clock->MonotonicNs() - start_ns) * 1e-9;
  taken.stall_seconds = now.stall_seconds - before.stall_seconds;
  taken.copy_bytes = now.copy_bytes - before.copy_bytes;
  taken.copy_seconds = now.copy_busy_seconds - before.copy_busy_seconds;
  return taken;
}

absl::Status Trainer::Rep::FinishShares(const std::vector<PassShare>& shares,
                                        const std::vector<PassItemState>& items, int64_t start_ns,
                                        const BackendCounters& before, PassResult& result) {
  size_t next = 0;
  for (const PassShare& share : shares) {
    StepProgress& progress = share.job->progress(share.request.score);
    for (size_t i = 0; i < share.batches.size(); ++i, ++next) {
      AddLosses(items[next], progress);
      result.tokens += items[next].batch.tokens;
    }
  }
  for (const PassShare& share : shares) {
    if (share.request.score) {
      if (share.ends()) FinishValidation(share, result);
      continue;
    }
    StepProgress& progress = share.job->progress(false);
    StepStats stats = progress.stats;
    const bool ends = share.ends();
    if (ends) SOUP_RETURN_IF_ERROR(Update(share, stats));
    AddTimes(Since(start_ns, before), ends ? stats : progress.stats);
    if (!ends) continue;
    // The step is told only once it is in the mirror.
    const absl::Status committed = FinishStep(share, stats);
    if (committed.ok()) {
      result.steps.push_back(std::move(stats));
    } else {
      result.faults.push_back({share.job->id(), stats.step, committed, true});
    }
  }
  return absl::OkStatus();
}

// Clip, AdamW, or neither when the step is not finite. Errors are the device's.
absl::Status Trainer::Rep::Update(const PassShare& share, StepStats& stats) {
  JobRun& job = *share.job;
  const StepProgress& progress = job.progress(false);
  const TrainingConfig& training = job.setup().training;
  stats.job_id = job.id();
  stats.step = share.request.step;
  stats.loss = progress.loss_sum / static_cast<double>(share.targets);
  stats.learning_rate = job.LearningRate(stats.step);
  OptimizerConfig config;
  config.learning_rate = stats.learning_rate;
  config.beta1 = training.adam_beta1;
  config.beta2 = training.adam_beta2;
  config.epsilon = training.adam_epsilon;
  config.weight_decay = training.weight_decay;
  config.max_grad_norm = training.max_grad_norm;
  const DeviceState device = memory.state(job.id());
  OptimizerState state;
  state.weights = device.weights;
  state.gradients = device.gradients;
  state.first_moment = device.first_moment;
  state.second_moment = device.second_moment;
  state.n = job.layout().elements();
  if (moment_chunks) {
    state.host_first_moment = job.host().first_moment().data();
    state.host_second_moment = job.host().second_moment().data();
    state.chunks = moment_chunks.as<float>();
    state.chunk = MomentChunk(state.n);
  }
  SOUP_ASSIGN_OR_RETURN(const OptimizerResult updated,
                        OptimizerStep(backend, config, state, job.optimizer_steps() + 1,
                                      memory.sum_squares(), !std::isfinite(stats.loss)));
  stats.grad_norm = updated.grad_norm;
  stats.skipped = !updated.applied;
  if (!stats.skipped) {
    memory.RefreshOperand(job.id());
    return backend->status();
  }
  stats.skipped_records = progress.bad_records.empty() ? share.step_records : progress.bad_records;
  stats.warning = SkippedWarning(stats);
  return absl::OkStatus();
}

// Errors are the job's own: its mirror's disk.
absl::Status Trainer::Rep::FinishStep(const PassShare& share, StepStats& stats) {
  share.job->FinishStep(!stats.skipped);
  // Without a mirror the host's copy is made when somebody asks for it.
  if (share.job->has_mirror()) {
    SOUP_RETURN_IF_ERROR(
        memory.Save(share.job->id(), &share.job->host(), /*with_gradients=*/false));
  }
  return share.job->Commit(stats);
}

void Trainer::Rep::FinishValidation(const PassShare& share, PassResult& result) {
  StepProgress& progress = share.job->progress(true);
  ValidationStats stats;
  stats.job_id = share.job->id();
  stats.step = share.request.step;
  stats.loss = progress.loss_sum / static_cast<double>(share.targets);
  stats.tokens = progress.stats.tokens;
  stats.supervised_tokens = progress.stats.supervised_tokens;
  if (!std::isfinite(stats.loss)) {
    stats.warning = ValidationWarning(stats.step, progress.bad_records);
  }
  progress = StepProgress();
  result.validations.push_back(std::move(stats));
}

}  // namespace soup::engine
