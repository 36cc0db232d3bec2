// Mixture of experts on CUDA: rows of bf16 or fp32 (`act`), fp32 routing and sums. Contracts in
// kernels/ops.h. H and I multiples of 8, E at most 4096, pointers 16-byte aligned, else
// cudaErrorInvalidValue. No atomics, sums in one fixed order: bitwise repeatable.
#ifndef SOUP_KERNELS_CUDA_MOE_H_
#define SOUP_KERNELS_CUDA_MOE_H_

#include <cuda_runtime.h>

#include "kernels/cuda/act_type.h"
#include "kernels/ops.h"

namespace soup::kernels::cuda {

cudaError_t Route(const RouteArgs& args, cudaStream_t stream);
cudaError_t RouteBackward(const RouteBackwardArgs& args, cudaStream_t stream,
                          ActType act = ActType::kBf16);
cudaError_t ListExperts(const ListExpertsArgs& args, cudaStream_t stream);
cudaError_t GatherEntries(const GatherEntriesArgs& args, cudaStream_t stream,
                          ActType act = ActType::kBf16);
cudaError_t ScatterEntries(const ScatterEntriesArgs& args, cudaStream_t stream,
                           ActType act = ActType::kBf16);
cudaError_t EntryGrad(const EntryGradArgs& args, cudaStream_t stream, ActType act = ActType::kBf16);
// n a multiple of 8.
cudaError_t AddF32(const AddF32Args& args, cudaStream_t stream, ActType act = ActType::kBf16);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_MOE_H_
