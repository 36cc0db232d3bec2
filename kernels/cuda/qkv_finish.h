// q, k, v from their fp32 product: bias, adapters, norms of heads and rope in one pass, rounded to
// bf16 once. Contract in kernels/ops.h. Sums in one fixed order: bitwise repeatable.
#ifndef SOUP_KERNELS_CUDA_QKV_FINISH_H_
#define SOUP_KERNELS_CUDA_QKV_FINISH_H_

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// D up to 256, a multiple of 8 (of rope's half too); strides multiples of 8; pointers 16-byte
// aligned (b: 2). x and y apart. Errors: cudaErrorInvalidValue for what is not so.
cudaError_t QkvFinish(const QkvFinishArgs& args, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_QKV_FINISH_H_
