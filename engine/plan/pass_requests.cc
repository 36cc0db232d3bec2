// Every buffer of a pass with its lifetime. Lifetimes are nearly nested, for which the layout
// reaches the lower bound (the most bytes live in one op); that is what makes the plan grow
// monotonically with tokens, items, rank, slots and resident layers.
#include "engine/plan/pass_requests.h"

#include <algorithm>
#include <utility>

#include "engine/model/rope_table.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

constexpr int64_t kF32Bytes = 4;
constexpr int64_t kI32Bytes = 4;
constexpr int64_t kBf16Bytes = 2;

// Bytes of an activation and of a GEMM's weight operand (kernels/ops.h).
struct ElementBytes {
  int64_t act = 4;
  int64_t wt = 4;
};

// Largest sizes that the shared buffers of all bands are made for.
struct Largest {
  int64_t tokens = 0;        // of all items
  int64_t score_tokens = 0;  // of the score items: they keep nothing
  int64_t train_tokens = 0;  // of the train items
  int64_t score_rank = 0;    // of jobs with a score item
  int64_t train_rank = 0;    // of jobs with a train item
  int64_t dropped = 0;       // elements of the masked input: tokens * widest target input
  int64_t down_tokens = 0;   // of train items whose job adapts down_proj
  int64_t mlp_low_rank = 0;  // elements of x A^T of all MLP targets of a train item
  int64_t head_slice_rows = 0;
  int64_t attention_workspace = 0;  // bytes, of train items
  int64_t finish_tokens = 0;        // of the items whose q, k, v come from an fp32 product
  int64_t finish_train_tokens = 0;  // and of the train items among them
};

bool HasTrainItem(const PassJob& job) {
  return std::any_of(job.items.begin(), job.items.end(),
                     [](const PassItem& item) { return item.train; });
}

int64_t WidestInput(const ModelSpec& model, const LoraShape& lora) {
  int64_t widest = 0;
  for (Module m : lora.targets) widest = std::max(widest, ModuleInput(model, m));
  return widest;
}

bool Targets(const LoraShape& lora, Module module) {
  return std::find(lora.targets.begin(), lora.targets.end(), module) != lora.targets.end();
}

// Columns of the x A^T of a class.
int64_t ClassColumns(const LoraShape& lora, bool mlp) {
  const auto in_class = [mlp](Module m) { return IsMlpModule(m) == mlp; };
  return std::count_if(lora.targets.begin(), lora.targets.end(), in_class) * LowRankColumns(lora.r);
}

class Planner {
 public:
  Planner(const ModelSpec& model, BaseFormat format, const Placement& placement,
          const ElementBytes& element, bool named)
      : model_(model),
        format_(format),
        placement_(placement),
        element_(element),
        named_(named),
        bands_(LayerBands(placement, model.layers)),
        time_(static_cast<int32_t>(bands_.size())) {}

  void Request(const std::vector<PassJob>& jobs) {
    out_.device.reserve(256);
    for (const PassJob& job : jobs) Look(job);
    RequestBase();
    for (const PassJob& job : jobs) RequestJob(job);
    for (const BufferRequest& r : out_.device) out_.persistent_bytes += ArenaRoundUp(r.bytes);
    int64_t index = 0;
    for (const PassJob& job : jobs) {
      for (const PassItem& item : job.items) RequestItem(job, item, index++);
    }
    RequestWeight();
    for (int32_t b = 0; b < static_cast<int32_t>(bands_.size()); ++b) RequestForward(b);
    RequestLoss();
    if (largest_.train_tokens == 0) return;
    for (int32_t b = 0; b < static_cast<int32_t>(bands_.size()); ++b) RequestBackward(b);
    RequestUpdate(jobs);
  }

  PassRequests Take() { return std::move(out_); }

 private:
  // Names of an item's buffer, of one of its band, and of a shared one of a band.
  std::string Own(int64_t i, const char* what) const { return named_ ? ItemBuffer(i, what) : ""; }
  std::string OwnInBand(int64_t i, const char* what, int32_t b) const {
    return named_ ? ItemBuffer(i, InBand(what, b)) : "";
  }
  std::string SharedInBand(const char* what, int32_t b) const {
    return named_ ? InBand(what, b) : "";
  }
  void Add(std::string name, const char* what, int64_t bytes, int32_t first, int32_t last) {
    out_.device.push_back({std::move(name), what, bytes, first, last});
  }
  void AddWhole(std::string name, const char* what, int64_t bytes) {
    Add(std::move(name), what, bytes, time_.begin(), time_.update());
  }
  void AddForward(std::string name, const char* what, int64_t bytes, int32_t band) {
    Add(std::move(name), what, bytes, time_.Forward(band, kForwardQkv),
        time_.Forward(band, kForwardDown));
  }
  void AddBackward(std::string name, const char* what, int64_t bytes, int32_t band) {
    Add(std::move(name), what, bytes, time_.Backward(band, kRecomputeQkv),
        time_.Backward(band, kBackwardQkv));
  }
  void AddLoss(std::string name, int64_t bytes) {
    Add(std::move(name), "loss", bytes, time_.Loss(kLossBegin), time_.Loss(kLossFinish));
  }

  void Look(const PassJob& job) {
    const int64_t widest = job.lora.dropout ? WidestInput(model_, job.lora) : 0;
    const int64_t r = LowRankWidth(job.lora);
    const bool turns = AdaptersTurn(model_, job.lora);
    largest_.head_slice_rows = std::max(largest_.head_slice_rows, job.numeric.head_slice_rows);
    for (const PassItem& item : job.items) {
      const int64_t t = item.tokens;
      largest_.tokens = std::max(largest_.tokens, t);
      if (element_.act == kBf16Bytes && !turns) {
        largest_.finish_tokens = std::max(largest_.finish_tokens, t);
        if (item.train) largest_.finish_train_tokens = std::max(largest_.finish_train_tokens, t);
      }
      if (!item.train) {
        largest_.score_tokens = std::max(largest_.score_tokens, t);
        largest_.score_rank = std::max(largest_.score_rank, r);
        continue;  // score items see the adapter without dropout
      }
      largest_.dropped = std::max(largest_.dropped, t * widest);
      largest_.train_tokens = std::max(largest_.train_tokens, t);
      largest_.train_rank = std::max(largest_.train_rank, r);
      largest_.attention_workspace =
          std::max(largest_.attention_workspace,
                   AttentionWorkspaceBytes(t, AttentionWidthsOf(model_), job.numeric.attention));
      largest_.mlp_low_rank = std::max(largest_.mlp_low_rank, t * ClassColumns(job.lora, true));
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
      for (int i = 0; i < kHeadRingSlices + placement_.head_slices; ++i) {
        AddWhole(HeadSliceBuffer(i), "head", largest_.head_slice_rows * model_.hidden * kBf16Bytes);
      }
    }
    AddWhole(kFinalNormBuffer, "globals", model_.hidden * kBf16Bytes);
    AddWhole(kInverseFrequencyBuffer, "globals", RopeTableFloats(model_) * kF32Bytes);
    AddWhole(kSumSquaresBuffer, "globals", sizeof(double));
    AddWhole(kProductScratchBuffer, "product scratch",
             ProductScratchBytes(element_.act, element_.wt));
  }

  void RequestJob(const PassJob& job) {
    const int64_t bytes = AdapterElements(model_, job.lora) * kF32Bytes;
    AddWhole(JobBuffer(job.job_id, kJobWeights), "adapter", bytes);
    if (element_.act == kBf16Bytes) {
      AddWhole(JobBuffer(job.job_id, kJobOperand), "adapter", bytes / kF32Bytes * kBf16Bytes);
    }
    if (!HasTrainItem(job)) return;
    AddWhole(JobBuffer(job.job_id, kJobGradients), "gradients", bytes);
    if (placement_.optimizer_host) return;
    AddWhole(JobBuffer(job.job_id, kJobFirstMoment), "optimizer", bytes);
    AddWhole(JobBuffer(job.job_id, kJobSecondMoment), "optimizer", bytes);
  }

  void RequestItem(const PassJob& job, const PassItem& item, int64_t i) {
    const int64_t t = item.tokens, h = model_.hidden, act = element_.act, wt = element_.wt;
    AddWhole(Own(i, kItemIndex), "items", ItemIndexInts(t, item.sequences) * kI32Bytes);
    RequestBoundaries(item, i);
    if (item.train) {
      const int64_t attention =
          MakeAttentionBlock(model_, t, ClassColumns(job.lora, false), act).bytes;
      const int64_t mlp = MakeMlpBlock(model_, t, ClassColumns(job.lora, true), act, wt).bytes;
      RequestKept(i, kKeptAttention, kRingAttention, &LayerBand::attention, attention);
      RequestKept(i, kKeptMlp, kRingMlp, &LayerBand::mlp, mlp);
      RequestItemBackward(i, t, attention);
    }
    for (int32_t b = 0; b < static_cast<int32_t>(bands_.size()); ++b) {
      const bool kept = item.train && bands_[b].attention != Home::kRecompute;
      AddForward(OwnInBand(i, kItemWork, b), "forward", WorkElements(model_, t, !kept, wt) * act,
                 b);
      if (!kept && HasMiddleOfItsOwn(model_)) {
        AddForward(OwnInBand(i, kItemMiddle, b), "forward", t * h * act, b);
      }
      RequestExperts(i, t, b, item.train);
    }
    AddLoss(Own(i, kItemHeadHidden), t * h * act);
    AddLoss(Own(i, kItemHeadStats), 5 * t * kF32Bytes);
    if (!item.train) return;
    AddLoss(Own(i, kItemHeadGrad), t * h * kF32Bytes);
    AddLoss(Own(i, kItemTargetRow), t * h * element_.wt);
  }

  // What the experts of a band's sparse layers need of an item.
  void RequestExperts(int64_t i, int64_t t, int32_t b, bool train) {
    if (!model_.has_sparse_layers()) return;
    const int64_t act = element_.act, hidden = t * model_.hidden;
    const int64_t routing = MakeRoutingBlock(model_, t, act).bytes;
    const char* what = "experts";
    AddForward(OwnInBand(i, kForwardExpertHidden, b), what, hidden * act, b);
    AddForward(OwnInBand(i, kForwardExpertSum, b), what, hidden * kF32Bytes, b);
    AddForward(OwnInBand(i, kForwardRouting, b), what, routing, b);
    if (!train) return;
    AddBackward(OwnInBand(i, kBackwardExpertHidden, b), what, hidden * act, b);
    AddBackward(OwnInBand(i, kBackwardExpertSum, b), what, hidden * kF32Bytes, b);
    AddBackward(OwnInBand(i, kBackwardRouting, b), what, routing, b);
  }

  void RequestBoundaries(const PassItem& item, int64_t i) {
    const int64_t bytes = item.tokens * model_.hidden * model_.state_planes() * element_.act;
    const int64_t blocks = item.train ? model_.layers + 1 : 2;
    const int64_t on_device = item.train && placement_.boundaries_host
                                  ? std::min<int64_t>(blocks, kBoundarySlots)
                                  : blocks;
    AddWhole(Own(i, kItemBoundaries), "boundaries", on_device * ArenaRoundUp(bytes));
    AddHost(Own(i, kItemBoundaries), "boundaries", (blocks - on_device) * ArenaRoundUp(bytes));
  }

  void AddHost(std::string name, const char* what, int64_t bytes) {
    if (bytes > 0) out_.host.push_back({std::move(name), what, bytes, 0, 0});
  }

  // One class of what an item keeps, in blocks of `bytes`.
  void RequestKept(int64_t i, const char* kept, const char* ring, Home LayerBand::*home,
                   int64_t bytes) {
    const char* what = "retained activations";
    int64_t host_layers = 0;
    int32_t first_host_band = -1;
    for (int32_t b = 0; b < static_cast<int32_t>(bands_.size()); ++b) {
      if (bands_[b].*home == Home::kDevice) {
        Add(OwnInBand(i, kept, b), what, bands_[b].layers * bytes, time_.Forward(b, kForwardQkv),
            time_.Backward(b, kBackwardQkv));
      }
      if (bands_[b].*home != Home::kHost) continue;
      if (host_layers == 0) first_host_band = b;
      host_layers += bands_[b].layers;
    }
    if (host_layers == 0) return;
    const int64_t slots = std::min<int64_t>(host_layers, kKeptSlots);
    Add(Own(i, ring), what, slots * bytes, time_.Forward(first_host_band, kForwardQkv),
        time_.Backward(first_host_band, kBackwardQkv));
    AddHost(Own(i, ring), what, (host_layers - slots) * bytes);
  }

  void RequestItemBackward(int64_t i, int64_t t, int64_t attention_block) {
    const int64_t act = element_.act;
    // From kLossBegin, though written in kLossFinish: lifetimes stay nested.
    Add(Own(i, kItemGrad), "backward", t * model_.hidden * act, time_.Loss(kLossBegin),
        time_.Backward(0, kBackwardQkv));
    if (model_.post_norms) {
      Add(Own(i, kItemMlpOut), "backward", t * model_.hidden * act, time_.Loss(kLossBegin),
          time_.Backward(0, kBackwardQkv));
    }
    for (int32_t b = 0; b < static_cast<int32_t>(bands_.size()); ++b) {
      AddBackward(OwnInBand(i, kItemBackWork, b), "backward",
                  WorkElements(model_, t, true, element_.wt) * act, b);
      if (bands_[b].attention != Home::kRecompute) continue;
      AddBackward(OwnInBand(i, kAgainAttention, b), "recomputed activations", attention_block, b);
    }
  }

  void RequestWeight() {
    // bf16 weights are used in place where that is the operand's type.
    const bool in_place = format_ == BaseFormat::kBf16 && element_.wt == kBf16Bytes;
    const int64_t head_slice =
        element_.wt == kBf16Bytes ? 0 : largest_.head_slice_rows * model_.hidden;
    const int64_t scratch = std::max(in_place ? 0 : LargestGroupElements(model_), head_slice);
    Add(kWeightScratch, "weight scratch", scratch * element_.wt, time_.Forward(0, kForwardQkv),
        time_.Backward(0, kBackwardQkv));
  }

  // Tokens and rank of the largest items that keep nothing of a class.
  int64_t UnkeptTokens(Home home) const {
    return home == Home::kRecompute ? largest_.tokens : largest_.score_tokens;
  }

  void RequestForward(int32_t b) {
    const LayerBand& band = bands_[b];
    const int64_t act = element_.act, t = largest_.tokens;
    const int64_t attention = UnkeptTokens(band.attention), mlp = UnkeptTokens(band.mlp);
    const bool all_kept = band.attention != Home::kRecompute && band.mlp != Home::kRecompute;
    const int64_t rank =
        all_kept ? largest_.score_rank : std::max(largest_.score_rank, largest_.train_rank);
    const auto add = [&](const char* name, int64_t bytes) {
      AddForward(SharedInBand(name, b), "forward", bytes, b);
    };
    add(kForwardHidden, t * model_.hidden * act);
    add(kForwardDropped, largest_.dropped * act);
    add(kForwardLowRank, std::max(attention, mlp) * rank * act);
    const int32_t qkv = time_.Forward(b, kForwardQkv), gate_up = time_.Forward(b, kForwardGateUp);
    Add(SharedInBand(kForwardQkvOut, b), "forward", attention * model_.qkv_row() * act, qkv, qkv);
    Add(SharedInBand(kForwardLse, b), "forward", attention * model_.heads * kF32Bytes, qkv, qkv);
    Add(SharedInBand(kForwardQkvProduct, b), "forward",
        largest_.finish_tokens * model_.qkv_width() * kF32Bytes, qkv, qkv);
    Add(SharedInBand(kForwardGateUpOut, b), "forward",
        GateUpScratchElements(model_, mlp, element_.wt) * act, gate_up, gate_up);
    if (model_.has_sparse_layers()) {
      add(kForwardExpertRows, ExpertRows(t, element_.wt) * model_.hidden * act);
    }
  }

  void RequestLoss() {
    const int64_t t = largest_.tokens;
    AddLoss(kLossGathered, t * model_.hidden * element_.act);
    Add(kLossLogits, "loss", t * largest_.head_slice_rows * kF32Bytes, time_.Loss(kLossSlices),
        time_.Loss(kLossSlices));
  }

  void RequestBackward(int32_t b) {
    const int64_t act = element_.act, t = largest_.train_tokens, inner = model_.intermediate;
    const bool mlp_again = bands_[b].mlp == Home::kRecompute;
    const auto add = [&](const char* name, int64_t bytes) {
      AddBackward(SharedInBand(name, b), "backward", bytes, b);
    };
    const auto add_in = [&](const char* name, int64_t bytes, BackwardOp op) {
      Add(SharedInBand(name, b), "backward", bytes, time_.Backward(b, op), time_.Backward(b, op));
    };
    add(kBackwardHidden, t * model_.hidden * act);
    add(kBackwardDHidden, t * model_.hidden * act);
    add(kBackwardDLowRank, t * largest_.train_rank * act);
    add(kBackwardDropped, largest_.dropped * act);
    add(kBackwardDDropped, largest_.dropped * act);
    if (model_.has_sparse_layers()) {
      add(kBackwardExpertRows, ExpertRows(t, element_.wt) * model_.hidden * act);
    }
    if (bands_[b].attention == Home::kRecompute) {
      add_in(kBackwardQkvProduct, largest_.finish_train_tokens * model_.qkv_width() * kF32Bytes,
             kRecomputeQkv);
    }
    add_in(kBackwardGateUpIn, (mlp_again ? GateUpScratchElements(model_, t, element_.wt) : 0) * act,
           kBackwardGateUp);
    add_in(kBackwardMlpLowRank, (mlp_again ? largest_.mlp_low_rank : 0) * act, kBackwardGateUp);
    add_in(kBackwardAct, largest_.down_tokens * inner * act, kBackwardGateUp);
    add_in(kBackwardDQkv, t * model_.qkv_width() * act, kBackwardQkv);
    add_in(kBackwardDelta, t * model_.heads * kF32Bytes, kBackwardQkv);
    if (act != kBf16Bytes) return;
    add_in(kBackwardPartials,
           AttentionPartialsPlanned(t, model_.heads, model_.kv_heads, model_.head_dim),
           kBackwardQkv);
    add_in(kBackwardAttentionLibrary, largest_.attention_workspace, kBackwardQkv);
  }

  void RequestUpdate(const std::vector<PassJob>& jobs) {
    if (!placement_.optimizer_host) return;
    int64_t elements = 0;
    for (const PassJob& job : jobs) {
      if (HasTrainItem(job)) elements = std::max(elements, AdapterElements(model_, job.lora));
    }
    Add(kUpdateMoments, "optimizer", 4 * MomentChunk(elements) * kF32Bytes, time_.update(),
        time_.update());
  }

  const ModelSpec& model_;
  const BaseFormat format_;
  const Placement placement_;
  const ElementBytes element_;
  const bool named_;
  const std::vector<LayerBand> bands_;
  const PassTimeline time_;
  Largest largest_;
  PassRequests out_;
};

}  // namespace

PassRequests MakePassRequests(const ModelSpec& model, BaseFormat format,
                              const std::vector<PassJob>& jobs, const Placement& placement,
                              bool named) {
  const NumericPlan& numeric = jobs.front().numeric;
  const ElementBytes element = {numeric.act_bytes(), numeric.wt_bytes()};
  Planner planner(model, format, placement, element, named);
  planner.Request(jobs);
  return planner.Take();
}

}  // namespace soup::engine
