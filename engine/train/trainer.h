// Trainer: the engine of one process on one backend. It owns the arena, the slots and the state of
// every open job, runs passes of work items, applies optimizer steps, and commits each step to its
// job's mirror before it tells it.
//
//   trainer = Trainer::Create(backend, base); trainer->OpenJob(setup) -> steps_done
//   trainer->RunPass({items, placement}) -> finished steps, validations, faults
//   trainer->SaveCheckpoint(id); trainer->ExportAdapter(id, dir, name); trainer->CloseJob(id)
//
// A fault of one job (its data, its mirror's disk) is told in PassResult::faults; the other jobs of
// the pass are not touched, and get the bits they get alone. RunPass itself fails only for what
// concerns all: the plan, the device. After a failed RunPass every open job must be closed and
// opened again: it goes on from its mirror.
//
// The arena follows the plan of the pass (PlanMemory). A difference between the bytes planned and
// the bytes measured is an Internal error. While the part that does not depend on the items (slots,
// head, adapters) stays the same, slots and states stay where they are; when it changes, states go
// through host memory, gradients of a half-accumulated step included.
//
// Not thread-safe: one thread drives a trainer; progress() may be read from any.
#ifndef SOUP_ENGINE_TRAIN_TRAINER_H_
#define SOUP_ENGINE_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/base/file_system.h"
#include "engine/data/dataset.h"
#include "engine/device/backend.h"
#include "engine/plan/job_plan.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/model_base.h"

namespace soup::engine {

struct LoraConfig {
  double alpha = 32;
  double dropout = 0;   // p in [0, 1)
  bool rslora = false;  // scale alpha / sqrt(r) instead of alpha / r
};

struct TrainingConfig {
  double learning_rate = 2e-4;
  LrScheduler scheduler = LrScheduler::kCosine;
  double warmup_ratio = 0.03;
  double weight_decay = 0;
  double max_grad_norm = 1.0;  // 0: no clipping
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  int32_t keep_last = 2;  // checkpoints
};

// What an oracle prescribes instead of the run's own order and rates (golden data).
struct PrescribedRun {
  std::vector<std::vector<MicroBatch>> steps;
  std::vector<double> learning_rates;  // one a step
};

struct JobSetup {
  std::string job_id;
  JobShape shape;  // model and format must be the base's; lengths those of the dataset
  LoraConfig lora;
  TrainingConfig training;
  NumericPlan numeric;
  std::shared_ptr<const PreparedDataset> dataset;
  std::string mirror_dir;         // mirror.bin lies here; empty: none (steps are not durable)
  std::string checkpoint_dir;     // empty: SaveCheckpoint is refused
  std::string init_adapter_path;  // adapter_model.safetensors to go on from; empty: fresh
  std::string init_adapter_config_path;             // its adapter_config.json; empty: not compared
  std::shared_ptr<const PrescribedRun> prescribed;  // null: by shape.batch and training
};

// A finished optimizer step. Times and copies are those of the passes that held its
// micro-batches, whole: co-tenants of a pass each see all of it.
struct StepStats {
  std::string job_id;
  int64_t step = 0;
  double loss = 0;       // mean over the step's targets
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0;
  int64_t supervised_tokens = 0;
  int64_t bucket_tail_tokens = 0;
  int64_t padding_tokens = 0;  // between records
  double seconds = 0;
  double stall_seconds = 0;
  int64_t copy_bytes = 0;
  double copy_seconds = 0;
  // The gradient was not finite: weights, moments and optimizer step count are as before.
  bool skipped = false;
  std::vector<int32_t> skipped_records;  // those with a loss that is not finite, else all; from 0
  std::string warning;                   // names step and records when skipped
};

struct JobOpened {
  int64_t steps_done = 0;
  int64_t steps_total = 0;
  bool from_mirror = false;
  bool from_checkpoint = false;
  std::vector<std::string> warnings;
  // Matrix products whose algorithms were timed now, and how long that took; kept ones are not.
  int64_t gemms_tuned = 0;
  double gemm_tuning_seconds = 0;
  // Step steps_done as it was told, or was to be told, when it was committed: whoever lost the
  // telling (a kill between commit and publication) finds it here. nullopt: fresh, or nothing
  // remembered.
  std::optional<StepStats> last_step;
};

// A run of micro-batches of one step of one job, or of its validation records (score).
struct WorkRequest {
  std::string job_id;
  int64_t step = 0;               // from 1: the step in progress; score: the step last done
  int32_t first_micro_batch = 0;  // goes on where the last pass has stopped
  int32_t micro_batches = -1;     // < 0: to the step's end
  bool score = false;
};
struct PassRequest {
  std::vector<WorkRequest> items;  // a job once
  Placement placement;
  // An arena that is made now has at least so many bytes: those of the largest pass to come, so
  // that it need not grow in the middle of a run, when a stranger may have taken the rest. The plan
  // of this pass must still be exact.
  int64_t hold_bytes = 0;
  int64_t hold_host_bytes = 0;  // the same of pinned host memory, which takes long to make
};

struct ValidationStats {
  std::string job_id;
  int64_t step = 0;
  double loss = 0;  // mean over all validation targets
  int64_t tokens = 0;
  int64_t supervised_tokens = 0;
  std::string warning;  // of a loss that is not finite
};
struct JobFaultInfo {
  std::string job_id;
  int64_t step = 0;
  absl::Status status;   // InvalidArgument: the data; ResourceExhausted, DataLoss, ...: storage
  bool storage = false;  // the mirror or a checkpoint could not be written
};

struct PassResult {
  std::vector<StepStats> steps;
  std::vector<ValidationStats> validations;
  std::vector<JobFaultInfo> faults;
  double seconds = 0;
  double stall_seconds = 0;
  int64_t copy_bytes = 0;
  double copy_busy_seconds = 0;
  int64_t offload_out_bytes = 0;  // to host memory and back
  int64_t offload_in_bytes = 0;
  int64_t tokens = 0;
  int64_t arena_planned_bytes = 0;
  int64_t arena_measured_bytes = 0;
};

// A job's whole state on the host, for tests and checkers.
struct AdapterSnapshot {
  int64_t steps_done = 0;
  int64_t optimizer_steps = 0;
  std::vector<float> weights;
  std::vector<float>
      gradients;  // of the step in progress, or of the step last done, before clipping
  std::vector<float> first_moment;
  std::vector<float> second_moment;
};

struct TrainerOptions {
  // What jobs' numeric plans must have been made with: the BLAS core decides bits.
  // Empty backend: not checked.
  MachineProfile profile = {.backend = ""};
  FileSystem* file_system = &RealFileSystem();
  const Clock* clock = &RealClock();
  // Lays the states out anew in every pass, as when co-tenants come and go (tests).
  bool always_relayout = false;
};

class Trainer {
 public:
  // `backend` must outlive the trainer. Errors: InvalidArgument (a slab that does not fit its
  // layout).
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Backend* backend, ModelBase base,
                                                         TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // From the mirror, else from the newest whole checkpoint, else fresh. Where the backend chooses
  // algorithms for matrix products, every product that the job can launch has one after this
  // (Backend::PrepareGemms): none is chosen during a run. Errors: AlreadyExists,
  // InvalidArgument (a numeric plan of another backend, a dataset without targets, an adapter that
  // does not fit), and those of files.
  absl::StatusOr<JobOpened> OpenJob(JobSetup setup);
  // Drops the job's state; `remove_mirror` its mirror file too. With the last job the arena goes
  // back to the machine. NotFound.
  absl::Status CloseJob(const std::string& job_id, bool remove_mirror = false);

  // Errors: NotFound (a job that is not open), InvalidArgument and FailedPrecondition (a step or
  // micro-batch that is not the next, an impossible placement), ResourceExhausted (the arena),
  // Internal (a plan that was not exact), and those of the device.
  absl::StatusOr<PassResult> RunPass(const PassRequest& request);

  // The folder written. Errors: NotFound, FailedPrecondition (no checkpoint folder), and those of
  // files.
  absl::StatusOr<std::string> SaveCheckpoint(const std::string& job_id);
  // PEFT folder `dir`. Errors: FailedPrecondition (not finite, or no B has moved), those of files.
  absl::Status ExportAdapter(const std::string& job_id, const std::string& dir,
                             const std::string& base_model_name);

  absl::StatusOr<AdapterSnapshot> AdapterState(const std::string& job_id);
  // Logits of every row of a micro-batch of training records, fp32 [tokens, vocab], through a score
  // pass: dropout off.
  absl::StatusOr<std::vector<float>> Logits(const std::string& job_id,
                                            const MicroBatch& micro_batch,
                                            const Placement& placement);

  // The plan that RunPass makes for a request. Errors: as RunPass.
  absl::StatusOr<MemoryPlan> Plan(const PassRequest& request) const;

  // Grows while work advances: the watchdog's food.
  int64_t progress() const;

 private:
  struct Rep;
  explicit Trainer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_TRAINER_H_
