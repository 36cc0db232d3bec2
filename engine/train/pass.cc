#include "engine/train/pass.h"

#include <algorithm>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"
#include "engine/plan/visit_schedule.h"
#include "engine/train/decoder_layer.h"

namespace soup::engine {
namespace {

constexpr int64_t kF32Bytes = 4;
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
    return status;
  }

 private:
  absl::Status RunAll() {
    SOUP_RETURN_IF_ERROR(BeginRing());
    for (PassItemState& item : items_) {
      SOUP_RETURN_IF_ERROR(TakeItem(item));
      SOUP_RETURN_IF_ERROR(Upload(item));
      Embed(item);
    }
    SOUP_ASSIGN_OR_RETURN(ArenaBuffer weight, TakeWeightScratch());
    DecoderLayer layer(env_, &items_, weight.data());
    SOUP_RETURN_IF_ERROR(Forward(layer));
    std::vector<ArenaBuffer> grads;
    SOUP_RETURN_IF_ERROR(TakeGrads(grads));
    Loss loss(env_, &items_, inputs_.head, inputs_.final_norm, inputs_.head_slice_rows,
              weight.data());
    SOUP_RETURN_IF_ERROR(loss.Run(inputs_.logits_hook));
    SOUP_RETURN_IF_ERROR(inputs_.head->End());
    if (backward_) SOUP_RETURN_IF_ERROR(Backward(layer));
    SOUP_RETURN_IF_ERROR(inputs_.ring->EndPass());
    ring_open_ = false;
    SOUP_RETURN_IF_ERROR(env_.backend->Synchronize(kSynchronizeLimit));
    for (PassItemState& item : items_) item.buffers.clear();
    return absl::OkStatus();
  }

  absl::Status BeginRing() {
    backward_ = std::any_of(items_.begin(), items_.end(),
                            [](const PassItemState& item) { return item.train; });
    VisitScheduleParams params;
    params.layers = static_cast<int32_t>(env_.spec.layers);
    params.slots = inputs_.placement.slots;
    params.resident_layers = inputs_.placement.resident_layers;
    params.backward = backward_;
    params.slot_layer_at_start = inputs_.ring->slot_layers();
    SOUP_ASSIGN_OR_RETURN(schedule_, MakeVisitSchedule(params));
    SOUP_RETURN_IF_ERROR(inputs_.ring->BeginPass(schedule_));
    ring_open_ = true;
    return absl::OkStatus();
  }

  absl::Status TakeItem(PassItemState& item) {
    const ModelSpec& m = env_.spec;
    const int64_t t = item.T, act = env_.act_bytes, layers = m.layers;
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
    SOUP_ASSIGN_OR_RETURN(
        item.boundaries, take(kItemBoundaries, (item.train ? layers + 1 : 2) * t * m.hidden * act));
    if (!item.keeps) return absl::OkStatus();
    LayerActivations& k = item.kept;
    SOUP_ASSIGN_OR_RETURN(k.qkv, take(kKeptQkv, layers * t * m.qkv_width() * act));
    SOUP_ASSIGN_OR_RETURN(k.attention, take(kKeptAttention, layers * t * m.q_width() * act));
    SOUP_ASSIGN_OR_RETURN(std::byte * lse, take(kKeptLse, layers * t * m.heads * kF32Bytes));
    k.lse = reinterpret_cast<float*>(lse);
    SOUP_ASSIGN_OR_RETURN(k.middle, take(kKeptMiddle, layers * t * m.hidden * act));
    SOUP_ASSIGN_OR_RETURN(k.gate_up, take(kKeptGateUp, layers * t * 2 * m.intermediate * act));
    SOUP_ASSIGN_OR_RETURN(k.low_rank,
                          take(kKeptLowRank, layers * t * item.lora->targets * item.lora->r * act));
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
  void Embed(PassItemState& item) {
    const int64_t h = env_.spec.hidden, n = item.batch.tokens;
    std::byte* x = item.boundary(env_, 0);
    env_.backend->GatherRows(
        {reinterpret_cast<const uint16_t*>(inputs_.embedding), item.ids, x, n, h});
    if (n == item.T) return;
    env_.backend->FillZero(At(x, n * h, env_.act_bytes), (item.T - n) * h * env_.act_bytes);
  }

  absl::StatusOr<ArenaBuffer> TakeWeightScratch() {
    const bool bf16_operand = env_.wt_bytes == DTypeBytes(DType::kBF16);
    int64_t elements = bf16_operand ? 0 : inputs_.head_slice_rows * env_.spec.hidden;
    for (int g = 0; g < kGroups && !(bf16_operand && env_.format == BaseFormat::kBf16); ++g) {
      const GroupShape shape = MakeGroupShape(env_.spec, static_cast<Group>(g));
      elements = std::max(elements, shape.rows * shape.cols);
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
    }
    return absl::OkStatus();
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
    SOUP_RETURN_IF_ERROR(layer.BeginForward());
    for (int64_t l = 0; l < env_.spec.layers; ++l) {
      // The head's first slices are on their way while the last layer computes.
      if (l + 1 == env_.spec.layers) SOUP_RETURN_IF_ERROR(inputs_.head->Begin());
      SOUP_RETURN_IF_ERROR(
          VisitLayer([&](int32_t index, const std::byte* slab, const SlabDone& done) {
            return layer.Forward(index, slab, done);
          }));
    }
    layer.EndForward();
    return absl::OkStatus();
  }

  absl::Status Backward(DecoderLayer& layer) {
    SOUP_RETURN_IF_ERROR(layer.BeginBackward());
    for (int64_t l = 0; l < env_.spec.layers; ++l) {
      SOUP_RETURN_IF_ERROR(
          VisitLayer([&](int32_t index, const std::byte* slab, const SlabDone& done) {
            return layer.Backward(index, slab, done);
          }));
    }
    layer.EndBackward();
    return absl::OkStatus();
  }

  const PassEnv& env_;
  const PassInputs& inputs_;
  std::vector<PassItemState>& items_;
  VisitSchedule schedule_;
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
