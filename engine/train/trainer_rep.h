// The inside of Trainer, shared by its source files: trainer.cc (jobs), trainer_passes.cc,
// trainer_steps.cc, trainer_logits.cc.
#ifndef SOUP_ENGINE_TRAIN_TRAINER_REP_H_
#define SOUP_ENGINE_TRAIN_TRAINER_REP_H_

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/device_memory.h"
#include "engine/train/job_run.h"
#include "engine/train/pass.h"
#include "engine/train/trainer.h"

namespace soup::engine {

// One job's share of the pass under way.
struct PassShare {
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
struct PassTimes {
  double seconds = 0;
  double stall_seconds = 0;
  int64_t copy_bytes = 0;
  double copy_seconds = 0;
};

struct Trainer::Rep {
  Rep(Backend* backend, ModelBase model_base, TrainerOptions trainer_options)
      : backend(backend),
        base(std::move(model_base)),
        options(trainer_options),
        memory(backend, &base) {
    for (const absl::Span<const std::byte>& slab : base.slabs) {
      backend->RegisterHostMemory(slab.data(), static_cast<int64_t>(slab.size()));
    }
  }
  ~Rep() {
    memory.Release();  // nothing reads the slabs any more
    backend->UnregisterHostMemory();
  }

  absl::StatusOr<JobRun*> Find(const std::string& id) const;
  // trainer_gemms.cc. The products of a job that is not among `jobs`, by a pass on a backend that
  // runs nothing; and their preparation on the real one.
  absl::StatusOr<GemmPreparation> PrepareGemms(std::unique_ptr<JobRun>& job,
                                               const std::set<RowCounts>& counts);
  absl::StatusOr<GemmPreparation> PrepareOnDevice(absl::Span<const kernels::GemmArgs> products);
  // trainer_attention.cc
  absl::Status PrepareAttention(const JobSetup& setup);
  absl::StatusOr<PassShare> MakeShare(const WorkRequest& request) const;
  absl::Status FillShare(PassShare& share) const;
  absl::StatusOr<std::vector<PassShare>> MakeShares(const PassRequest& request, PassResult& result);
  std::map<std::string, HostState*> HostStates() const;
  PassEnv Env();
  // The device part of a pass: memory, items, plan = device.
  absl::Status RunShares(const std::vector<PassShare>& shares, const Placement& placement,
                         const LogitsHook& hook, std::vector<PassItemState>& items,
                         PassResult& result);
  std::vector<PassItemState> MakeItems(const std::vector<PassShare>& shares,
                                       const std::vector<LoraOnDevice>& adapters) const;
  absl::Status FinishShares(const std::vector<PassShare>& shares,
                            const std::vector<PassItemState>& items, int64_t start_ns,
                            const BackendCounters& before, PassResult& result);
  absl::Status FinishStep(const PassShare& share, StepStats& stats);
  absl::Status Update(const PassShare& share, StepStats& stats);
  void FinishValidation(const PassShare& share, PassResult& result);
  PassTimes Since(int64_t start_ns, const BackendCounters& before) const;

  Backend* backend;
  ModelBase base;
  TrainerOptions options;
  DeviceMemory memory;
  std::map<std::string, std::unique_ptr<JobRun>> jobs;
  // Of the pass under way, where moments live in host memory: what they move through. Empty
  // otherwise.
  ArenaBuffer moment_chunks;
  std::atomic<int64_t> progress{0};
  bool broken = false;  // a pass has failed: states on the device are not to be trusted
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_TRAINER_REP_H_
