// Rotary embedding on CUDA, bf16 or fp32 (`act`) in place, angles in fp32. Contract in
// kernels/ops.h. D a multiple of 16, row_stride a multiple of 8, x 16-byte aligned, else
// cudaErrorInvalidValue. Elementwise: bitwise repeatable.
#ifndef SOUP_KERNELS_CUDA_ROPE_H_
#define SOUP_KERNELS_CUDA_ROPE_H_

#include <cuda_runtime.h>

#include "kernels/cuda/act_type.h"
#include "kernels/ops.h"

namespace soup::kernels::cuda {

cudaError_t Rope(const RopeArgs& args, cudaStream_t stream, ActType act = ActType::kBf16);

// What the ops that turn heads on their way take: none, or an even number of whole 8-value vectors.
inline bool HeadRopeTaken(const HeadRope& rope, int64_t D) {
  return rope.positions == nullptr ||
         (rope.rotary % 16 == 0 && rope.rotary >= 1 && rope.rotary <= D);
}

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_ROPE_H_
