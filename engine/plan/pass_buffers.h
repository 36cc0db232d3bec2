// The buffers of a pass: their names and the ops between which they live. PlanMemory requests them
// and the executor takes them, by these names only.
//
// The time line is abstract: forward visits by bands of layers that keep the same
// (placement.h), the loss, backward visits by the same bands, the update. The layer ops of a band
// repeat for each of its layers, so a buffer that lives from kForwardQkv to kForwardDown of a band
// is reused by all of them. Pure; any thread.
#ifndef SOUP_ENGINE_PLAN_PASS_BUFFERS_H_
#define SOUP_ENGINE_PLAN_PASS_BUFFERS_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/arena_layout.h"
#include "engine/model/model_spec.h"
#include "engine/plan/expert_buffers.h"

namespace soup::engine {

// T: tokens of the item's bucket; other letters as in kernels/ops.h.
enum ForwardOp : int32_t {
  kForwardQkv,     // norm, q k v, rope, attention
  kForwardO,       // output projection, residual
  kForwardGateUp,  // norm, gate and up, activation
  kForwardDown,    // down projection, residual
  kForwardOps,
};
enum LossOp : int32_t {
  kLossBegin,   // supervised rows, final norm
  kLossSlices,  // the head by vocabulary slices
  kLossFinish,  // dh, back through the final norm
  kLossOps,
};
enum BackwardOp : int32_t {
  kRecomputeQkv,    // attention made again: as kForwardQkv
  kRecomputeO,      // as kForwardO
  kBackwardDown,    // d act
  kBackwardGateUp,  // (made again) gate and up; their backward, norm
  kBackwardO,       // d attention output
  kBackwardQkv,     // attention backward, rope, q k v, norm
  kBackwardOps,
};

class PassTimeline {
 public:
  explicit PassTimeline(int32_t bands) : bands_(bands) {}
  int32_t begin() const { return 0; }
  int32_t Forward(int32_t band, ForwardOp op) const { return 1 + band * kForwardOps + op; }
  int32_t Loss(LossOp op) const { return 1 + bands_ * kForwardOps + op; }
  // The last band comes first.
  int32_t Backward(int32_t band, BackwardOp op) const {
    return 1 + bands_ * kForwardOps + kLossOps + (bands_ - 1 - band) * kBackwardOps + op;
  }
  int32_t update() const { return Backward(0, kBackwardQkv) + 1; }

 private:
  const int32_t bands_;
};

// Whole pass, the same in every pass of one configuration: slots, resident head, adapters' states.
inline std::string SlotBuffer(int64_t i) { return absl::StrCat("slot/", i); }
// Two of a ring, and those that stay.
inline constexpr int32_t kHeadRingSlices = 2;
inline std::string HeadSliceBuffer(int64_t i) { return absl::StrCat("head/slice/", i); }
inline constexpr char kHeadResidentBuffer[] = "head/resident";
inline constexpr char kFinalNormBuffer[] = "globals/final_norm";
inline constexpr char kInverseFrequencyBuffer[] = "globals/inverse_frequencies";
inline constexpr char kSumSquaresBuffer[] = "update/sum_squares";
// Where fp32 activations become operands of bf16 products (kernels/cuda/gemm_split.h), on CUDA. Its
// size decides bits: products are cut by it. 32 MiB hold 2,048 rows of 4,096 columns; the rest is
// lost to alignment.
inline constexpr char kProductScratchBuffer[] = "product_scratch";
inline constexpr int64_t kProductScratchBytes = (int64_t{32} << 20) + 1024;
// `act`, `wt`: bytes of an activation and of a weight operand.
inline int64_t ProductScratchBytes(int64_t act, int64_t wt) {
  return act > wt ? kProductScratchBytes : 0;
}
inline std::string JobBuffer(absl::string_view job_id, absl::string_view what) {
  return absl::StrCat("job/", job_id, "/", what);
}
inline constexpr char kJobWeights[] = "weights";
inline constexpr char kJobOperand[] = "operand";  // bf16 copy of the weights where act is bf16
inline constexpr char kJobGradients[] = "gradients";
inline constexpr char kJobFirstMoment[] = "first_moment";
inline constexpr char kJobSecondMoment[] = "second_moment";
// Update, moments in host memory: two chunks of both, fp32 [2, 2, chunk].
inline constexpr char kUpdateMoments[] = "update/moments";
inline constexpr int64_t kMomentChunk = int64_t{1} << 20;  // elements, at most
inline int64_t MomentChunk(int64_t elements) { return std::min(elements, kMomentChunk); }

// An item's own; `item` counts through the pass.
inline std::string ItemBuffer(int64_t item, absl::string_view what) {
  return absl::StrCat("item/", item, "/", what);
}
// Whole pass.
inline constexpr char kItemIndex[] = "index";  // i32 [4 T + S + 1], see ItemIndexInts
// act [L + 1, state_planes(), T, H]; score: [2, state_planes(), T, H]
inline constexpr char kItemBoundaries[] = "boundaries";
// Boundaries in host memory: a ring of kBoundarySlots blocks [T, H] on the device, of the others
// each one block in host memory under the same name.
inline constexpr int32_t kBoundarySlots = 3;
// What a band of layers keeps on the device for an item, one block a layer; and, of the layers that
// keep it in host memory, a ring of kKeptSlots blocks on the device. The ring's last blocks stay
// there over the turn; the others lie in host memory, under the ring's name.
inline constexpr int32_t kKeptSlots = 2;
inline constexpr char kKeptAttention[] = "kept/attention";  // AttentionBlock a layer
inline constexpr char kKeptMlp[] = "kept/mlp";              // MlpBlock a layer
inline constexpr char kRingAttention[] = "ring/attention";
inline constexpr char kRingMlp[] = "ring/mlp";
// Loss.
inline constexpr char kItemHeadHidden[] = "loss/hidden";  // act [T, H]: normed rows; then dh
inline constexpr char kItemHeadGrad[] = "loss/grad";      // fp32 [T, H]
inline constexpr char kItemTargetRow[] = "loss/target";   // wt [T, H]
inline constexpr char kItemHeadStats[] = "loss/stats";    // fp32 [5 T]: m, l, target, loss, rstd
// Loss and backward.
inline constexpr char kItemGrad[] = "backward/grad";  // act [T, H]: gradient of the residual stream
// act [T, H], where outputs are normed: the MLP's before its norm
inline constexpr char kItemMlpOut[] = "backward/mlp_out";

// Of one band: `name` of an item's or a shared buffer.
inline std::string InBand(absl::string_view name, int32_t band) {
  return absl::StrCat(name, "/", band);
}
// An item's, of one band.
// act [T, H], where attention is not kept, outputs are not normed and the MLP is dense: elsewhere
// the middle is kept, or lies where the next layer's input will
inline constexpr char kItemMiddle[] = "forward/middle";
inline bool HasMiddleOfItsOwn(const ModelSpec& model) {
  return !model.post_norms && model.has_dense_layers();
}
inline constexpr char kItemWork[] =
    "forward/work";  // act [T, max(Q, I)]: attention out, activation
inline constexpr char kItemBackWork[] = "backward/work";  // act [T, max(Q, I)]: d act, d attention
inline constexpr char kAgainAttention[] = "again/attention";  // AttentionBlock

// Shared by the items, one at a time, sized by the largest. Of one band but for the weight and the
// loss.
inline constexpr char kWeightScratch[] = "weight";          // wt, largest group or head slice
inline constexpr char kForwardHidden[] = "forward/hidden";  // act [T, H]
inline constexpr char kForwardQkvOut[] = "forward/qkv";     // act [T, NQ]
inline constexpr char kForwardQkvProduct[] = "forward/qkv_product";     // fp32 [T, NQ], QkvFinish's
inline constexpr char kForwardLse[] = "forward/lse";                    // fp32 [T, Hq]
inline constexpr char kForwardGateUpOut[] = "forward/gate_up";          // act [T, 2 I]
inline constexpr char kForwardLowRank[] = "forward/low_rank";           // act [T, r]
inline constexpr char kForwardDropped[] = "forward/dropped";            // act [T, max input]
inline constexpr char kLossGathered[] = "loss/gathered";                // act [T, H]
inline constexpr char kLossLogits[] = "loss/logits";                    // fp32 [T, slice]
inline constexpr char kBackwardQkvProduct[] = "again/qkv_product";      // the same, recomputed
inline constexpr char kBackwardHidden[] = "backward/hidden";            // act [T, H]
inline constexpr char kBackwardDHidden[] = "backward/d_hidden";         // act [T, H]
inline constexpr char kBackwardGateUpIn[] = "backward/gate_up";         // act [T, 2 I]
inline constexpr char kBackwardMlpLowRank[] = "backward/mlp_low_rank";  // act [MLP targets, T, r]
inline constexpr char kBackwardAct[] = "backward/act";                  // act [T, I]
inline constexpr char kBackwardDQkv[] = "backward/d_qkv";               // act [T, NQ]
inline constexpr char kBackwardDelta[] = "backward/delta";              // fp32 [T, Hq]
inline constexpr char kBackwardPartials[] = "backward/partials";        // AttentionPartialsPlanned
// AttentionWorkspaceBytes (engine/base/attention_library.h)
inline constexpr char kBackwardAttentionLibrary[] = "backward/attention_library";
inline constexpr char kBackwardDLowRank[] = "backward/d_low_rank";  // act [T, r]
inline constexpr char kBackwardDropped[] = "backward/dropped";      // act [T, max input]
inline constexpr char kBackwardDDropped[] = "backward/d_dropped";   // act [T, max input]

// Columns of x A^T that a linear of rank r has: LoraColumns of kernels/lora_products.h.
constexpr int64_t LowRankColumns(int64_t r) { return (r + 7) / 8 * 8; }

// CUDA: how many blocks may share the query heads of one key-value head in attention's backward
// (they add up partial dk and dv in fixed order), and the fp32 bytes that this takes. A function of
// the item alone, because the number decides bits. The bytes grow with T and stop at 2 * limit * D
// * 4.
inline constexpr int64_t kAttentionPartialRows = 32768;
inline int64_t AttentionSplitPlanned(int64_t tokens, int64_t heads, int64_t kv_heads) {
  const int64_t rows = tokens * kv_heads;
  if (rows <= 0 || kv_heads <= 0) return 1;
  const int64_t fits = kAttentionPartialRows / rows;
  const int64_t group = heads / kv_heads;
  return fits < 1 ? 1 : fits < group ? fits : group;
}
inline int64_t AttentionPartialsPlanned(int64_t tokens, int64_t heads, int64_t kv_heads,
                                        int64_t head_dim) {
  if (heads == kv_heads) return 0;
  const int64_t rows =
      tokens * heads < kAttentionPartialRows ? tokens * heads : kAttentionPartialRows;
  return rows * 2 * head_dim * 4;
}

// What the backward of one layer reads of one item. Offsets are bytes from the block's start,
// multiples of kArenaAlignment. `act`: bytes of an element.
struct AttentionBlock {
  int64_t qkv = 0;        // act [T, qkv_row()], rotated
  int64_t attention = 0;  // act [T, Q]
  int64_t lse = 0;        // fp32 [T, Hq]
  int64_t middle = 0;     // act [state_planes(), T, H], after attention's residual
  int64_t low_rank = 0;   // act [attention targets, T, r]: x A^T
  int64_t bytes = 0;
};
struct MlpBlock {
  int64_t gate_up = 0;   // act [T, 2 I]; of experts: their rows one expert after the other
  int64_t low_rank = 0;  // act [MLP targets, T, r]
  int64_t bytes = 0;
};
// `low_rank`: targets of the class times r; `wt`: of expert_buffers.h.
inline AttentionBlock MakeAttentionBlock(const ModelSpec& model, int64_t tokens, int64_t low_rank,
                                         int64_t act) {
  AttentionBlock b;
  b.attention = b.qkv + ArenaRoundUp(tokens * model.qkv_row() * act);
  b.lse = b.attention + ArenaRoundUp(tokens * model.q_width() * act);
  b.middle = b.lse + ArenaRoundUp(tokens * model.heads * int64_t{4});
  b.low_rank = b.middle + ArenaRoundUp(tokens * model.hidden * model.state_planes() * act);
  b.bytes = b.low_rank + ArenaRoundUp(tokens * low_rank * act);
  return b;
}
inline MlpBlock MakeMlpBlock(const ModelSpec& model, int64_t tokens, int64_t low_rank, int64_t act,
                             int64_t wt) {
  MlpBlock b;
  b.low_rank = b.gate_up + ArenaRoundUp(GateUpElements(model, tokens, wt) * act);
  b.bytes = b.low_rank + ArenaRoundUp(tokens * low_rank * act);
  return b;
}

// ids, positions, supervised rows and their targets [T] each, then cu_seqlens [S + 1].
inline int64_t ItemIndexInts(int64_t tokens, int64_t sequences) {
  return 4 * tokens + sequences + 1;
}

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_PASS_BUFFERS_H_
