// The online cross entropy by vocabulary slices on the CPU, fp32; contracts in kernels/ops.h.
// Parallel over rows; bitwise repeatable for any thread count. A NaN anywhere in a row makes that
// row's loss and gradient NaN, never a finite number.
#ifndef SOUP_KERNELS_CPU_LOSS_H_
#define SOUP_KERNELS_CPU_LOSS_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void LossSlice(const LossSliceArgs& args, CpuContext& ctx);
void LossTargetRows(const LossTargetRowsArgs& args, CpuContext& ctx);
void LossFinish(const LossFinishArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_LOSS_H_
