// AdamW and the gradient norm on the CPU, fp32; contracts in kernels/ops.h. Parallel over elements;
// bitwise repeatable for any thread count.
#ifndef SOUP_KERNELS_CPU_OPTIMIZER_H_
#define SOUP_KERNELS_CPU_OPTIMIZER_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void SumSquares(const SumSquaresArgs& args, CpuContext& ctx);
void AdamW(const AdamWArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_OPTIMIZER_H_
