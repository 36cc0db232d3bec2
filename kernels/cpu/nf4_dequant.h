// NF4 dequantisation on the CPU: bf16 values, stored as fp32; contract in kernels/ops.h. Parallel
// over blocks; bitwise repeatable for any thread count.
#ifndef SOUP_KERNELS_CPU_NF4_DEQUANT_H_
#define SOUP_KERNELS_CPU_NF4_DEQUANT_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void Nf4Dequant(const Nf4DequantArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_NF4_DEQUANT_H_
