// RMSNorm on CUDA: bf16 or fp32 in and out (`act`), fp32 sums. Contracts in kernels/ops.h. H a
// multiple of 8, pointers 16-byte aligned, else cudaErrorInvalidValue. One block a row; the row's
// sum is taken in one fixed order: bitwise repeatable.
#ifndef SOUP_KERNELS_CUDA_NORM_H_
#define SOUP_KERNELS_CUDA_NORM_H_

#include <cuda_runtime.h>

#include "kernels/cuda/act_type.h"
#include "kernels/ops.h"

namespace soup::kernels::cuda {

cudaError_t RmsNormForward(const RmsNormForwardArgs& args, cudaStream_t stream,
                           ActType act = ActType::kBf16);
cudaError_t RmsNormBackward(const RmsNormBackwardArgs& args, cudaStream_t stream,
                            ActType act = ActType::kBf16);
// D up to 256; one warp a head.
cudaError_t HeadNormForward(const HeadNormForwardArgs& args, cudaStream_t stream,
                            ActType act = ActType::kBf16);
cudaError_t HeadNormBackward(const HeadNormBackwardArgs& args, cudaStream_t stream,
                             ActType act = ActType::kBf16);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_NORM_H_
