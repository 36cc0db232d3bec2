// Elementwise ops and row moves on CUDA, bf16 or fp32 (`act`) with fp32 arithmetic. Contracts in
// kernels/ops.h. Widths (H, I) are multiples of 8 and pointers 16-byte aligned, else
// cudaErrorInvalidValue. Axpy and Dropout take any n (aligned starts). No sums across threads:
// bitwise repeatable.
#ifndef SOUP_KERNELS_CUDA_ELEMENTWISE_H_
#define SOUP_KERNELS_CUDA_ELEMENTWISE_H_

#include <cuda_runtime.h>

#include "kernels/cuda/act_type.h"
#include "kernels/ops.h"

namespace soup::kernels::cuda {

cudaError_t SwigluForward(const SwigluForwardArgs& args, cudaStream_t stream,
                          ActType act = ActType::kBf16);
cudaError_t SwigluBackward(const SwigluBackwardArgs& args, cudaStream_t stream,
                           ActType act = ActType::kBf16);
// N a multiple of 8.
cudaError_t AddBias(const AddBiasArgs& args, cudaStream_t stream, ActType act = ActType::kBf16);
cudaError_t Axpy(const AxpyArgs& args, cudaStream_t stream, ActType act = ActType::kBf16);
cudaError_t Dropout(const DropoutArgs& args, cudaStream_t stream, ActType act = ActType::kBf16);
// The table may be pinned host memory that the device reads over the link.
cudaError_t GatherRows(const GatherRowsArgs& args, cudaStream_t stream,
                       ActType act = ActType::kBf16);
cudaError_t GatherActRows(const GatherActRowsArgs& args, cudaStream_t stream,
                          ActType act = ActType::kBf16);
cudaError_t ScatterActRows(const ScatterActRowsArgs& args, cudaStream_t stream,
                           ActType act = ActType::kBf16);
// fp32 master weights to the GEMMs' bf16 operand, round to nearest even; any n.
cudaError_t NarrowToBf16(const float* src, void* dst, int64_t n, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_ELEMENTWISE_H_
