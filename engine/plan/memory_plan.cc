// The exact memory of a pass: every buffer with its lifetime, laid out by LayOutArena. Lifetimes
// are nested, for which the layout reaches the lower bound (the most bytes live in one op); that is
// what makes the plan grow monotonically with tokens, items, rank, slots and resident layers.
#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

constexpr int64_t kF32Bytes = 4;
constexpr int64_t kI32Bytes = 4;
constexpr int64_t kBf16Bytes = 2;
constexpr int kHeadSliceBuffers = 2;

// Bytes of an activation and of a GEMM's weight operand (kernels/ops.h).
struct ElementBytes {
  int64_t act = 4;
  int64_t wt = 4;
};

// Widths and largest sizes that the shared buffers are made for.
struct Largest {
  int64_t tokens = 0;         // of all items
  int64_t train_tokens = 0;   // of the train items
  int64_t unkept_tokens = 0;  // of items that keep nothing: score, or retention recompute
  int64_t rank = 0;           // of all jobs with an item
  int64_t unkept_rank = 0;    // of jobs with an item that keeps nothing
  int64_t train_rank = 0;     // of jobs with a train item
  int64_t dropped = 0;        // elements of the masked input: tokens * widest target input
  int64_t train_dropped = 0;  // the same for the backward
  int64_t down_tokens = 0;    // of train items whose job adapts down_proj
  int64_t head_slice_rows = 0;
};

int64_t GroupElements(const ModelSpec& model) {
  int64_t most = 0;
  for (int g = 0; g < kGroups; ++g) {
    const GroupShape shape = MakeGroupShape(model, static_cast<Group>(g));
    most = std::max(most, shape.rows * shape.cols);
  }
  return most;
}

int64_t WidestInput(const ModelSpec& model, const LoraShape& lora) {
  int64_t widest = 0;
  for (Module m : lora.targets) widest = std::max(widest, ModuleInput(model, m));
  return widest;
}

bool Targets(const LoraShape& lora, Module module) {
  return std::find(lora.targets.begin(), lora.targets.end(), module) != lora.targets.end();
}

bool KeepsAll(const Placement& p) { return p.attention.device > 0; }

class Planner {
 public:
  Planner(const ModelSpec& model, BaseFormat format, const Placement& placement,
          const ElementBytes& element)
      : model_(model), format_(format), placement_(placement), element_(element) {}

  MemoryPlan Plan(const std::vector<PassJob>& jobs) {
    for (const PassJob& job : jobs) Look(job);
    RequestBase();
    for (const PassJob& job : jobs) RequestJob(job);
    MemoryPlan plan;
    for (const BufferRequest& r : requests_) plan.persistent_bytes += ArenaRoundUp(r.bytes);
    int64_t index = 0;
    for (const PassJob& job : jobs) {
      for (const PassItem& item : job.items) RequestItem(job, item, index++);
    }
    RequestForward();
    RequestLoss();
    if (largest_.train_tokens > 0) RequestBackward();
    plan.arena = LayOutArena(requests_);
    return plan;
  }

 private:
  void Add(std::string name, const char* what, int64_t bytes, PassOp first, PassOp last) {
    requests_.push_back({std::move(name), what, bytes, first, last});
  }
  void AddWhole(std::string name, const char* what, int64_t bytes) {
    Add(std::move(name), what, bytes, kPassBegin, kPassUpdate);
  }
  bool Keeps(const PassItem& item) const { return item.train && KeepsAll(placement_); }

  void Look(const PassJob& job) {
    const int64_t widest = job.lora.dropout ? WidestInput(model_, job.lora) : 0;
    largest_.head_slice_rows = std::max(largest_.head_slice_rows, job.numeric.head_slice_rows);
    for (const PassItem& item : job.items) {
      const int64_t t = item.tokens;
      largest_.tokens = std::max(largest_.tokens, t);
      largest_.rank = std::max<int64_t>(largest_.rank, job.lora.r);
      if (!Keeps(item)) {
        largest_.unkept_tokens = std::max(largest_.unkept_tokens, t);
        largest_.unkept_rank = std::max<int64_t>(largest_.unkept_rank, job.lora.r);
      }
      if (!item.train) continue;  // score items see the adapter without dropout
      largest_.dropped = std::max(largest_.dropped, t * widest);
      largest_.train_tokens = std::max(largest_.train_tokens, t);
      largest_.train_rank = std::max<int64_t>(largest_.train_rank, job.lora.r);
      if (Targets(job.lora, Module::kDown)) {
        largest_.down_tokens = std::max(largest_.down_tokens, t);
      }
    }
  }

  void RequestBase() {
    const LayerLayout layer = MakeLayerLayout(model_, format_);
    for (int i = 0; i < placement_.slots; ++i) AddWhole(SlotBuffer(i), "slots", layer.bytes);
    if (placement_.head_resident) {
      AddWhole(kHeadResidentBuffer, "head", model_.vocab * model_.hidden * kBf16Bytes);
    } else {
      for (int i = 0; i < kHeadSliceBuffers; ++i) {
        AddWhole(HeadSliceBuffer(i), "head", largest_.head_slice_rows * model_.hidden * kBf16Bytes);
      }
    }
    AddWhole(kFinalNormBuffer, "globals", model_.hidden * kBf16Bytes);
    AddWhole(kInverseFrequencyBuffer, "globals", model_.head_dim / 2 * kF32Bytes);
    AddWhole(kSumSquaresBuffer, "globals", sizeof(double));
  }

  void RequestJob(const PassJob& job) {
    const int64_t bytes = AdapterElements(model_, job.lora) * kF32Bytes;
    const bool train = std::any_of(job.items.begin(), job.items.end(),
                                   [](const PassItem& item) { return item.train; });
    AddWhole(JobBuffer(job.job_id, kJobWeights), "adapter", bytes);
    if (element_.wt == kBf16Bytes) {
      AddWhole(JobBuffer(job.job_id, kJobOperand), "adapter", bytes / kF32Bytes * kBf16Bytes);
    }
    if (!train) return;
    AddWhole(JobBuffer(job.job_id, kJobGradients), "gradients", bytes);
    AddWhole(JobBuffer(job.job_id, kJobFirstMoment), "optimizer", bytes);
    AddWhole(JobBuffer(job.job_id, kJobSecondMoment), "optimizer", bytes);
  }

  void RequestItem(const PassJob& job, const PassItem& item, int64_t i) {
    const int64_t t = item.tokens, h = model_.hidden, layers = model_.layers;
    const int64_t nq = model_.qkv_width(), q = model_.q_width();
    const int64_t low_rank = static_cast<int64_t>(job.lora.targets.size()) * t * job.lora.r;
    const int64_t act = element_.act;
    const bool keeps = Keeps(item);
    AddWhole(ItemBuffer(i, kItemIndex), "items", ItemIndexInts(t, item.sequences) * kI32Bytes);
    AddWhole(ItemBuffer(i, kItemBoundaries), "boundaries",
             (item.train ? layers + 1 : 2) * t * h * act);
    const int64_t inner = model_.intermediate;
    if (keeps) {
      const char* what = "retained activations";
      AddWhole(ItemBuffer(i, kKeptQkv), what, layers * t * nq * act);
      AddWhole(ItemBuffer(i, kKeptAttention), what, layers * t * q * act);
      AddWhole(ItemBuffer(i, kKeptLse), what, layers * t * model_.heads * kF32Bytes);
      AddWhole(ItemBuffer(i, kKeptMiddle), what, layers * t * h * act);
      AddWhole(ItemBuffer(i, kKeptGateUp), what, layers * t * 2 * inner * act);
      AddWhole(ItemBuffer(i, kKeptLowRank), what, layers * low_rank * act);
    }
    Add(ItemBuffer(i, kItemWork), "forward", t * (keeps ? inner : std::max(q, inner)) * act,
        kForwardQkv, kForwardDown);
    Add(ItemBuffer(i, kItemHeadHidden), "loss", t * h * act, kLossBegin, kLossFinish);
    Add(ItemBuffer(i, kItemHeadStats), "loss", 5 * t * kF32Bytes, kLossBegin, kLossFinish);
    if (!item.train) return;
    Add(ItemBuffer(i, kItemHeadGrad), "loss", t * h * kF32Bytes, kLossBegin, kLossFinish);
    Add(ItemBuffer(i, kItemTargetRow), "loss", t * h * element_.wt, kLossBegin, kLossFinish);
    // From kLossBegin, though written in kLossFinish: lifetimes stay nested.
    Add(ItemBuffer(i, kItemGrad), "backward", t * h * act, kLossBegin, kBackwardQkv);
    Add(ItemBuffer(i, kItemBackWork), "backward", t * std::max(q, inner) * act, kRecomputeQkv,
        kBackwardQkv);
    if (keeps) return;
    const char* what = "recomputed activations";
    Add(ItemBuffer(i, kAgainQkv), what, t * nq * act, kRecomputeQkv, kBackwardQkv);
    Add(ItemBuffer(i, kAgainAttention), what, t * q * act, kRecomputeQkv, kBackwardQkv);
    Add(ItemBuffer(i, kAgainLse), what, t * model_.heads * kF32Bytes, kRecomputeQkv, kBackwardQkv);
    Add(ItemBuffer(i, kAgainMiddle), what, t * h * act, kRecomputeQkv, kBackwardQkv);
    Add(ItemBuffer(i, kAgainLowRank), what, low_rank * act, kRecomputeQkv, kBackwardQkv);
  }

  void RequestForward() {
    // bf16 weights are used in place where that is the operand's type.
    const bool in_place = format_ == BaseFormat::kBf16 && element_.wt == kBf16Bytes;
    const int64_t head_slice =
        element_.wt == kBf16Bytes ? 0 : largest_.head_slice_rows * model_.hidden;
    const int64_t scratch = std::max(in_place ? 0 : GroupElements(model_), head_slice);
    Add(kWeightScratch, "weight scratch", scratch * element_.wt, kForwardQkv, kBackwardQkv);
    const int64_t act = element_.act, t = largest_.tokens, u = largest_.unkept_tokens;
    Add(kForwardHidden, "forward", t * model_.hidden * act, kForwardQkv, kForwardDown);
    Add(kForwardRstd, "forward", t * kF32Bytes, kForwardQkv, kForwardDown);
    Add(kForwardDropped, "forward", largest_.dropped * act, kForwardQkv, kForwardDown);
    Add(kForwardLowRank, "forward", u * largest_.unkept_rank * act, kForwardQkv, kForwardDown);
    Add(kForwardQkvOut, "forward", u * model_.qkv_width() * act, kForwardQkv, kForwardQkv);
    Add(kForwardLse, "forward", u * model_.heads * kF32Bytes, kForwardQkv, kForwardQkv);
    Add(kForwardGateUpOut, "forward", u * 2 * model_.intermediate * act, kForwardGateUp,
        kForwardGateUp);
  }

  void RequestLoss() {
    const int64_t t = largest_.tokens;
    Add(kLossGathered, "loss", t * model_.hidden * element_.act, kLossBegin, kLossFinish);
    Add(kLossLogits, "loss", t * largest_.head_slice_rows * kF32Bytes, kLossSlices, kLossSlices);
  }

  void RequestBackward() {
    const int64_t act = element_.act, t = largest_.train_tokens;
    const int64_t again = KeepsAll(placement_) ? 0 : t;
    const auto add = [&](const char* name, int64_t bytes) {
      Add(name, "backward", bytes, kRecomputeQkv, kBackwardQkv);
    };
    add(kBackwardHidden, t * model_.hidden * act);
    add(kBackwardRstd, t * kF32Bytes);
    add(kBackwardDHidden, t * model_.hidden * act);
    add(kBackwardDLowRank, t * largest_.train_rank * act);
    add(kBackwardDropped, largest_.dropped * act);
    add(kBackwardDDropped, largest_.dropped * act);
    const int64_t inner = model_.intermediate;
    Add(kBackwardGateUpIn, "backward", again * 2 * inner * act, kBackwardGateUp, kBackwardGateUp);
    Add(kBackwardAct, "backward", largest_.down_tokens * inner * act, kBackwardGateUp,
        kBackwardGateUp);
    Add(kBackwardDQkv, "backward", t * model_.qkv_width() * act, kBackwardQkv, kBackwardQkv);
    Add(kBackwardDelta, "backward", t * model_.heads * kF32Bytes, kBackwardQkv, kBackwardQkv);
    if (element_.act != kBf16Bytes) return;
    Add(kBackwardPartials, "backward",
        AttentionPartialsPlanned(t, model_.heads, model_.kv_heads, model_.head_dim), kBackwardQkv,
        kBackwardQkv);
  }

  const ModelSpec& model_;
  const BaseFormat format_;
  const Placement placement_;
  const ElementBytes element_;
  Largest largest_;
  std::vector<BufferRequest> requests_;
};

absl::Status CheckPlacement(const ModelSpec& model, const Placement& placement) {
  const int64_t layers = model.layers;
  if (placement.slots < std::min<int64_t>(2, layers) || placement.slots > layers) {
    return absl::InvalidArgumentError(absl::StrCat("placement: ", placement.slots,
                                                   " slots; this model of ", layers,
                                                   " layers takes 2 to ", layers));
  }
  const bool all = placement.slots == layers;
  if (placement.resident_layers < 0 || placement.resident_layers > placement.slots ||
      (!all && placement.slots - placement.resident_layers < 2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "placement: ", placement.resident_layers, " resident layers in ", placement.slots,
        " slots; two slots must stay free for the others unless all layers fit"));
  }
  return absl::OkStatus();
}

absl::Status CheckJobs(const std::vector<PassJob>& jobs) {
  if (jobs.empty()) return absl::InvalidArgumentError("a pass needs at least one job");
  std::set<std::string> ids;
  for (const PassJob& job : jobs) {
    if (!ids.insert(job.job_id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("job ", job.job_id, " stands in a pass twice"));
    }
    if (job.items.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("job ", job.job_id, " has no work item"));
    }
    if (job.numeric.backend != "cpu" && job.numeric.backend != "cuda") {
      return absl::UnimplementedError(absl::StrCat("job ", job.job_id, ": backend \"",
                                                   job.numeric.backend,
                                                   "\" has no memory plan; supported: cpu, cuda"));
    }
    if (job.numeric.backend != jobs.front().numeric.backend) {
      return absl::InvalidArgumentError(
          absl::StrCat("jobs ", jobs.front().job_id, " and ", job.job_id,
                       " were planned for different backends and cannot share a pass"));
    }
    if (job.numeric.head_slice_rows != jobs.front().numeric.head_slice_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("jobs ", jobs.front().job_id, " and ", job.job_id,
                       " have numeric plans with different head slices and cannot share a pass"));
    }
    for (const PassItem& item : job.items) {
      if (item.tokens <= 0 || item.sequences <= 0) {
        return absl::InvalidArgumentError(absl::StrCat("job ", job.job_id, ": an item of ",
                                                       item.tokens, " tokens in ", item.sequences,
                                                       " sequences"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ModuleInput(const ModelSpec& model, Module module) {
  switch (module) {
    case Module::kQ:
    case Module::kK:
    case Module::kV:
    case Module::kGate:
    case Module::kUp:
      return model.hidden;
    case Module::kO:
      return model.q_width();
    case Module::kDown:
      return model.intermediate;
  }
  return 0;
}

int64_t ModuleOutput(const ModelSpec& model, Module module) {
  switch (module) {
    case Module::kQ:
      return model.q_width();
    case Module::kK:
    case Module::kV:
      return model.kv_width();
    case Module::kO:
    case Module::kDown:
      return model.hidden;
    case Module::kGate:
    case Module::kUp:
      return model.intermediate;
  }
  return 0;
}

int64_t AdapterElements(const ModelSpec& model, const LoraShape& lora) {
  int64_t n = 0;
  for (Module m : lora.targets) n += lora.r * (ModuleInput(model, m) + ModuleOutput(model, m));
  return n * model.layers;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& model, BaseFormat format,
                                      const std::vector<PassJob>& jobs, const Placement& wanted) {
  const Placement placement = NormalPlacement(wanted, model.layers);
  const std::string retention = RetentionText(wanted);
  if (retention != "keep" && retention != "recompute") {
    return absl::UnimplementedError(absl::StrCat("placement: retention \"", retention,
                                                 "\" is not supported; use keep or recompute"));
  }
  if (absl::Status s = CheckPlacement(model, placement); !s.ok()) return s;
  if (absl::Status s = CheckJobs(jobs); !s.ok()) return s;
  ElementBytes element;
  if (jobs.front().numeric.backend == "cuda") element = {kBf16Bytes, kBf16Bytes};
  MemoryPlan plan = Planner(model, format, placement, element).Plan(jobs);
  plan.placement = wanted;
  return plan;
}

}  // namespace soup::engine
