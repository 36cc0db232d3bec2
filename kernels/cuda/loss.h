// The fused cross entropy by vocabulary slices on CUDA. Contracts in kernels/ops.h. One block a
// row, fixed orders, no atomics: bitwise repeatable. Here p is act and lies over the logits: row i
// of the GEMM's A operand starts where row i of the logits starts, so its leading dimension is Vs
// in fp32 and 2 * Vs in bf16. H a multiple of 8.
#ifndef SOUP_KERNELS_CUDA_LOSS_H_
#define SOUP_KERNELS_CUDA_LOSS_H_

#include <cuda_runtime.h>

#include "kernels/cuda/act_type.h"
#include "kernels/ops.h"

namespace soup::kernels::cuda {

cudaError_t LossSlice(const LossSliceArgs& args, cudaStream_t stream, ActType act = ActType::kBf16);
cudaError_t LossTargetRows(const LossTargetRowsArgs& args, cudaStream_t stream);
cudaError_t LossFinish(const LossFinishArgs& args, cudaStream_t stream,
                       ActType act = ActType::kBf16);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_LOSS_H_
