// Packed causal attention on the CPU, fp32; contracts in kernels/ops.h. Blocks of 64 x 64 with a
// running maximum and sum (Milakov & Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).
// Forward: one task a (sequence, query head). Backward: one task a (sequence, key-value head),
// which adds its query heads, key blocks and query blocks in index order, so no sum depends on
// timing. D at most kMaxHeadDim. Bitwise repeatable for any thread count.
#ifndef SOUP_KERNELS_CPU_ATTENTION_H_
#define SOUP_KERNELS_CPU_ATTENTION_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void AttentionForward(const AttentionForwardArgs& args, CpuContext& ctx);
void AttentionBackward(const AttentionBackwardArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_ATTENTION_H_
