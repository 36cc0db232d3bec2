// Runs rows: real optimizer steps of one job through the trainer (the product's executor, whole:
// AdamW and gradient norm in it, no mirror), on a synthetic base, under a placement that the
// planner chose for the row's budget or that the row names.
//
// Not thread-safe; the backend must outlive it.
#ifndef SOUP_BENCH_ROW_RUNNER_H_
#define SOUP_BENCH_ROW_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/ablated_backend.h"
#include "bench/op_timer.h"
#include "bench/row_spec.h"
#include "bench/synthetic_base.h"
#include "bench/work_counter.h"
#include "engine/base/machine_profile.h"
#include "engine/device/backend.h"
#include "engine/plan/job_plan.h"
#include "engine/train/trainer.h"

namespace soup::bench {

struct RowResult {
  RowSpec spec;
  Ablation ablation;                                       // timing only when any
  engine::Placement placement;                             // that it ran under
  engine::Precision precision = engine::Precision::kFp32;  // that it ran in: never kAuto
  int64_t planned_bytes = 0;                               // arena, by the plan
  int64_t table_bytes = 0;         // of the card, to map what is pinned: by the plan; 0 on the CPU
  int64_t arena_bytes = 0;         // arena, as taken
  int64_t host_bytes = 0;          // pinned for what the pass keeps there
  int64_t base_bytes = 0;          // of the registered base
  int64_t device_bytes = 0;        // on the device: overhead, arena and all else; 0 on the CPU
  int64_t product_code_bytes = 0;  // of these, code of products loaded so far in this process
  double predicted_step_seconds = 0;
  // Over the steps that count.
  double tokens_a_step = 0;  // mean
  double step_seconds = 0;   // mean
  double fastest_seconds = 0;
  double slowest_seconds = 0;
  double stall_seconds = 0;      // a step
  double copy_bytes = 0;         // a step
  double copy_busy_seconds = 0;  // a step
  double loss = 0;               // of the last step
  int64_t gemms_tuned = 0;       // before the first step
  double gemm_tuning_seconds = 0;
  Work work;                           // a step, mean
  std::optional<Breakdown> breakdown;  // of one more step
  double tokens_per_second() const { return tokens_a_step / step_seconds; }
  double stall_fraction() const { return stall_seconds / step_seconds; }
  double copy_bytes_per_second() const { return copy_bytes / step_seconds; }
  // GEMM and attention of the step at this run's ceilings, over the step.
  double ideal_share() const { return work.ideal_seconds / step_seconds; }
};

struct RunnerOptions {
  int threads = 1;  // that fill the synthetic base
  bool breakdown = false;
  std::string mirror_dir;  // steps are committed to a mirror there, as soupd has it; empty: not
  // Bytes in use on the device, this process's overhead included; null: told as 0.
  std::function<int64_t()> device_bytes;
};

class RowRunner {
 public:
  RowRunner(engine::Backend* backend, engine::MachineProfile profile, RunnerOptions options)
      : backend_(*backend), profile_(std::move(profile)), options_(std::move(options)) {}
  ~RowRunner();
  RowRunner(const RowRunner&) = delete;
  RowRunner& operator=(const RowRunner&) = delete;

  // Errors: those of the planner (ResourceExhausted names the least budget that would do), of the
  // trainer and of the device; Internal (a step without an ablation was not finite).
  absl::StatusOr<RowResult> Run(const RowSpec& spec, const Ablation& ablation = {});
  // The placement that Run would choose, so that rows of other sizes can be run under it.
  absl::StatusOr<engine::Placement> Place(const RowSpec& spec);
  // "llama-8b nf4-dq: 5.6 GB, filled in 2.1 s, registered in 0.4 s" of the last base that was made;
  // empty when none was since the last call.
  std::string TakeBaseNote() { return std::exchange(base_note_, ""); }

 private:
  struct Job {
    engine::JobSetup setup;
    std::vector<engine::PassJob> passes;  // of each step, or of all where they are alike
    engine::PassJob largest;
    const engine::PassJob& pass(int64_t step) const {  // from 1
      return passes[passes.size() == 1 ? 0 : static_cast<size_t>(step - 1)];
    }
  };
  // As soupd has them: room for the largest pass is held, smaller ones keep more in it.
  struct Plans {
    engine::MemoryPlan largest;
    std::vector<engine::MemoryPlan> steps;
    const engine::MemoryPlan& of(int64_t step) const {
      return steps[steps.size() == 1 ? 0 : static_cast<size_t>(step - 1)];
    }
  };
  // Keeps one base: rows that follow each other on the same one make it once.
  absl::StatusOr<const engine::ModelBase*> Base(const RowSpec& spec);
  absl::StatusOr<Job> MakeJob(const RowSpec& spec, const engine::ModelSpec& model) const;
  absl::StatusOr<engine::MemoryPlan> PlanLargest(const RowSpec& spec,
                                                 const engine::ModelSpec& model,
                                                 const Job& job) const;
  absl::StatusOr<Plans> Plan(const RowSpec& spec, const engine::ModelSpec& model,
                             const Job& job) const;
  // Mean of the steps that count.
  absl::StatusOr<double> PredictedSeconds(const RowSpec& spec, const engine::ModelSpec& model,
                                          const Job& job, const Plans& plans) const;
  absl::Status Steps(const Plans& plans, engine::Trainer& trainer, WorkCounter& counter,
                     OpTimer& timer, RowResult& row) const;

  engine::Backend& backend_;
  const engine::MachineProfile profile_;
  const RunnerOptions options_;
  std::string base_note_;
  std::string base_name_;
  engine::BaseFormat base_format_ = engine::BaseFormat::kBf16;
  WeightValues base_values_ = WeightValues::kNormal;
  std::unique_ptr<SyntheticBase> base_;
};

}  // namespace soup::bench

#endif  // SOUP_BENCH_ROW_RUNNER_H_
