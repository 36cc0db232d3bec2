#include "engine/train/job_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/train/lora_init.h"
#include "engine/train/peft_export.h"
#include "engine/train/peft_import.h"

namespace soup::engine {

absl::StatusOr<std::unique_ptr<JobRun>> JobRun::Open(Backend* backend, const ModelBase& base,
                                                     FileSystem* fs, JobSetup setup) {
  std::unique_ptr<JobRun> job(new JobRun());
  job->setup_ = std::move(setup);
  job->fs_ = fs;
  SOUP_RETURN_IF_ERROR(job->Check(base));
  SOUP_ASSIGN_OR_RETURN(AdapterLayout layout,
                        AdapterLayout::Create(base.spec, job->setup_.shape.lora));
  job->layout_ = std::make_unique<AdapterLayout>(std::move(layout));
  if (job->layout_->elements() != AdapterElements(base.spec, job->setup_.shape.lora)) {
    return absl::InternalError(absl::StrCat("job ", job->id(), ": the adapter has ",
                                            job->layout_->elements(),
                                            " elements and the memory plan another number"));
  }
  SOUP_RETURN_IF_ERROR(job->MakeSchedules());
  SOUP_ASSIGN_OR_RETURN(job->host_, HostState::Create(backend, job->layout_->elements()));
  SOUP_RETURN_IF_ERROR(job->FindState(fs));
  job->opened_.steps_done = job->steps_done_;
  job->opened_.steps_total = job->steps_total();
  return job;
}

absl::Status JobRun::Check(const ModelBase& base) const {
  const JobSetup& s = setup_;
  if (s.job_id.empty()) return absl::InvalidArgumentError("a job needs an id");
  if (s.dataset == nullptr || s.dataset->train_records() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", id(), ": the dataset has no training record"));
  }
  if (s.shape.format != base.format) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", id(), " wants a base of format ", BaseFormatName(s.shape.format),
                     " and this one is ", BaseFormatName(base.format)));
  }
  if (!(s.lora.dropout >= 0 && s.lora.dropout < 1) || !std::isfinite(s.lora.alpha)) {
    return absl::InvalidArgumentError(absl::StrCat("job ", id(), ": lora.dropout ", s.lora.dropout,
                                                   " must lie in [0, 1), lora.alpha ", s.lora.alpha,
                                                   " must be finite"));
  }
  if ((s.lora.dropout > 0) != s.shape.lora.dropout) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", id(), ": its shape and its dropout disagree"));
  }
  if (s.dataset->TrainLengths() != s.shape.lengths ||
      s.dataset->ValidationLengths() != s.shape.validation_lengths) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", id(),
                     ": the dataset's record lengths are not those that the job was planned with"));
  }
  if (s.prescribed != nullptr &&
      s.prescribed->steps.size() != s.prescribed->learning_rates.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", id(), ": a prescribed run needs one learning rate a step"));
  }
  return absl::OkStatus();
}

absl::Status JobRun::MakeSchedules() {
  if (setup_.prescribed == nullptr) {
    SOUP_ASSIGN_OR_RETURN(train_schedule_, MakeTrainSchedule(setup_.shape, setup_.numeric));
  }
  if (!setup_.shape.validation_lengths.empty()) {
    SOUP_ASSIGN_OR_RETURN(validation_schedule_,
                          MakeValidationSchedule(setup_.shape, setup_.numeric));
  }
  const TrainingConfig& t = setup_.training;
  rates_ = MakeLrSchedule(t.scheduler, t.learning_rate, t.warmup_ratio, steps_total());
  return absl::OkStatus();
}

int64_t JobRun::steps_total() const {
  return setup_.prescribed != nullptr ? static_cast<int64_t>(setup_.prescribed->steps.size())
                                      : train_schedule_->steps();
}

std::vector<MicroBatch> JobRun::StepMicroBatches(int64_t step) const {
  return setup_.prescribed != nullptr ? setup_.prescribed->steps[step - 1]
                                      : train_schedule_->Step(step);
}

std::vector<MicroBatch> JobRun::ValidationMicroBatches() const {
  return validation_schedule_.has_value() ? validation_schedule_->Step(1)
                                          : std::vector<MicroBatch>();
}

int64_t JobRun::CountStepTargets(const std::vector<MicroBatch>& micro_batches,
                                 bool validation) const {
  int64_t n = 0;
  for (const MicroBatch& micro_batch : micro_batches) {
    for (const int32_t record : micro_batch.records) {
      n += CountTargets(validation ? setup_.dataset->validation(record)
                                   : setup_.dataset->train(record));
    }
  }
  return n;
}

double JobRun::LearningRate(int64_t step) const {
  return setup_.prescribed != nullptr ? setup_.prescribed->learning_rates[step - 1]
                                      : rates_.At(step - 1);
}

absl::StatusOr<std::vector<float>> JobRun::InitialWeights() const {
  if (setup_.init_adapter_path.empty()) return InitLoraWeights(*layout_, setup_.shape.batch.seed);
  return LoadInitAdapter(*fs_, {setup_.init_adapter_path, setup_.init_adapter_config_path},
                         {setup_.shape.lora.r, setup_.lora.alpha, setup_.lora.rslora}, *layout_);
}

absl::Status JobRun::FindState(FileSystem* fs) {
  const int64_t n = layout_->elements();
  std::optional<AdapterState> state;
  if (!setup_.mirror_dir.empty()) {
    absl::StatusOr<std::unique_ptr<Mirror>> mirror = Mirror::Open(*fs, setup_.mirror_dir, n);
    absl::StatusOr<std::optional<AdapterState>> read = std::optional<AdapterState>();
    if (absl::IsDataLoss(mirror.status())) {  // not even its header is whole: made anew
      read = mirror.status();
      SOUP_RETURN_IF_ERROR(Mirror::Remove(*fs, setup_.mirror_dir));
      mirror = Mirror::Open(*fs, setup_.mirror_dir, n);
    }
    if (!mirror.ok()) return mirror.status();
    mirror_ = *std::move(mirror);
    if (read.ok()) read = mirror_->Read();
    if (read.ok()) {
      state = *std::move(read);
    } else if (absl::IsDataLoss(read.status())) {
      opened_.warnings.push_back(absl::StrCat("the mirror is torn (", read.status().message(),
                                              "): the job goes on from its last checkpoint"));
    } else {
      return read.status();
    }
    opened_.from_mirror = state.has_value();
  }
  if (!setup_.checkpoint_dir.empty()) {
    checkpoints_ = std::make_unique<CheckpointStore>(fs, setup_.checkpoint_dir, layout_.get(),
                                                     std::max(1, setup_.training.keep_last));
    SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, checkpoints_->Steps());
    if (!steps.empty() && (!state.has_value() || steps.back() > state->step)) {
      SOUP_ASSIGN_OR_RETURN(CheckpointStore::Loaded loaded, checkpoints_->LatestWhole());
      for (std::string& w : loaded.warnings) opened_.warnings.push_back(std::move(w));
      if (loaded.state.has_value() && (!state.has_value() || loaded.state->step > state->step)) {
        state = std::move(loaded.state);
        opened_.from_checkpoint = true;
        opened_.from_mirror = false;
      }
    }
  }
  if (!state.has_value()) {
    SOUP_ASSIGN_OR_RETURN(const std::vector<float> weights, InitialWeights());
    std::copy(weights.begin(), weights.end(), host_.weights().begin());
    return absl::OkStatus();
  }
  if (static_cast<int64_t>(state->weights.size()) != n || state->step > steps_total()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", id(), ": its saved state (step ",
                                                      state->step, ", ", state->weights.size(),
                                                      " weights) is not of this job"));
  }
  TakeState(*state);
  return absl::OkStatus();
}

absl::Status JobRun::Freeze(const std::string& algorithms) {
  plan_hash_ = PlanHash(absl::StrCat(setup_.numeric.ToText(), algorithms));
  if (!saved_plan_hash_.has_value() || *saved_plan_hash_ == plan_hash_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job ", id(),
                   ": its saved state was made under another numeric plan; it cannot go on with "
                   "the same bits: submit it again"));
}

std::set<RowCounts> JobRun::EveryRowCounts() const {
  std::set<RowCounts> counts;
  const NumericPlan& numeric = setup_.numeric;
  // A record is met once an epoch: its targets are counted once.
  std::vector<int64_t> targets;
  for (int32_t i = 0; i < setup_.dataset->train_records(); ++i) {
    targets.push_back(CountTargets(setup_.dataset->train(i)));
  }
  const auto add = [&](const MicroBatch& micro_batch, bool train) {
    int64_t rows = 0;
    for (const int32_t record : micro_batch.records) {
      rows += train ? targets[static_cast<size_t>(record)]
                    : CountTargets(setup_.dataset->validation(record));
    }
    counts.insert({numeric.BucketFor(micro_batch.tokens), numeric.HeadRows(rows), train});
  };
  if (validation_schedule_.has_value()) {
    for (const MicroBatch& micro_batch : validation_schedule_->Step(1)) add(micro_batch, false);
  }
  const auto add_train = [&add](const MicroBatch& micro_batch) { add(micro_batch, true); };
  if (setup_.prescribed != nullptr) {
    for (const auto& step : setup_.prescribed->steps) {
      std::for_each(step.begin(), step.end(), add_train);
    }
  } else if (!train_schedule_->VisitAll(add_train)) {
    for (const int64_t bucket : numeric.buckets) counts.insert({bucket, bucket, true});
  }
  return counts;
}

void JobRun::TakeState(const AdapterState& state) {
  saved_plan_hash_ = state.plan_hash;
  std::copy(state.weights.begin(), state.weights.end(), host_.weights().begin());
  std::copy(state.exp_avg.begin(), state.exp_avg.end(), host_.first_moment().begin());
  std::copy(state.exp_avg_sq.begin(), state.exp_avg_sq.end(), host_.second_moment().begin());
  steps_done_ = state.step;
  optimizer_steps_ = state.optimizer_steps;
  skipped_ = state.skipped;
  last_stats_ = state.stats;
  opened_.last_step = DecodeStepStats(id(), last_stats_);
}

absl::StatusOr<PassJob> JobRun::MakePassJob(const WorkRequest& request) const {
  PassJob job;
  job.job_id = id();
  job.lora = setup_.shape.lora;
  job.numeric = setup_.numeric;
  const int64_t step = request.score ? steps_done_ : steps_done_ + 1;
  if (request.step != step) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id(), ": ", request.score ? "validation after step " : "step ",
                     request.step, " was asked for; next is ", step));
  }
  if (!request.score && step > steps_total()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id(), ": all ", steps_total(), " steps are done"));
  }
  const int32_t next = progress(request.score).next_micro_batch;
  if (request.first_micro_batch != next) {
    return absl::FailedPreconditionError(absl::StrCat("job ", id(), ", step ", step,
                                                      ": micro-batch ", request.first_micro_batch,
                                                      " was asked for; next is ", next));
  }
  SOUP_ASSIGN_OR_RETURN(
      job.items, MakePassItems(request.score ? ValidationMicroBatches() : StepMicroBatches(step),
                               setup_.numeric, next, request.micro_batches, !request.score));
  return job;
}

LoraOnDevice JobRun::OnDevice(const DeviceState& device) const {
  LoraOnDevice lora;
  const int64_t bytes = device.operand_bytes;
  const LoraShape& shape = setup_.shape.lora;
  lora.r = shape.r;
  const double r = static_cast<double>(shape.r);
  lora.scale = static_cast<float>(setup_.lora.alpha / (setup_.lora.rslora ? std::sqrt(r) : r));
  lora.dropout = static_cast<float>(setup_.lora.dropout);
  lora.seed = setup_.shape.batch.seed;
  lora.turns = AdaptersTurn(setup_.shape.model, shape);
  lora.targets = static_cast<int64_t>(layout_->targets().size());
  const std::vector<Module>& targets = layout_->targets();
  const int64_t layers = setup_.shape.model.layers;
  lora.sites.resize(static_cast<size_t>(layers * kGroups));
  const LayerLayout layout = MakeLayerLayout(setup_.shape.model, setup_.shape.format);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < targets.size(); ++i) {
      const Module m = targets[i];
      if (layer == 0 && !IsMlpGroup(ModuleGroup(m))) ++lora.attention_targets;
      const AdapterTensor& a = layout_->tensor(layer, m, LoraPart::kA);
      const AdapterTensor& b = layout_->tensor(layer, m, LoraPart::kB);
      LoraSite& site =
          lora.sites[static_cast<size_t>(layer * kGroups + static_cast<int>(ModuleGroup(m)))];
      int32_t& n = site.linears.count;
      if (n == 0) {
        site.first_target = static_cast<int32_t>(i);
        site.in = a.cols;
        site.a = At(device.operand, a.offset, bytes);
        site.b = At(device.operand, b.offset, bytes);
        if (device.gradients != nullptr) {
          site.grad_a = device.gradients + a.offset;
          site.grad_b = device.gradients + b.offset;
        }
      }
      site.modules[static_cast<size_t>(n)] = m;
      site.linears.column[n] = layout.matrix(m).group_row;
      site.linears.width[n] = b.rows;
      ++n;
    }
  }
  return lora;
}

void JobRun::FinishStep(bool applied) {
  ++steps_done_;
  if (applied) {
    ++optimizer_steps_;
  } else {
    ++skipped_;
  }
  step_ = StepProgress();
  validation_ = StepProgress();
}

AdapterStateView JobRun::StateView(absl::string_view stats) const {
  return {host_.weights(),
          host_.first_moment(),
          host_.second_moment(),
          steps_done_,
          optimizer_steps_,
          skipped_,
          plan_hash_,
          stats};
}

absl::Status JobRun::Commit(const StepStats& stats) {
  last_stats_ = EncodeStepStats(stats);
  return mirror_ == nullptr ? absl::OkStatus() : mirror_->Commit(StateView(last_stats_));
}

absl::StatusOr<std::string> JobRun::SaveCheckpoint() {
  if (checkpoints_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id(), " was opened without a checkpoint folder"));
  }
  return checkpoints_->Save(StateView(last_stats_));
}

absl::Status JobRun::Export(const std::string& dir, const std::string& base_model_name) const {
  PeftConfig config;
  config.base_model_name = base_model_name;
  config.alpha = setup_.lora.alpha;
  config.dropout = setup_.lora.dropout;
  config.rslora = setup_.lora.rslora;
  std::vector<float> initial;
  if (!setup_.init_adapter_path.empty()) {
    SOUP_ASSIGN_OR_RETURN(initial, InitialWeights());
  }
  return ExportPeftAdapter(*fs_, dir, *layout_, host_.weights(), initial, config);
}

absl::Status JobRun::RemoveMirror() {
  mirror_.reset();
  return setup_.mirror_dir.empty() ? absl::OkStatus()
                                   : soup::engine::RemoveMirror(*fs_, setup_.mirror_dir);
}

}  // namespace soup::engine
