// Mixture of experts on CUDA: bf16 rows, fp32 routing and sums. Contracts in kernels/ops.h. H and I
// multiples of 8, E at most 4096, pointers 16-byte aligned, else cudaErrorInvalidValue. No atomics,
// sums in one fixed order: bitwise repeatable.
#ifndef SOUP_KERNELS_CUDA_MOE_H_
#define SOUP_KERNELS_CUDA_MOE_H_

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

cudaError_t Route(const RouteArgs& args, cudaStream_t stream);
cudaError_t RouteBackward(const RouteBackwardArgs& args, cudaStream_t stream);
cudaError_t ListExperts(const ListExpertsArgs& args, cudaStream_t stream);
cudaError_t GatherEntries(const GatherEntriesArgs& args, cudaStream_t stream);
cudaError_t ScatterEntries(const ScatterEntriesArgs& args, cudaStream_t stream);
cudaError_t EntryGrad(const EntryGradArgs& args, cudaStream_t stream);
// n a multiple of 8.
cudaError_t AddF32(const AddF32Args& args, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_MOE_H_
