// NF4 dequantisation on CUDA, single and double quantised, to bf16. Contract in kernels/ops.h: the
// same bits as the CPU's (one rounding each for product, sum, product). packed 4-byte aligned, dst
// 16-byte aligned. Elementwise: repeatable. Measured: docs/BENCHMARKS.md.
#ifndef SOUP_KERNELS_CUDA_NF4_DEQUANT_H_
#define SOUP_KERNELS_CUDA_NF4_DEQUANT_H_

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// Copies the 256-entry nested map to the device's constant memory: once a process, before the first
// Nf4Dequant.
cudaError_t LoadNf4Tables();
cudaError_t Nf4Dequant(const Nf4DequantArgs& args, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_NF4_DEQUANT_H_
