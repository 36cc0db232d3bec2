// The plan of a job: the numeric plan (decides bits, frozen before step 0) and the placement plan
// (must not), with the exact memory and the predicted time of a pass, before anything is allocated.
// Pure functions; any thread.
#ifndef SOUP_ENGINE_PLAN_JOB_PLAN_H_
#define SOUP_ENGINE_PLAN_JOB_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/attention_library.h"
#include "engine/base/dtype.h"
#include "engine/base/machine_profile.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"
#include "engine/plan/arena_layout.h"
#include "engine/plan/batch_schedule.h"
#include "engine/plan/placement.h"
#include "engine/plan/precision.h"

namespace soup::engine {

struct LoraShape {
  int32_t r = 0;
  bool dropout = false;         // needs a scratch for the masked input
  std::vector<Module> targets;  // sorted, unique, not empty
};

AttentionWidths AttentionWidthsOf(const ModelSpec& model);
// Width of a linear's input and output, and the elements of a whole adapter (all A and B).
int64_t ModuleInput(const ModelSpec& model, Module module);
int64_t ModuleOutput(const ModelSpec& model, Module module);
int64_t AdapterElements(const ModelSpec& model, const LoraShape& lora);
// Columns of the widest x A^T that is made at once: r for each adapted linear of a group.
int64_t LowRankWidth(const LoraShape& lora);

// Whether the adapters of q, k, v are added and turned in one pass over a product in act
// (LoraUpRope); else the product is fp32 and QkvFinish makes them whole: where an adapter's rank or
// heads are none of that kernel's, where heads are normed or have biases, where only a part of a
// head turns, and where nothing of q, k, v is adapted. Decides bits.
bool AdaptersTurn(const ModelSpec& model, const LoraShape& lora);

// All of a job that decides its numeric plan.
struct JobShape {
  ModelSpec model;
  BaseFormat format = BaseFormat::kBf16;
  LoraShape lora;
  std::vector<int32_t> lengths;             // tokens of each training record
  std::vector<int32_t> validation_lengths;  // empty: no validation
  BatchParams batch;                        // micro_batch_tokens is chosen by MakeNumericPlan
  int32_t max_length = 0;
  Precision precision = Precision::kAuto;  // of activations
};

// Frozen into the job's record. Equal text = equal bits on one machine.
struct NumericPlan {
  int32_t version = 0;
  std::string backend;              // cpu | cuda
  int64_t micro_batch_tokens = 0;   // capacity of a packed micro-batch
  int32_t order_tile = 0;           // of the shuffle window (batch_schedule.h)
  std::vector<int64_t> buckets;     // token counts that a work item is rounded up to, ascending
  int64_t head_slice_rows = 0;      // vocabulary rows a head slice
  int64_t max_supervised_rows = 0;  // rows of the loss buffers: the largest bucket
  std::string blas_core;            // of the CPU backend; bits do not depend on its threads
  AttentionShare attention;  // cuda: what an attention library takes; empty: our own kernels all
  bool f32_activations = false;  // cuda: activations are fp32 instead of bf16 (precision.h)

  int64_t BucketFor(int64_t tokens) const;  // the smallest bucket >= tokens; 0 when none
  // Rows of the head's products for so many supervised rows: a bucket, at most the item's own.
  int64_t HeadRows(int64_t supervised) const { return supervised == 0 ? 0 : BucketFor(supervised); }
  // What kernels/ops.h calls act and wt; of a pass: all its jobs'.
  DType activation_type() const {
    return backend == "cuda" && !f32_activations ? DType::kBF16 : DType::kF32;
  }
  Precision precision() const {  // that was chosen: never kAuto
    return activation_type() == DType::kBF16 ? Precision::kBf16 : Precision::kFp32;
  }
  int64_t act_bytes() const { return DTypeBytes(activation_type()); }
  int64_t wt_bytes() const { return backend == "cuda" ? 2 : 4; }
  std::string ToText() const;  // JSON, one line, keys sorted
  static absl::StatusOr<NumericPlan> FromText(absl::string_view text);
};

// Why this machine would not give a job the bits that it has been planned for: "it was planned for
// …, and this machine has …". Empty: it would.
std::string OtherMachine(const NumericPlan& plan, const MachineProfile& profile);

// Errors: InvalidArgument (a record longer than the model's positions, no records, a precision that
// the backend has not or that the adapter's rank is too large for).
absl::StatusOr<NumericPlan> MakeNumericPlan(const JobShape& shape, const MachineProfile& profile);

// Fills in what packing depends on, micro_batch_tokens, order_tile and buckets, from the lengths
// and plan->backend alone (MakeNumericPlan does so too).
void SetBuckets(const JobShape& shape, NumericPlan* plan);

// One work item as the memory plan sees it: a micro-batch of one job.
struct PassItem {
  int64_t tokens = 0;     // its bucket (NumericPlan::BucketFor of the micro-batch's tokens)
  int32_t sequences = 0;  // records packed in it
  bool train = true;      // false: score, no gradient
};

// One job's share of a pass. A job stands in a pass once.
struct PassJob {
  std::string job_id;
  LoraShape lora;
  NumericPlan numeric;
  std::vector<PassItem> items;  // in micro-batch order
};

// The micro-batches of a job: training steps, and validation (one "step" of all validation records
// in file order; an empty schedule cannot be made: call only when there are such records).
absl::StatusOr<BatchSchedule> MakeTrainSchedule(const JobShape& shape, const NumericPlan& plan);
absl::StatusOr<BatchSchedule> MakeValidationSchedule(const JobShape& shape,
                                                     const NumericPlan& plan);
// Micro-batches [first, first + count) of a step as pass items; `count` < 0: to the end. Soupd and
// the worker both make a pass's items by this function, so their memory plans are equal.
// Errors: InvalidArgument (a range outside the step, a micro-batch longer than every bucket).
absl::StatusOr<std::vector<PassItem>> MakePassItems(const std::vector<MicroBatch>& step,
                                                    const NumericPlan& plan, int32_t first,
                                                    int32_t count, bool train);

// Bytes of a card that map pinned host memory: its page tables, 8 bytes for each page of 4 KiB, on
// huge pages too (as measured: docs/BENCHMARKS.md). Neither arena nor overhead: they come and go
// with what is pinned, which is counted in pages of 2 MiB.
int64_t PinnedTableBytes(int64_t pinned_bytes);
// Host memory that a worker pins for jobs of one base whatever their placement: the base, and each
// job's weights, gradients and moments in fp32.
int64_t PinnedByJobs(const ModelSpec& model, BaseFormat format,
                     const std::vector<LoraShape>& adapters);

struct MemoryPlan {
  Placement placement;
  ArenaLayout arena;             // every buffer of the pass by name
  int64_t persistent_bytes = 0;  // the part from offset 0 that does not depend on the items: slots,
                                 // resident head, adapters' states
  ArenaLayout host;  // what the pass keeps in pinned host memory, by the names of its buffers
  int64_t table_bytes = 0;  // PinnedTableBytes of `host`, on a card
  int64_t arena_bytes() const { return arena.bytes; }
  int64_t device_bytes() const { return arena.bytes + table_bytes; }
  int64_t host_bytes() const { return host.bytes; }
};

// The exact arena of one pass. Deterministic; grows monotonically with tokens, items, rank, slots
// and resident layers.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& model, BaseFormat format,
                                      const std::vector<PassJob>& jobs, const Placement& placement);

// Rates that the profile has not measured (0) count as low ones. Tokens count as if all were
// supervised.
struct Forecast {
  double step_seconds = 0;   // the pass and one update
  double copy_seconds = 0;   // in which slabs and head slices move
  double stall_seconds = 0;  // in which compute waits for any copy
  int64_t copy_bytes = 0;
  int64_t offload_bytes = 0;  // to host memory and back, both ways
  double tokens_per_second = 0;
};
absl::StatusOr<Forecast> ForecastPass(const ModelSpec& model, BaseFormat format,
                                      const std::vector<PassJob>& jobs, const Placement& placement,
                                      const MachineProfile& profile);

// What a pass may take. Device bytes: the arena, and the page tables of what it keeps in pinned
// host memory. Host bytes: beside the base, in pinned memory; nothing is kept there on the CPU
// backend, where the arena is host memory itself.
struct PlacementLimits {
  int64_t device_bytes = 0;
  int64_t host_bytes = INT64_MAX;
};

// The placement with the shortest predicted pass that keeps within the limits. Errors:
// ResourceExhausted, with the least budget that would do (MinimumArenaBytes).
//
// The search: what the layers keep is tried on a grid of layer counts for each class and home; what
// then is left of the budget goes to slots, all in the ring or all but a ring of two or three
// resident, with the head and the moments on the device or not; the best is refined layer by layer.
// Sizes in the search are the least that any layout could need (ArenaLowerBound); the winner is
// laid out exactly, and gives way layer by layer when its layout is larger than that.
absl::StatusOr<MemoryPlan> ChoosePlacement(const ModelSpec& model, BaseFormat format,
                                           const std::vector<PassJob>& jobs,
                                           const PlacementLimits& limits,
                                           const MachineProfile& profile);
absl::StatusOr<MemoryPlan> ChoosePlacement(const ModelSpec& model, BaseFormat format,
                                           const std::vector<PassJob>& jobs, int64_t budget_bytes,
                                           const MachineProfile& profile);
// The least device bytes, as in PlacementLimits.
absl::StatusOr<int64_t> MinimumArenaBytes(const ModelSpec& model, BaseFormat format,
                                          const std::vector<PassJob>& jobs);

// The passes of a run differ in size. All must fit, for which `largest` stands; what is fast is
// told by some of them as they come: all passes of `steps` steps.
struct RunPasses {
  std::vector<PassJob> largest;
  std::vector<std::vector<PassJob>> sampled;
  int64_t steps = 1;
};
struct RunPlan {
  MemoryPlan largest;  // its arena is held throughout; its placement is every pass's least
  Forecast step;       // a step of those sampled, mean
};
// A placement for a whole run: weights and optimizer state where they stay throughout, and the
// least that a pass keeps. Tried: the largest pass's own choice (ChoosePlacement), and the weights
// as passes of middling sizes would have them, under which the largest keeps less; the shortest
// mean step wins, each pass keeping what its size allows (KeepMore). Errors: as ChoosePlacement;
// InvalidArgument (no pass is sampled).
absl::StatusOr<RunPlan> ChoosePlacementForRun(const ModelSpec& model, BaseFormat format,
                                              const RunPasses& run, const PlacementLimits& limits,
                                              const MachineProfile& profile);

// The least budget, to about 1 % of it, under which a step gets shorter by at least 1 % than
// under `limits`. nullopt: no budget does that. Errors: as ChoosePlacement.
struct NextBudget {
  int64_t device_bytes = 0;
  double step_seconds = 0;
};
absl::StatusOr<std::optional<NextBudget>> NextUsefulBudget(const ModelSpec& model,
                                                           BaseFormat format, const RunPasses& run,
                                                           const PlacementLimits& limits,
                                                           const MachineProfile& profile);

// The plan of a pass under a run's placement, with as many more layers keeping what they can on the
// device as `arena_bytes` have room for, mlp before attention (it saves more time a byte). Weights
// and states lie where they did, and host memory takes no more than before. What the placement
// itself needs may be more than `arena_bytes`: then nothing is added. Errors: as PlanMemory.
absl::StatusOr<MemoryPlan> KeepMore(const ModelSpec& model, BaseFormat format,
                                    const std::vector<PassJob>& jobs, const Placement& placement,
                                    int64_t arena_bytes);

// A pass at least as large as any that this job alone makes with `micro_batches_a_pass` items: that
// many micro-batches of the largest bucket (train and validation looked at). The job fits a budget
// when this pass with one item fits: a step's micro-batches may be run in several passes.
PassJob LargestPass(const std::string& job_id, const JobShape& shape, const NumericPlan& plan,
                    int32_t micro_batches_a_pass);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_JOB_PLAN_H_
