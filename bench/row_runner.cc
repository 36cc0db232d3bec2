#include "bench/row_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/named_base.h"
#include "engine/base/status_macros.h"
#include "engine/data/dataset.h"
#include "kernels/philox.h"

namespace soup::bench {
namespace {

using engine::TokenRecord;

constexpr char kJobId[] = "bench";
constexpr uint64_t kTokenSeed = 11, kLengthSeed = 12;
constexpr int64_t kSampledSteps = 8;  // that a placement is chosen by

// Sequences of random tokens, all of them supervised (but each first, which nothing predicts).
std::vector<TokenRecord> RandomRecords(const RowSpec& spec, int64_t count, int64_t vocab) {
  const kernels::PhiloxStream random(kTokenSeed, 0, 0), lengths(kLengthSeed, 0, 0);
  std::vector<TokenRecord> records(static_cast<size_t>(count));
  uint64_t draw = 0, drawn = 0;
  for (TokenRecord& record : records) {
    int64_t length = spec.seq;
    if (spec.shortest > 0) {
      length =
          spec.shortest + static_cast<int64_t>(lengths.Draw(drawn++) %
                                               static_cast<uint64_t>(spec.seq - spec.shortest + 1));
    }
    record.ids.reserve(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) {
      record.ids.push_back(
          static_cast<int32_t>(random.Draw(draw++) % static_cast<uint64_t>(vocab)));
    }
    record.supervised.assign(static_cast<size_t>(length), 1);
  }
  return records;
}

}  // namespace

RowRunner::~RowRunner() {
  if (base_ != nullptr) backend_.UnregisterHostMemory();
}

absl::StatusOr<const engine::ModelBase*> RowRunner::Base(const RowSpec& spec) {
  if (base_ != nullptr && base_name_ == spec.base && base_format_ == spec.format &&
      base_values_ == spec.values) {
    return &base_->base();
  }
  SOUP_ASSIGN_OR_RETURN(const engine::ModelSpec model, FindBase(spec.base));
  if (base_ != nullptr) {
    backend_.UnregisterHostMemory();
    base_.reset();
  }
  const absl::Time start = absl::Now();
  SOUP_ASSIGN_OR_RETURN(base_,
                        SyntheticBase::Make(model, spec.format, options_.threads, spec.values));
  const absl::Time filled = absl::Now();
  base_name_ = spec.base;
  base_format_ = spec.format;
  base_values_ = spec.values;
  backend_.RegisterHostMemory(base_->data(), base_->bytes());
  base_note_ = absl::StrFormat("%s %s, %s: %.2f GB, filled in %.2f s, registered in %.2f s",
                               spec.base, engine::BaseFormatName(spec.format),
                               spec.format == engine::BaseFormat::kBf16
                                   ? absl::StrCat("values ", WeightValuesName(spec.values))
                                   : "codes even",
                               static_cast<double>(base_->bytes()) * 1e-9,
                               absl::ToDoubleSeconds(filled - start),
                               absl::ToDoubleSeconds(absl::Now() - filled));
  return &base_->base();
}

absl::StatusOr<RowRunner::Job> RowRunner::MakeJob(const RowSpec& spec,
                                                  const engine::ModelSpec& model) const {
  Job job;
  engine::JobSetup& setup = job.setup;
  setup.job_id = kJobId;
  // A folder of its own: it goes with the job.
  if (!options_.mirror_dir.empty())
    setup.mirror_dir = absl::StrCat(options_.mirror_dir, "/soup-bench");
  const int64_t steps = spec.warmup + spec.steps + (options_.breakdown ? 1 : 0);
  setup.dataset =
      engine::PreparedDataset::FromRecords(RandomRecords(spec, steps * spec.batch, model.vocab));
  setup.shape.model = model;
  setup.shape.format = spec.format;
  setup.shape.lora.r = spec.lora_r;
  setup.shape.lora.targets = spec.targets;
  setup.shape.lengths = setup.dataset->TrainLengths();
  setup.shape.max_length = spec.seq;
  setup.shape.batch.batch_size = spec.batch;
  setup.shape.batch.packing = true;
  setup.shape.precision = spec.precision;
  SOUP_ASSIGN_OR_RETURN(setup.numeric, engine::MakeNumericPlan(setup.shape, profile_));
  SOUP_ASSIGN_OR_RETURN(const engine::BatchSchedule schedule,
                        engine::MakeTrainSchedule(setup.shape, setup.numeric));
  const bool alike = spec.shortest == 0;
  for (int64_t step = 1; step <= (alike ? 1 : steps); ++step) {
    engine::PassJob pass;
    pass.job_id = kJobId;
    pass.lora = setup.shape.lora;
    pass.numeric = setup.numeric;
    SOUP_ASSIGN_OR_RETURN(pass.items, engine::MakePassItems(schedule.Step(step), setup.numeric, 0,
                                                            -1, /*train=*/true));
    job.passes.push_back(std::move(pass));
  }
  job.largest =
      alike ? job.passes.front()
            : engine::LargestPass(kJobId, setup.shape, setup.numeric, schedule.max_micro_batches());
  return job;
}

absl::StatusOr<engine::MemoryPlan> RowRunner::PlanLargest(const RowSpec& spec,
                                                          const engine::ModelSpec& model,
                                                          const Job& job) const {
  if (spec.budget_bytes > 0 && job.passes.size() == 1) {
    return engine::ChoosePlacement(model, spec.format, {job.largest}, spec.budget_bytes, profile_);
  }
  if (spec.budget_bytes > 0) {
    engine::RunPasses run;
    run.largest = {job.largest};
    for (int64_t i = 0; i < std::min<int64_t>(kSampledSteps, spec.steps); ++i) {
      run.sampled.push_back({job.pass(spec.warmup + 1 + i)});
    }
    run.steps = static_cast<int64_t>(run.sampled.size());
    SOUP_ASSIGN_OR_RETURN(engine::RunPlan plan, engine::ChoosePlacementForRun(
                                                    model, spec.format, run,
                                                    {.device_bytes = spec.budget_bytes}, profile_));
    return std::move(plan.largest);
  }
  engine::Placement placement = spec.placement;
  if (placement.slots == engine::kAllLayers) {
    placement.slots = static_cast<int32_t>(model.layers);
  }
  if (placement.resident_layers == engine::kAllLayers) {
    placement.resident_layers = placement.slots;
  }
  return engine::PlanMemory(model, spec.format, {job.largest}, placement);
}

absl::StatusOr<RowRunner::Plans> RowRunner::Plan(const RowSpec& spec,
                                                 const engine::ModelSpec& model,
                                                 const Job& job) const {
  Plans plans;
  SOUP_ASSIGN_OR_RETURN(plans.largest, PlanLargest(spec, model, job));
  if (job.passes.size() == 1) {
    plans.steps = {plans.largest};
    return plans;
  }
  // A placement that the row names stays as it is.
  const int64_t room = spec.budget_bytes > 0 ? plans.largest.arena_bytes() : 0;
  for (const engine::PassJob& pass : job.passes) {
    SOUP_ASSIGN_OR_RETURN(engine::MemoryPlan step, engine::KeepMore(model, spec.format, {pass},
                                                                    plans.largest.placement, room));
    plans.steps.push_back(std::move(step));
  }
  return plans;
}

absl::StatusOr<double> RowRunner::PredictedSeconds(const RowSpec& spec,
                                                   const engine::ModelSpec& model, const Job& job,
                                                   const Plans& plans) const {
  const int64_t steps = job.passes.size() == 1 ? 1 : spec.steps;
  double seconds = 0;
  for (int64_t step = spec.warmup + 1; step <= spec.warmup + steps; ++step) {
    SOUP_ASSIGN_OR_RETURN(const engine::Forecast forecast,
                          engine::ForecastPass(model, spec.format, {job.pass(step)},
                                               plans.of(step).placement, profile_));
    seconds += forecast.step_seconds / static_cast<double>(steps);
  }
  return seconds;
}

absl::StatusOr<engine::Placement> RowRunner::Place(const RowSpec& spec) {
  SOUP_RETURN_IF_ERROR(CheckRow(spec));
  SOUP_ASSIGN_OR_RETURN(const engine::ModelSpec model, FindBase(spec.base));
  SOUP_ASSIGN_OR_RETURN(const Job job, MakeJob(spec, model));
  SOUP_ASSIGN_OR_RETURN(const engine::MemoryPlan plan, PlanLargest(spec, model, job));
  return plan.placement;
}

absl::StatusOr<RowResult> RowRunner::Run(const RowSpec& spec, const Ablation& ablation) {
  SOUP_RETURN_IF_ERROR(CheckRow(spec));
  SOUP_ASSIGN_OR_RETURN(const engine::ModelSpec model, FindBase(spec.base));
  SOUP_ASSIGN_OR_RETURN(Job job, MakeJob(spec, model));
  SOUP_ASSIGN_OR_RETURN(const Plans plans, Plan(spec, model, job));
  const engine::MemoryPlan& plan = plans.largest;
  SOUP_ASSIGN_OR_RETURN(const double predicted, PredictedSeconds(spec, model, job, plans));
  // After the plan: a budget that is too small costs nothing.
  SOUP_ASSIGN_OR_RETURN(const engine::ModelBase* base, Base(spec));
  RowResult row;
  row.spec = spec;
  row.ablation = ablation;
  row.placement = plan.placement;
  row.precision = job.setup.numeric.precision();
  // Of the step whose arena is told: the last that counts.
  row.planned_bytes = plans.of(spec.warmup + spec.steps).arena_bytes();
  row.host_bytes = plan.host_bytes();
  if (job.setup.numeric.backend == "cuda" && backend_.counters().pageable_bytes == 0) {
    row.table_bytes = plan.table_bytes + engine::PinnedTableBytes(engine::PinnedByJobs(
                                             model, spec.format, {job.setup.shape.lora}));
  }
  row.base_bytes = base_->bytes();
  row.predicted_step_seconds = predicted;

  AblatedBackend ablated(&backend_, ablation);
  WorkCounter counter(&ablated, profile_);
  OpTimer timer(&counter, spec.lora_r, base->spec.qkv_width());
  engine::TrainerOptions options;
  options.profile = profile_;
  SOUP_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                        engine::Trainer::Create(&timer, *base, options));
  SOUP_ASSIGN_OR_RETURN(const engine::JobOpened opened, trainer->OpenJob(std::move(job.setup)));
  row.gemms_tuned = opened.gemms_tuned;
  row.gemm_tuning_seconds = opened.gemm_tuning_seconds;
  SOUP_RETURN_IF_ERROR(Steps(plans, *trainer, counter, timer, row));
  SOUP_RETURN_IF_ERROR(trainer->CloseJob(kJobId, /*remove_mirror=*/true));
  return row;
}

absl::Status RowRunner::Steps(const Plans& plans, engine::Trainer& trainer, WorkCounter& counter,
                              OpTimer& timer, RowResult& row) const {
  const int32_t last = row.spec.warmup + row.spec.steps;
  row.fastest_seconds = 1e300;
  for (int32_t step = 1; step <= last + (options_.breakdown ? 1 : 0); ++step) {
    timer.Enable(step > last);
    counter.Reset();
    SOUP_ASSIGN_OR_RETURN(const engine::PassResult pass,
                          trainer.RunPass({{{kJobId, step, 0, -1, false}},
                                           plans.of(step).placement,
                                           plans.largest.arena_bytes(),
                                           plans.largest.host_bytes()}));
    for (const engine::JobFaultInfo& fault : pass.faults) return fault.status;
    const engine::StepStats& stats = pass.steps.at(0);
    if (stats.skipped && !row.ablation.any()) {
      return absl::InternalError(absl::StrCat("row \"", row.spec.ToText(), "\": ", stats.warning));
    }
    if (step > last) {
      SOUP_ASSIGN_OR_RETURN(row.breakdown, timer.Take());
      continue;
    }
    if (step == last && options_.device_bytes) {
      row.device_bytes = options_.device_bytes();
      row.product_code_bytes = backend_.counters().product_code_bytes;
    }
    if (step <= row.spec.warmup) continue;
    const double part = 1.0 / row.spec.steps;
    row.arena_bytes = pass.arena_measured_bytes;
    row.tokens_a_step += part * static_cast<double>(stats.tokens);
    row.loss = stats.loss;
    row.work.Add(counter.work(), part);
    row.step_seconds += part * stats.seconds;
    row.fastest_seconds = std::min(row.fastest_seconds, stats.seconds);
    row.slowest_seconds = std::max(row.slowest_seconds, stats.seconds);
    row.stall_seconds += part * stats.stall_seconds;
    row.copy_bytes += part * static_cast<double>(stats.copy_bytes);
    row.copy_busy_seconds += part * stats.copy_seconds;
  }
  return absl::OkStatus();
}

}  // namespace soup::bench
