// JobRun: an open job as the trainer keeps it: its schedule, its state, where its step stands.
//
// Opening finds where the job goes on: its mirror, else its newest whole checkpoint (or that, when
// it is newer: a mirror may be torn by a power loss, a checkpoint is fsynced), else a fresh
// adapter. Not thread-safe.
#ifndef SOUP_ENGINE_TRAIN_JOB_RUN_H_
#define SOUP_ENGINE_TRAIN_JOB_RUN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/train/adapter.h"
#include "engine/train/adapter_state.h"
#include "engine/train/checkpoint.h"
#include "engine/train/device_memory.h"
#include "engine/train/item_batch.h"
#include "engine/train/mirror.h"
#include "engine/train/pass_item.h"
#include "engine/train/trainer.h"

namespace soup::engine {

// What a step, or a validation, has gathered so far over its micro-batches.
struct StepProgress {
  int32_t next_micro_batch = 0;
  double loss_sum = 0;  // in micro-batch and row order
  StepStats stats;
  std::vector<int32_t> bad_records;  // with a loss that is not finite
};

// The rows of an item: what the shapes of its products depend on.
struct RowCounts {
  int64_t tokens = 0;     // its bucket
  int64_t head_rows = 0;  // NumericPlan::HeadRows of its supervised rows
  bool train = true;
  bool operator<(const RowCounts& o) const {
    return std::tie(tokens, head_rows, train) < std::tie(o.tokens, o.head_rows, o.train);
  }
};

class JobRun {
 public:
  // Errors: as Trainer::OpenJob, but for AlreadyExists.
  static absl::StatusOr<std::unique_ptr<JobRun>> Open(Backend* backend, const ModelBase& base,
                                                      FileSystem* fs, JobSetup setup);

  // Before anything else: what decides bits beside the numeric plan, as text. Errors:
  // FailedPrecondition (the saved state was made under another plan).
  absl::Status Freeze(const std::string& algorithms);

  const JobSetup& setup() const { return setup_; }
  const std::string& id() const { return setup_.job_id; }
  const AdapterLayout& layout() const { return *layout_; }
  const JobOpened& opened() const { return opened_; }

  int64_t steps_total() const;
  std::vector<MicroBatch> StepMicroBatches(int64_t step) const;
  std::vector<MicroBatch> ValidationMicroBatches() const;
  // Supervised targets of all records of micro-batches.
  int64_t CountStepTargets(const std::vector<MicroBatch>& micro_batches, bool validation) const;
  double LearningRate(int64_t step) const;
  // Of every micro-batch of the run and the validation (of every bucket, when the run is too long
  // to be walked).
  std::set<RowCounts> EveryRowCounts() const;

  // The job as the memory plan sees it, with the items of a request. Errors: FailedPrecondition
  // (not the next step or micro-batch), InvalidArgument (a range outside the step).
  absl::StatusOr<PassJob> MakePassJob(const WorkRequest& request) const;
  // The adapter as the layer sees it, at these device addresses.
  LoraOnDevice OnDevice(const DeviceState& device) const;

  // Commits host() to the mirror; nothing when the job has none. Errors: those of files.
  absl::Status Commit(const StepStats& stats);
  bool has_mirror() const { return mirror_ != nullptr; }
  absl::StatusOr<std::string> SaveCheckpoint();
  absl::Status Export(const std::string& dir, const std::string& base_model_name) const;
  absl::Status RemoveMirror();

  HostState& host() { return host_; }
  const HostState& host() const { return host_; }
  int64_t steps_done() const { return steps_done_; }
  int64_t optimizer_steps() const { return optimizer_steps_; }
  // After a step: applied or skipped.
  void FinishStep(bool applied);
  StepProgress& progress(bool score) { return score ? validation_ : step_; }
  const StepProgress& progress(bool score) const { return score ? validation_ : step_; }

 private:
  JobRun() = default;
  absl::Status Check(const ModelBase& base) const;
  absl::Status MakeSchedules();
  absl::Status FindState(FileSystem* fs);
  void TakeState(const AdapterState& state);
  absl::StatusOr<std::vector<float>> InitialWeights() const;
  AdapterStateView StateView(absl::string_view stats) const;

  JobSetup setup_;
  FileSystem* fs_ = nullptr;
  std::unique_ptr<AdapterLayout> layout_;
  std::optional<BatchSchedule> train_schedule_;
  std::optional<BatchSchedule> validation_schedule_;
  LrSchedule rates_;
  std::unique_ptr<Mirror> mirror_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  uint64_t plan_hash_ = 0;
  std::optional<uint64_t> saved_plan_hash_;
  HostState host_;
  int64_t steps_done_ = 0;
  int64_t optimizer_steps_ = 0;
  int64_t skipped_ = 0;
  std::string last_stats_;
  StepProgress step_;
  StepProgress validation_;
  JobOpened opened_;
};

// "step 7 was not applied: ..., records 3, 9".
std::string SkippedWarning(const StepStats& stats);
// "validation after step 7: ...". `records`: those with a loss that is not finite, from 0.
std::string ValidationWarning(int64_t step, const std::vector<int32_t>& records);

// StepStats as the bytes that a mirror and a checkpoint carry, and back. NaN stays NaN.
std::string EncodeStepStats(const StepStats& stats);
std::optional<StepStats> DecodeStepStats(const std::string& job_id, absl::string_view bytes);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_JOB_RUN_H_
