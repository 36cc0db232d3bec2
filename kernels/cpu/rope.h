// Rotary embedding on the CPU, fp32; contract in kernels/ops.h. The angle is the fp32 product, as
// in Hugging Face; sine and cosine are taken in double and rounded. D even, at most kMaxHeadDim.
// Parallel over rows; bitwise repeatable for any thread count.
#ifndef SOUP_KERNELS_CPU_ROPE_H_
#define SOUP_KERNELS_CPU_ROPE_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void Rope(const RopeArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_ROPE_H_
