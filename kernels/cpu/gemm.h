// Matrix products on the CPU through OpenBLAS's sgemm; contract in kernels/ops.h. Every operand
// type is fp32 here. Same shape, leading dimensions, thread count and core type: same bits,
// whatever the addresses (tests/kernels/gemm_repeat_test.cc).
#ifndef SOUP_KERNELS_CPU_GEMM_H_
#define SOUP_KERNELS_CPU_GEMM_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void Gemm(const GemmArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_GEMM_H_
