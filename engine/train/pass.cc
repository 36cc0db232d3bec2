#include "engine/train/pass.h"

#include <algorithm>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"
#include "engine/plan/visit_schedule.h"
#include "engine/train/decoder_layer.h"

namespace soup::engine {
namespace {

constexpr int64_t kI32Bytes = 4;
constexpr absl::Duration kSynchronizeLimit = absl::Minutes(10);

class Runner {
 public:
  Runner(const PassEnv& env, const PassInputs& inputs, std::vector<PassItemState>* items)
      : env_(env), inputs_(inputs), items_(*items) {}

  absl::Status Run() {
    absl::Status status = RunAll();
    if (status.ok()) return status;
    // The first error is the one to tell; the rings must be usable again whatever these say.
    inputs_.head->Abort().IgnoreError();
    if (ring_open_) inputs_.ring->AbortPass().IgnoreError();
    // Copies of kept blocks may be under way in memory that the items are about to give back.
    env_.backend->Synchronize(kSynchronizeLimit).IgnoreError();
    ReleaseItems();
    return status;
  }

 private:
  absl::Status RunAll() {
    SOUP_RETURN_IF_ERROR(BeginRing());
    for (PassItemState& item : items_) {
      SOUP_RETURN_IF_ERROR(TakeItem(item));
      SOUP_RETURN_IF_ERROR(Upload(item));
      SOUP_RETURN_IF_ERROR(Embed(item));
    }
    SOUP_ASSIGN_OR_RETURN(ArenaBuffer weight, TakeWeightScratch());
    DecoderLayer layer(env_, &items_, weight.data());
    SOUP_RETURN_IF_ERROR(Forward(layer));
    std::vector<ArenaBuffer> grads;
    SOUP_RETURN_IF_ERROR(TakeGrads(grads));
    SOUP_RETURN_IF_ERROR(BeginLoss());
    Loss loss(env_, &items_, inputs_.head, inputs_.final_norm, inputs_.head_slice_rows,
              weight.data());
    SOUP_RETURN_IF_ERROR(loss.Run(inputs_.logits_hook));
    SOUP_RETURN_IF_ERROR(inputs_.head->End());
    SOUP_RETURN_IF_ERROR(EndLoss());
    if (backward_) SOUP_RETURN_IF_ERROR(Backward(layer));
    SOUP_RETURN_IF_ERROR(inputs_.ring->EndPass());
    ring_open_ = false;
    SOUP_RETURN_IF_ERROR(env_.backend->Synchronize(kSynchronizeLimit));
    ReleaseItems();
    return absl::OkStatus();
  }

  void ReleaseItems() {
    for (PassItemState& item : items_) {
      item.buffers.clear();
      item.boundaries = Boundaries();
      item.kept_attention = KeptBlocks();
      item.kept_mlp = KeptBlocks();
    }
  }

  absl::Status BeginRing() {
    backward_ = std::any_of(items_.begin(), items_.end(),
                            [](const PassItemState& item) { return item.train; });
    VisitScheduleParams params;
    params.layers = static_cast<int32_t>(env_.spec.layers);
    const Placement placement = NormalPlacement(inputs_.placement, env_.spec.layers);
    bands_ = LayerBands(placement, env_.spec.layers);
    params.slots = placement.slots;
    params.resident_layers = placement.resident_layers;
    params.backward = backward_;
    params.slot_layer_at_start = inputs_.ring->slot_layers();
    SOUP_ASSIGN_OR_RETURN(schedule_, MakeVisitSchedule(params));
    SOUP_RETURN_IF_ERROR(inputs_.ring->BeginPass(schedule_));
    ring_open_ = true;
    return absl::OkStatus();
  }

  absl::Status TakeItem(PassItemState& item) {
    const ModelSpec& m = env_.spec;
    const int64_t t = item.T;
    const auto take = [&](const char* what, int64_t bytes) -> absl::StatusOr<std::byte*> {
      if (bytes == 0) return nullptr;
      SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer,
                            env_.arena->Take(ItemBuffer(item.index, what), bytes));
      item.buffers.push_back(std::move(buffer));
      return item.buffers.back().data();
    };
    SOUP_ASSIGN_OR_RETURN(std::byte * index,
                          take(kItemIndex, ItemIndexInts(t, item.sequences()) * kI32Bytes));
    item.ids = reinterpret_cast<const int32_t*>(index);
    item.positions = item.ids + t;
    item.rows = item.ids + 2 * t;
    item.targets = item.ids + 3 * t;
    item.cu_seqlens = item.ids + 4 * t;
    const KeptMemory memory = {env_.backend, env_.arena, env_.host_arena};
    const std::string boundaries = ItemBuffer(item.index, kItemBoundaries);
    const int64_t bytes = t * m.hidden * m.state_planes() * env_.act_bytes;
    if (!item.train) {
      SOUP_ASSIGN_OR_RETURN(item.boundaries, Boundaries::InTurns(memory, boundaries, bytes));
      return absl::OkStatus();
    }
    SOUP_ASSIGN_OR_RETURN(item.boundaries,
                          Boundaries::Create(memory, boundaries, static_cast<int32_t>(m.layers) + 1,
                                             bytes, inputs_.placement.boundaries_host));
    const auto names = [&](const char* kept, const char* ring) {
      return KeptBlocks::Names{ItemBuffer(item.index, kept), ItemBuffer(item.index, ring)};
    };
    item.kept_attention = KeptBlocks(memory, names(kKeptAttention, kRingAttention), bands_,
                                     &LayerBand::attention, AttentionBlockBytes(env_, item));
    item.kept_mlp = KeptBlocks(memory, names(kKeptMlp, kRingMlp), bands_, &LayerBand::mlp,
                               MlpBlockBytes(env_, item));
    return absl::OkStatus();
  }

  absl::Status Upload(PassItemState& item) {
    const ItemBatch& b = item.batch;
    const auto copy = [&](const int32_t* dst, const std::vector<int32_t>& src) {
      if (src.empty()) return absl::OkStatus();
      return env_.backend->CopyToDeviceAsync(const_cast<int32_t*>(dst), src.data(),
                                             static_cast<int64_t>(src.size()) * kI32Bytes,
                                             env_.backend->compute_stream());
    };
    SOUP_RETURN_IF_ERROR(copy(item.ids, b.ids));
    SOUP_RETURN_IF_ERROR(copy(item.positions, b.positions));
    SOUP_RETURN_IF_ERROR(copy(item.rows, b.rows));
    SOUP_RETURN_IF_ERROR(copy(item.targets, b.targets));
    return copy(item.cu_seqlens, b.cu_seqlens);
  }

  // Tail rows are zero, and every op keeps them so: a row that holds no token must not bring the
  // embedding of some token into a sum over rows.
  absl::Status Embed(PassItemState& item) {
    const int64_t h = env_.spec.hidden, n = item.batch.tokens;
    SOUP_ASSIGN_OR_RETURN(std::byte * x, item.boundaries.Write(0));
    item.output = x;
    env_.backend->GatherRows(
        {reinterpret_cast<const uint16_t*>(inputs_.embedding), item.ids, x, n, h});
    if (env_.spec.embedding_scale != 1) {
      env_.backend->Axpy({x, x, n * h, static_cast<float>(env_.spec.embedding_scale), false});
    }
    if (n < item.T) {
      env_.backend->FillZero(At(x, n * h, env_.act_bytes), (item.T - n) * h * env_.act_bytes);
    }
    return item.boundaries.Written(0);
  }

  absl::StatusOr<ArenaBuffer> TakeWeightScratch() {
    const bool bf16_operand = env_.wt_bytes == DTypeBytes(DType::kBF16);
    int64_t elements = bf16_operand ? 0 : inputs_.head_slice_rows * env_.spec.hidden;
    if (!bf16_operand || env_.format != BaseFormat::kBf16) {
      elements = std::max(elements, LargestGroupElements(env_.spec));
    }
    return env_.arena->Take(kWeightScratch, elements * env_.wt_bytes);
  }

  absl::Status TakeGrads(std::vector<ArenaBuffer>& grads) {
    for (PassItemState& item : items_) {
      if (!item.train) continue;
      SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer,
                            env_.arena->Take(ItemBuffer(item.index, kItemGrad),
                                             item.T * env_.spec.hidden * env_.act_bytes));
      item.grad = buffer.data();
      grads.push_back(std::move(buffer));
      if (!env_.spec.post_norms) continue;
      SOUP_ASSIGN_OR_RETURN(ArenaBuffer out,
                            env_.arena->Take(ItemBuffer(item.index, kItemMlpOut),
                                             item.T * env_.spec.hidden * env_.act_bytes));
      item.mlp_out = out.data();
      grads.push_back(std::move(out));
    }
    return absl::OkStatus();
  }

  // Behind a layer's input lies what the MLP of the layer before it gave, before its norm: that
  // layer's backward reads it, when the block is gone.
  void CarryMlpOut(PassItemState& item, const std::byte* boundary) {
    if (!env_.spec.post_norms) return;
    const int64_t elements = item.T * env_.spec.hidden;
    env_.backend->CopyOnDevice(item.mlp_out, At(boundary, elements, env_.act_bytes),
                               elements * env_.act_bytes);
  }

  // One visit of the schedule.
  template <typename Fn>
  absl::Status VisitLayer(const Fn& fn) {
    const int32_t v = visit_++;
    SOUP_ASSIGN_OR_RETURN(const SlotRing::Slab slab, inputs_.ring->Acquire(v));
    SOUP_RETURN_IF_ERROR(
        fn(schedule_.visits[v].layer, slab.data, [this, v] { return inputs_.ring->Release(v); }));
    return env_.backend->status();
  }

  absl::Status Forward(DecoderLayer& layer) {
    for (int32_t b = 0; b < static_cast<int32_t>(bands_.size()); ++b) {
      for (PassItemState& item : items_) {
        SOUP_RETURN_IF_ERROR(item.kept_attention.EnterBand(b));
        SOUP_RETURN_IF_ERROR(item.kept_mlp.EnterBand(b));
      }
      SOUP_RETURN_IF_ERROR(layer.BeginForward(bands_[b], b));
      for (int64_t l = bands_[b].first; l < bands_[b].end(); ++l) {
        // The head's first slices are on their way while the last layer computes.
        if (l + 1 == env_.spec.layers) SOUP_RETURN_IF_ERROR(inputs_.head->Begin());
        SOUP_RETURN_IF_ERROR(ForwardVisit(layer, static_cast<int32_t>(l)));
      }
      layer.EndForward();
    }
    return absl::OkStatus();
  }

  absl::Status ForwardVisit(DecoderLayer& layer, int32_t l) {
    for (PassItemState& item : items_) {
      item.input = item.output;
      SOUP_ASSIGN_OR_RETURN(item.output, item.boundaries.Write(l + 1));
      SOUP_ASSIGN_OR_RETURN(std::byte * attention, item.kept_attention.Write(l));
      SOUP_ASSIGN_OR_RETURN(std::byte * mlp, item.kept_mlp.Write(l));
      SetKept(item, attention, mlp);
    }
    SOUP_RETURN_IF_ERROR(
        VisitLayer([&](int32_t index, const std::byte* slab, const SlabDone& done) {
          return layer.Forward(index, slab, done);
        }));
    for (PassItemState& item : items_) {
      SOUP_RETURN_IF_ERROR(item.boundaries.Written(l + 1));
      SOUP_RETURN_IF_ERROR(item.kept_attention.Written(l));
      SOUP_RETURN_IF_ERROR(item.kept_mlp.Written(l));
    }
    return absl::OkStatus();
  }

  void SetKept(PassItemState& item, std::byte* attention, std::byte* mlp) {
    item.kept = LayerActivations();
    SetAttention(env_, item, attention, &item.kept);
    SetMlp(env_, item, mlp, &item.kept);
  }

  absl::Status BeginLoss() {
    for (PassItemState& item : items_) {
      item.last = item.output;
      if (!item.train) continue;
      SOUP_ASSIGN_OR_RETURN(item.last,
                            item.boundaries.Read(static_cast<int32_t>(env_.spec.layers)));
      CarryMlpOut(item, item.last);
    }
    return absl::OkStatus();
  }

  absl::Status EndLoss() {
    for (PassItemState& item : items_) {
      if (!item.train) continue;
      SOUP_RETURN_IF_ERROR(item.boundaries.Done(static_cast<int32_t>(env_.spec.layers)));
    }
    return absl::OkStatus();
  }

  absl::Status Backward(DecoderLayer& layer) {
    for (int32_t b = static_cast<int32_t>(bands_.size()) - 1; b >= 0; --b) {
      SOUP_RETURN_IF_ERROR(layer.BeginBackward(bands_[b], b));
      for (int64_t l = bands_[b].end() - 1; l >= bands_[b].first; --l) {
        SOUP_RETURN_IF_ERROR(BackwardVisit(layer, static_cast<int32_t>(l)));
      }
      layer.EndBackward();
      for (PassItemState& item : items_) {
        item.kept_attention.LeaveBand(b);
        item.kept_mlp.LeaveBand(b);
      }
    }
    return absl::OkStatus();
  }

  absl::Status BackwardVisit(DecoderLayer& layer, int32_t l) {
    for (PassItemState& item : items_) {
      if (!item.train) continue;
      SOUP_ASSIGN_OR_RETURN(item.input, item.boundaries.Read(l));
      SOUP_ASSIGN_OR_RETURN(std::byte * attention, item.kept_attention.Read(l));
      SOUP_ASSIGN_OR_RETURN(std::byte * mlp, item.kept_mlp.Read(l));
      SetKept(item, attention, mlp);
    }
    SOUP_RETURN_IF_ERROR(
        VisitLayer([&](int32_t index, const std::byte* slab, const SlabDone& done) {
          return layer.Backward(index, slab, done);
        }));
    for (PassItemState& item : items_) {
      if (!item.train) continue;
      if (l > 0) CarryMlpOut(item, item.input);
      SOUP_RETURN_IF_ERROR(item.boundaries.Done(l));
      SOUP_RETURN_IF_ERROR(item.kept_attention.Done(l));
      SOUP_RETURN_IF_ERROR(item.kept_mlp.Done(l));
    }
    return absl::OkStatus();
  }

  const PassEnv& env_;
  const PassInputs& inputs_;
  std::vector<PassItemState>& items_;
  VisitSchedule schedule_;
  std::vector<LayerBand> bands_;
  bool backward_ = false;
  bool ring_open_ = false;
  int32_t visit_ = 0;
};

}  // namespace

absl::Status RunItems(const PassEnv& env, const PassInputs& inputs,
                      std::vector<PassItemState>* items) {
  return Runner(env, inputs, items).Run();
}

}  // namespace soup::engine
