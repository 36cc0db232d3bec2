// The buffers of a pass: their names and the ops between which they live. PlanMemory requests them
// and the executor takes them, by these names only.
//
// The time line is abstract: the layer ops repeat for every visit, so a buffer that lives from
// kForwardQkv to kForwardDown is reused by every layer, and one that outlives a visit lives through
// the whole phase. Pure; any thread.
#ifndef SOUP_ENGINE_PLAN_PASS_BUFFERS_H_
#define SOUP_ENGINE_PLAN_PASS_BUFFERS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// T: tokens of the item's bucket; other letters as in kernels/ops.h.
enum PassOp : int32_t {
  kPassBegin = 0,
  kForwardQkv,      // norm, q k v, rope, attention
  kForwardO,        // output projection, residual
  kForwardGateUp,   // norm, gate and up, activation
  kForwardDown,     // down projection, residual
  kLossBegin,       // supervised rows, final norm
  kLossSlices,      // the head by vocabulary slices
  kLossFinish,      // dh, back through the final norm
  kRecomputeQkv,    // backward visit, recompute: as kForwardQkv
  kRecomputeO,      // as kForwardO
  kBackwardDown,    // d act
  kBackwardGateUp,  // (recompute) gate and up; their backward, norm
  kBackwardO,       // d attention output
  kBackwardQkv,     // attention backward, rope, q k v, norm
  kPassUpdate,      // gradient norm, AdamW
};

// Whole pass, the same in every pass of one configuration: slots, resident head, adapters' states.
inline std::string SlotBuffer(int64_t i) { return absl::StrCat("slot/", i); }
inline std::string HeadSliceBuffer(int64_t i) { return absl::StrCat("head/slice/", i); }
inline constexpr char kHeadResidentBuffer[] = "head/resident";
inline constexpr char kFinalNormBuffer[] = "globals/final_norm";
inline constexpr char kInverseFrequencyBuffer[] = "globals/inverse_frequencies";
inline constexpr char kSumSquaresBuffer[] = "update/sum_squares";
inline std::string JobBuffer(absl::string_view job_id, absl::string_view what) {
  return absl::StrCat("job/", job_id, "/", what);
}
inline constexpr char kJobWeights[] = "weights";
inline constexpr char kJobOperand[] = "operand";  // bf16 copy of the weights where wt is bf16
inline constexpr char kJobGradients[] = "gradients";
inline constexpr char kJobFirstMoment[] = "first_moment";
inline constexpr char kJobSecondMoment[] = "second_moment";

// An item's own; `item` counts through the pass.
inline std::string ItemBuffer(int64_t item, absl::string_view what) {
  return absl::StrCat("item/", item, "/", what);
}
// Whole pass.
inline constexpr char kItemIndex[] = "index";            // i32 [4 T + S + 1], see ItemIndexInts
inline constexpr char kItemBoundaries[] = "boundaries";  // act [L + 1, T, H]; score: [2, T, H]
// Retention keep only, whole pass.
inline constexpr char kKeptQkv[] = "kept/qkv";         // act [L, T, NQ], rotated
inline constexpr char kKeptAttention[] = "kept/att";   // act [L, T, Q]
inline constexpr char kKeptLse[] = "kept/lse";         // fp32 [L, T, Hq]
inline constexpr char kKeptMiddle[] = "kept/middle";   // act [L, T, H], after attention's residual
inline constexpr char kKeptGateUp[] = "kept/gate_up";  // act [L, T, 2 I]
inline constexpr char kKeptLowRank[] = "kept/low_rank";  // act [L, targets, T, r]: x A^T
// Forward.
inline constexpr char kItemWork[] =
    "forward/work";  // act [T, max(Q, I)]: attention out, activation
// Loss.
inline constexpr char kItemHeadHidden[] = "loss/hidden";  // act [T, H]: normed rows; then dh
inline constexpr char kItemHeadGrad[] = "loss/grad";      // fp32 [T, H]
inline constexpr char kItemTargetRow[] = "loss/target";   // wt [T, H]
inline constexpr char kItemHeadStats[] = "loss/stats";    // fp32 [5 T]: m, l, target, loss, rstd
// Backward.
inline constexpr char kItemGrad[] = "backward/grad";  // act [T, H]: gradient of the residual stream
inline constexpr char kItemBackWork[] = "backward/work";   // act [T, max(Q, I)]: d act, d attention
inline constexpr char kAgainQkv[] = "again/qkv";           // act [T, NQ]
inline constexpr char kAgainAttention[] = "again/att";     // act [T, Q]
inline constexpr char kAgainLse[] = "again/lse";           // fp32 [T, Hq]
inline constexpr char kAgainMiddle[] = "again/middle";     // act [T, H]
inline constexpr char kAgainLowRank[] = "again/low_rank";  // act [targets, T, r]

// Shared by the items, one at a time: sized by the largest.
inline constexpr char kWeightScratch[] = "weight";                // wt, largest group or head slice
inline constexpr char kForwardHidden[] = "forward/hidden";        // act [T, H]
inline constexpr char kForwardRstd[] = "forward/rstd";            // fp32 [T]
inline constexpr char kForwardQkvOut[] = "forward/qkv";           // act [T, NQ]
inline constexpr char kForwardLse[] = "forward/lse";              // fp32 [T, Hq]
inline constexpr char kForwardGateUpOut[] = "forward/gate_up";    // act [T, 2 I]
inline constexpr char kForwardLowRank[] = "forward/low_rank";     // act [T, r]
inline constexpr char kForwardDropped[] = "forward/dropped";      // act [T, max input]
inline constexpr char kLossGathered[] = "loss/gathered";          // act [T, H]
inline constexpr char kLossLogits[] = "loss/logits";              // fp32 [T, slice]
inline constexpr char kBackwardHidden[] = "backward/hidden";      // act [T, H]
inline constexpr char kBackwardRstd[] = "backward/rstd";          // fp32 [T]
inline constexpr char kBackwardDHidden[] = "backward/d_hidden";   // act [T, H]
inline constexpr char kBackwardGateUpIn[] = "backward/gate_up";   // act [T, 2 I]
inline constexpr char kBackwardAct[] = "backward/act";            // act [T, I]
inline constexpr char kBackwardDQkv[] = "backward/d_qkv";         // act [T, NQ]
inline constexpr char kBackwardDelta[] = "backward/delta";        // fp32 [T, Hq]
inline constexpr char kBackwardPartials[] = "backward/partials";  // AttentionPartialsPlanned
inline constexpr char kBackwardDLowRank[] = "backward/d_low_rank";  // act [T, r]
inline constexpr char kBackwardDropped[] = "backward/dropped";      // act [T, max input]
inline constexpr char kBackwardDDropped[] = "backward/d_dropped";   // act [T, max input]

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

// ids, positions, supervised rows and their targets [T] each, then cu_seqlens [S + 1].
inline int64_t ItemIndexInts(int64_t tokens, int64_t sequences) {
  return 4 * tokens + sequences + 1;
}

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_PASS_BUFFERS_H_
