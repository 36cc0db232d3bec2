#include "engine/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/train/device_memory.h"
#include "engine/train/job_run.h"
#include "engine/train/optimizer.h"
#include "engine/train/pass.h"

namespace soup::engine {
namespace {

constexpr absl::Duration kWait = absl::Minutes(5);
constexpr int64_t kF32Bytes = 4;

// One job's share of the pass under way.
struct Share {
  JobRun* job = nullptr;
  WorkRequest request;
  PassJob plan;
  std::vector<ItemBatch> batches;     // as plan.items
  int32_t micro_batches_in_step = 0;  // of the whole step or validation
  int64_t targets = 0;                // of the whole step or validation
  std::vector<int32_t> step_records;  // of the whole step
  bool ends() const {
    return request.first_micro_batch + static_cast<int32_t>(batches.size()) ==
           micro_batches_in_step;
  }
};

// What a pass took, beside its items.
struct Taken {
  double seconds = 0;
  double stall_seconds = 0;
  int64_t copy_bytes = 0;
  double copy_seconds = 0;
};

void AddTimes(const Taken& taken, StepStats& stats) {
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
  ++progress.next_micro_batch;
}

}  // namespace

struct Trainer::Rep {
  Rep(Backend* backend, ModelBase model_base, TrainerOptions trainer_options)
      : backend(backend),
        base(std::move(model_base)),
        options(trainer_options),
        memory(backend, &base) {}

  absl::StatusOr<JobRun*> Find(const std::string& id) const;
  absl::StatusOr<Share> MakeShare(const WorkRequest& request) const;
  absl::Status FillShare(Share& share) const;
  absl::StatusOr<std::vector<Share>> MakeShares(const PassRequest& request, PassResult& result);
  std::map<std::string, HostState*> HostStates() const;
  PassEnv Env();
  // The device part of a pass: memory, items, plan = device.
  absl::Status RunShares(const std::vector<Share>& shares, const Placement& placement,
                         const LogitsHook& hook, std::vector<PassItemState>& items,
                         PassResult& result);
  std::vector<PassItemState> MakeItems(const std::vector<Share>& shares,
                                       const std::vector<LoraOnDevice>& adapters,
                                       Retention retention) const;
  absl::Status FinishShares(const std::vector<Share>& shares,
                            const std::vector<PassItemState>& items, int64_t start_ns,
                            const BackendCounters& before, PassResult& result);
  absl::Status FinishStep(const Share& share, StepStats& stats);
  absl::Status Update(const Share& share, StepStats& stats);
  void FinishValidation(const Share& share, PassResult& result);
  Taken Since(int64_t start_ns, const BackendCounters& before) const;

  Backend* backend;
  ModelBase base;
  TrainerOptions options;
  DeviceMemory memory;
  std::map<std::string, std::unique_ptr<JobRun>> jobs;
  std::atomic<int64_t> progress{0};
  bool broken = false;  // a pass has failed: states on the device are not to be trusted
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Backend* backend, ModelBase base,
                                                         TrainerOptions options) {
  SOUP_RETURN_IF_ERROR(CheckModelBase(base));
  return std::unique_ptr<Trainer>(
      new Trainer(std::make_unique<Rep>(backend, std::move(base), options)));
}

Trainer::Trainer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Trainer::~Trainer() = default;

int64_t Trainer::progress() const { return rep_->progress.load(std::memory_order_relaxed); }

// Jobs -------------------------------------------------------------------------------------------

absl::StatusOr<JobOpened> Trainer::OpenJob(JobSetup setup) {
  if (rep_->jobs.count(setup.job_id) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("job ", setup.job_id, " is open already"));
  }
  const NumericPlan& numeric = setup.numeric;
  if (numeric.backend != rep_->backend->name()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", setup.job_id,
                                                   " was planned for backend ", numeric.backend,
                                                   " and this one is ", rep_->backend->name()));
  }
  const MachineProfile& profile = rep_->options.profile;
  if (!profile.backend.empty() &&
      (profile.cpu_threads != numeric.cpu_threads || profile.blas_core != numeric.blas_core)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", setup.job_id, " was planned for ", numeric.cpu_threads, " threads and BLAS core ",
        numeric.blas_core, "; this worker has ", profile.cpu_threads, " and ", profile.blas_core,
        ": other bits would come out. Run it where it was planned, or submit it again"));
  }
  SOUP_ASSIGN_OR_RETURN(std::unique_ptr<JobRun> job,
                        JobRun::Open(rep_->base, rep_->options.file_system, std::move(setup)));
  JobOpened opened = job->opened();
  const std::string id = job->id();
  rep_->jobs.emplace(id, std::move(job));
  return opened;
}

absl::Status Trainer::CloseJob(const std::string& job_id, bool remove_mirror) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  rep_->memory.Drop(job_id);
  const absl::Status removed = remove_mirror ? job->RemoveMirror() : absl::OkStatus();
  rep_->jobs.erase(job_id);
  if (rep_->jobs.empty()) rep_->broken = false;
  return removed;
}

absl::StatusOr<std::string> Trainer::SaveCheckpoint(const std::string& job_id) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  SOUP_RETURN_IF_ERROR(rep_->memory.Save(job_id, &job->host()));
  return job->SaveCheckpoint();
}

absl::Status Trainer::ExportAdapter(const std::string& job_id, const std::string& dir,
                                    const std::string& base_model_name) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  SOUP_RETURN_IF_ERROR(rep_->memory.Save(job_id, &job->host()));
  return job->Export(dir, base_model_name);
}

absl::StatusOr<AdapterSnapshot> Trainer::AdapterState(const std::string& job_id) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  SOUP_RETURN_IF_ERROR(rep_->memory.Save(job_id, &job->host()));
  AdapterSnapshot snapshot;
  snapshot.steps_done = job->steps_done();
  snapshot.optimizer_steps = job->optimizer_steps();
  snapshot.weights = job->host().weights;
  snapshot.gradients = job->host().gradients;
  snapshot.first_moment = job->host().first_moment;
  snapshot.second_moment = job->host().second_moment;
  return snapshot;
}

absl::StatusOr<JobRun*> Trainer::Rep::Find(const std::string& id) const {
  const auto it = jobs.find(id);
  if (it == jobs.end()) return absl::NotFoundError(absl::StrCat("job ", id, " is not open"));
  return it->second.get();
}

std::map<std::string, HostState*> Trainer::Rep::HostStates() const {
  std::map<std::string, HostState*> states;
  for (const auto& [id, job] : jobs) states.emplace(id, &job->host());
  return states;
}

// Passes -----------------------------------------------------------------------------------------

absl::StatusOr<Share> Trainer::Rep::MakeShare(const WorkRequest& request) const {
  Share share;
  share.request = request;
  SOUP_ASSIGN_OR_RETURN(share.job, Find(request.job_id));
  SOUP_ASSIGN_OR_RETURN(share.plan, share.job->MakePassJob(request));
  return share;
}

// The rows of a share. An error is the job's own: its data.
absl::Status Trainer::Rep::FillShare(Share& share) const {
  const JobRun& job = *share.job;
  const bool score = share.request.score;
  const std::vector<MicroBatch> micro_batches =
      score ? job.ValidationMicroBatches() : job.StepMicroBatches(share.request.step);
  share.micro_batches_in_step = static_cast<int32_t>(micro_batches.size());
  share.targets = job.CountStepTargets(micro_batches, score);
  if (share.targets == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", job.id(), ", step ", share.request.step,
                     ": no record of it has a supervised token; nothing can be learned"));
  }
  for (const MicroBatch& micro_batch : micro_batches) {
    share.step_records.insert(share.step_records.end(), micro_batch.records.begin(),
                              micro_batch.records.end());
  }
  for (size_t i = 0; i < share.plan.items.size(); ++i) {
    SOUP_ASSIGN_OR_RETURN(ItemBatch batch,
                          MakeItemBatch(*job.setup().dataset, score,
                                        micro_batches[share.request.first_micro_batch + i],
                                        share.plan.items[i].tokens, base.spec.vocab));
    share.batches.push_back(std::move(batch));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Share>> Trainer::Rep::MakeShares(const PassRequest& request,
                                                            PassResult& result) {
  std::vector<Share> shares;
  for (const WorkRequest& work : request.items) {
    SOUP_ASSIGN_OR_RETURN(Share share, MakeShare(work));
    const absl::Status filled = FillShare(share);
    if (filled.ok()) {
      shares.push_back(std::move(share));
    } else {
      result.faults.push_back({work.job_id, work.step, filled, false});
    }
  }
  return shares;
}

absl::StatusOr<MemoryPlan> Trainer::Plan(const PassRequest& request) const {
  std::vector<PassJob> jobs;
  for (const WorkRequest& work : request.items) {
    SOUP_ASSIGN_OR_RETURN(Share share, rep_->MakeShare(work));
    jobs.push_back(std::move(share.plan));
  }
  return PlanMemory(rep_->base.spec, rep_->base.format, jobs, request.placement);
}

PassEnv Trainer::Rep::Env() {
  PassEnv env;
  env.backend = backend;
  env.arena = memory.arena();
  env.spec = base.spec;
  env.format = base.format;
  env.layout = MakeLayerLayout(base.spec, base.format);
  env.act_bytes = DTypeBytes(backend->activation_type());
  env.wt_bytes = DTypeBytes(backend->weight_type());
  env.inverse_frequencies = memory.inverse_frequencies();
  env.progress = &progress;
  return env;
}

std::vector<PassItemState> Trainer::Rep::MakeItems(const std::vector<Share>& shares,
                                                   const std::vector<LoraOnDevice>& adapters,
                                                   Retention retention) const {
  std::vector<PassItemState> items;
  for (size_t s = 0; s < shares.size(); ++s) {
    const Share& share = shares[s];
    for (size_t i = 0; i < share.batches.size(); ++i) {
      PassItemState item;
      item.index = static_cast<int32_t>(items.size());
      item.lora = &adapters[s];
      item.train = !share.request.score;
      item.keeps = item.train && retention == Retention::kKeep;
      item.step = share.request.step;
      item.micro_batch = share.request.first_micro_batch + static_cast<int32_t>(i);
      item.loss_scale = static_cast<float>(1.0 / static_cast<double>(share.targets));
      item.batch = share.batches[i];
      item.T = item.batch.bucket;
      items.push_back(std::move(item));
    }
  }
  return items;
}

absl::Status Trainer::Rep::RunShares(const std::vector<Share>& shares, const Placement& placement,
                                     const LogitsHook& hook, std::vector<PassItemState>& items,
                                     PassResult& result) {
  std::vector<PassJob> plans;
  for (const Share& share : shares) plans.push_back(share.plan);
  SOUP_ASSIGN_OR_RETURN(const MemoryPlan plan,
                        PlanMemory(base.spec, base.format, plans, placement));
  SOUP_RETURN_IF_ERROR(memory.Configure(plan, plans, HostStates(), options.always_relayout));
  std::vector<LoraOnDevice> adapters;
  for (const Share& share : shares) {
    const DeviceState state = memory.state(share.job->id());
    adapters.push_back(share.job->OnDevice(state));
    if (!share.request.score && share.request.first_micro_batch == 0) {
      backend->FillZero(state.gradients, share.job->layout().elements() * kF32Bytes);
    }
  }
  items = MakeItems(shares, adapters, placement.retention);
  PassInputs inputs;
  inputs.ring = memory.ring();
  inputs.head = memory.head();
  inputs.final_norm = memory.final_norm();
  inputs.embedding = base.globals().data() + MakeGlobalsLayout(base.spec).embedding_offset;
  inputs.placement = placement;
  inputs.head_slice_rows = plans.front().numeric.head_slice_rows;
  inputs.logits_hook = hook;
  const PassEnv env = Env();
  broken = true;  // until the pass has run through
  const absl::Status ran = RunItems(env, inputs, &items);
  for (PassItemState& item : items) {
    item.buffers.clear();
    item.lora = nullptr;
  }
  SOUP_RETURN_IF_ERROR(ran);
  result.arena_planned_bytes = plan.arena_bytes();
  result.arena_measured_bytes = memory.arena()->high_water_bytes();
  if (result.arena_planned_bytes != result.arena_measured_bytes) {
    return absl::InternalError(absl::StrCat("the plan of the pass says ", plan.arena_bytes(),
                                            " bytes of arena and the pass took ",
                                            result.arena_measured_bytes));
  }
  broken = false;
  return absl::OkStatus();
}

absl::StatusOr<PassResult> Trainer::RunPass(const PassRequest& request) {
  if (rep_->broken) {
    return absl::FailedPreconditionError(
        "the last pass has failed: close every job and open it again, it goes on from its mirror");
  }
  if (request.items.empty()) return absl::InvalidArgumentError("a pass needs a work item");
  const int64_t start_ns = rep_->options.clock->MonotonicNs();
  const BackendCounters before = rep_->backend->counters();
  PassResult result;
  SOUP_ASSIGN_OR_RETURN(const std::vector<Share> shares, rep_->MakeShares(request, result));
  if (shares.empty()) return result;
  std::vector<PassItemState> items;
  absl::Status status = rep_->RunShares(shares, request.placement, nullptr, items, result);
  if (status.ok()) {
    rep_->broken = true;  // until every step is whole
    status = rep_->FinishShares(shares, items, start_ns, before, result);
    if (status.ok()) rep_->broken = false;
  }
  if (!status.ok()) {
    // A plan that was refused has left all states as they were; a pass that broke off has not.
    if (rep_->broken) rep_->memory.DropAll();
    return status;
  }
  const Taken taken = rep_->Since(start_ns, before);
  result.seconds = taken.seconds;
  result.stall_seconds = taken.stall_seconds;
  result.copy_bytes = taken.copy_bytes;
  result.copy_busy_seconds = taken.copy_seconds;
  return result;
}

// Steps ------------------------------------------------------------------------------------------

Taken Trainer::Rep::Since(int64_t start_ns, const BackendCounters& before) const {
  const BackendCounters now = backend->counters();
  Taken taken;
  taken.seconds = static_cast<double>(options.clock->MonotonicNs() - start_ns) * 1e-9;
  taken.stall_seconds = now.stall_seconds - before.stall_seconds;
  taken.copy_bytes = now.copy_bytes - before.copy_bytes;
  taken.copy_seconds = now.copy_busy_seconds - before.copy_busy_seconds;
  return taken;
}

absl::Status Trainer::Rep::FinishShares(const std::vector<Share>& shares,
                                        const std::vector<PassItemState>& items, int64_t start_ns,
                                        const BackendCounters& before, PassResult& result) {
  size_t next = 0;
  for (const Share& share : shares) {
    StepProgress& progress = share.job->progress(share.request.score);
    for (size_t i = 0; i < share.batches.size(); ++i, ++next) {
      AddLosses(items[next], progress);
      result.tokens += items[next].batch.tokens;
    }
  }
  for (const Share& share : shares) {
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
absl::Status Trainer::Rep::Update(const Share& share, StepStats& stats) {
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
  const OptimizerState state = {device.weights, device.gradients, device.first_moment,
                                device.second_moment, job.layout().elements()};
  SOUP_ASSIGN_OR_RETURN(const OptimizerResult updated,
                        OptimizerStep(backend, config, state, job.optimizer_steps() + 1,
                                      memory.sum_squares(), !std::isfinite(stats.loss)));
  stats.grad_norm = updated.grad_norm;
  stats.skipped = !updated.applied;
  if (!stats.skipped) return absl::OkStatus();
  stats.skipped_records = progress.bad_records.empty() ? share.step_records : progress.bad_records;
  stats.warning = SkippedWarning(stats);
  return absl::OkStatus();
}

// Errors are the job's own: its mirror's disk.
absl::Status Trainer::Rep::FinishStep(const Share& share, StepStats& stats) {
  share.job->FinishStep(!stats.skipped);
  SOUP_RETURN_IF_ERROR(memory.Save(share.job->id(), &share.job->host()));
  return share.job->Commit(stats);
}

void Trainer::Rep::FinishValidation(const Share& share, PassResult& result) {
  StepProgress& progress = share.job->progress(true);
  ValidationStats stats;
  stats.job_id = share.job->id();
  stats.step = share.request.step;
  stats.loss = progress.loss_sum / static_cast<double>(share.targets);
  stats.tokens = progress.stats.tokens;
  stats.supervised_tokens = progress.stats.supervised_tokens;
  progress = StepProgress();
  result.validations.push_back(std::move(stats));
}

// Logits -----------------------------------------------------------------------------------------

absl::StatusOr<std::vector<float>> Trainer::Logits(const std::string& job_id,
                                                   const MicroBatch& micro_batch,
                                                   const Placement& placement) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  const NumericPlan& numeric = job->setup().numeric;
  Share share;
  share.job = job;
  share.request.job_id = job_id;
  share.request.score = true;
  share.plan.job_id = job_id;
  share.plan.lora = job->setup().shape.lora;
  share.plan.numeric = numeric;
  SOUP_ASSIGN_OR_RETURN(share.plan.items, MakePassItems({micro_batch}, numeric, 0, 1, false));
  const int64_t vocab = rep_->base.spec.vocab;
  SOUP_ASSIGN_OR_RETURN(ItemBatch batch, MakeItemBatch(*job->setup().dataset, false, micro_batch,
                                                       share.plan.items[0].tokens, vocab));
  batch.rows.clear();
  for (int32_t row = 0; row < batch.tokens; ++row) batch.rows.push_back(row);
  batch.targets.assign(batch.tokens, 0);  // the loss of this pass is not read
  batch.row_record.assign(batch.tokens, 0);
  share.targets = batch.tokens;
  share.micro_batches_in_step = 1;
  const int64_t tokens = batch.tokens;
  share.batches.push_back(std::move(batch));

  std::vector<float> logits(tokens * vocab);
  std::vector<float> slice;
  const auto hook = [&](const LogitsSlice& s) -> absl::Status {
    slice.resize(s.rows * s.columns);
    SOUP_RETURN_IF_ERROR(
        rep_->backend->CopyToHostAsync(slice.data(), s.logits, s.rows * s.columns * kF32Bytes));
    SOUP_RETURN_IF_ERROR(rep_->backend->Synchronize(kWait));
    for (int64_t r = 0; r < s.rows; ++r) {
      std::copy_n(slice.data() + r * s.columns, s.columns,
                  logits.data() + r * vocab + s.first_column);
    }
    return absl::OkStatus();
  };
  std::vector<PassItemState> items;
  PassResult result;
  SOUP_RETURN_IF_ERROR(rep_->RunShares({std::move(share)}, placement, hook, items, result));
  return logits;
}

}  // namespace soup::engine
