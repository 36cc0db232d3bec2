// RMSNorm on the CPU, fp32; contracts in kernels/ops.h. Sums in fp32 lanes of 16 over blocks of
// 1024, the blocks' sums in double. Parallel over rows; bitwise repeatable for any thread count.
#ifndef SOUP_KERNELS_CPU_NORM_H_
#define SOUP_KERNELS_CPU_NORM_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void RmsNormForward(const RmsNormForwardArgs& args, CpuContext& ctx);
void RmsNormBackward(const RmsNormBackwardArgs& args, CpuContext& ctx);
void HeadNormForward(const HeadNormForwardArgs& args, CpuContext& ctx);
void HeadNormBackward(const HeadNormBackwardArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_NORM_H_
