// LoRA on the adapted linears of one group of one work item: y += s * (drop(x) A^T) B^T, and its
// backward (Hu et al., arXiv 2106.09685).
//
// The linears of a group (q, k, v; gate, up) read one input, so their A are one matrix and so are
// their products with it; with dropout each has a mask, and a product, of its own.
//
// The dropout mask is a function of (seed, step, micro-batch, layer, module, element), so forward,
// recompute and backward see one mask. Gradients are added to the job's fp32 vector; the caller
// runs the items of a job in micro-batch order, which fixes the order of the sums. Nothing is
// allocated.
#ifndef SOUP_ENGINE_TRAIN_LORA_H_
#define SOUP_ENGINE_TRAIN_LORA_H_

#include <cstdint>

#include "engine/train/pass_item.h"

namespace soup::engine {

// Scratch of act, each as large as the largest user; views.
struct LoraScratch {
  std::byte* dropped = nullptr;     // [T, in] of the masked input; null when no job drops
  std::byte* d_dropped = nullptr;   // backward only
  std::byte* d_low_rank = nullptr;  // backward only: [T, n c], n adapted linears of a group
};

// Where an item's x A^T of one group, [T, n c], lies in the block of its class, [targets of it, T,
// c].
std::byte* LowRankOf(const PassEnv& env, const PassItemState& item, Group g, std::byte* low_rank);

// u [T, n c] = drop(x) A^T, c = LowRankColumns(r). Nothing when no linear of the group is adapted.
void LoraLowRank(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                 const std::byte* x, std::byte* u, const LoraScratch& scratch);

// u as above, then the adapted columns of y [T, the group's rows] += s * u B^T; rows of y are `ldy`
// apart. Nothing when no linear of the group is adapted.
void LoraForward(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                 const std::byte* x, std::byte* u, std::byte* y, int64_t ldy,
                 const LoraScratch& scratch);

// Of o and down, one linear from input to hidden state: y = product + residual + s * u B^T, `y`
// holding the product alone. Where the op adds no addend, the caller's product has it already:
// LoraTakesResidual.
bool LoraTakesResidual(const PassEnv& env, const PassItemState& item, int64_t layer, Group g);
void LoraForwardOnResidual(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                           const std::byte* x, std::byte* u, std::byte* y,
                           const std::byte* residual, const LoraScratch& scratch);
// And y = s * u B^T, what y held not read.
void LoraForwardAlone(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                      const std::byte* x, std::byte* u, std::byte* y, const LoraScratch& scratch);

// The same of a u that LoraLowRank has made, added to y, and rope on y's rows: an op's arguments.
kernels::LoraUpRopeArgs LoraUpTurned(const PassItemState& item, int64_t layer, Group g,
                                     const std::byte* u, const kernels::RopeArgs& rope);

// The norm that made an adapted input: norm(x). `normed`: scratch for it, act [T, H].
struct LoraNorm {
  const std::byte* x = nullptr;
  const std::byte* weight = nullptr;
  std::byte* normed = nullptr;
};

// Whether dropout stands between the input and the adapters.
bool LoraDrops(const PassItemState& item);

// The parts of the backward; each does nothing when no linear of the group is adapted. First du = s
// * dy B, into scratch, and dB += s * dy^T u.
void LoraBackwardUp(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                    const std::byte* dy, int64_t ldy, const std::byte* u,
                    const LoraScratch& scratch);
// dA += du^T drop(x).
void LoraBackwardDown(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                      const std::byte* x, const LoraScratch& scratch);
// The same for the input norm(x), which need not be there; rstd is what the norm's backward has
// told. Not with dropout.
void LoraBackwardDown(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                      const LoraNorm& norm, const float* rstd, const LoraScratch& scratch);
// dx [T, in] += drop(du A); without accumulate =, not with dropout.
void LoraBackwardInput(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                       bool accumulate, std::byte* dx, const LoraScratch& scratch);

// All of them, added to dx.
void LoraBackward(const PassEnv& env, const PassItemState& item, int64_t layer, Group g,
                  const std::byte* dy, int64_t ldy, const std::byte* x, const std::byte* u,
                  std::byte* dx, const LoraScratch& scratch);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_LORA_H_
