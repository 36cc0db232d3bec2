// Global norm and AdamW over a job's flat fp32 vectors on CUDA. Contracts in kernels/ops.h. Bitwise
// repeatable.
#ifndef SOUP_KERNELS_CUDA_OPTIMIZER_H_
#define SOUP_KERNELS_CUDA_OPTIMIZER_H_

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// Scratch that SumSquares needs, from the arena.
inline constexpr int kSumSquaresPartials = 1024;

// x is cut into kSumSquaresPartials contiguous runs (by n alone); each is summed by one block in
// fixed order in double, then the runs' sums in order. `partials`: device memory
// [kSumSquaresPartials].
cudaError_t SumSquares(const SumSquaresArgs& args, double* partials, cudaStream_t stream);
// One launch over all adapter tensors of a job.
cudaError_t AdamW(const AdamWArgs& args, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_OPTIMIZER_H_
