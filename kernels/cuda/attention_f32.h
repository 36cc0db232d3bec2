// Attention on CUDA in fp32 (ActType::kF32): the contract of attention.h, with q, k, v, out and all
// gradients fp32, products by FMA instead of the tensor cores. For models whose routing must not
// see bf16's rounding; slow: the arithmetic of fp32 units, a few percent of the bf16 kernels' rate.
// One CTA makes AttentionF32Rows(D) rows of one head, tiles in shared memory, online softmax, a
// two-pass backward (dq; then dk and dv, whose CTA walks the query heads of its group in order). No
// atomics, no S^2 memory, one fixed order of sums: bitwise repeatable.
//
// row_stride and grad_row_stride are multiples of 4 elements and pointers 16-byte aligned. Head
// dims 16, 32, 64, 96, 128, 256. lse and delta are [Hq, T]. kv_split is always 1: no partials.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_F32_H_
#define SOUP_KERNELS_CUDA_ATTENTION_F32_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/ops.h"

namespace soup::kernels::cuda {

// Rows of a tile, queries and keys alike.
constexpr int AttentionF32Rows(int64_t D) { return D > 128 ? 16 : 32; }

// As MakeAttentionSchedule (attention_schedule.cc).
cudaError_t MakeAttentionF32Schedule(const int32_t* cu_seqlens, int64_t sequences, int64_t Hq,
                                     int64_t Hkv, int64_t D, const AttentionVariant& variant,
                                     AttentionSchedule* out);

// Errors: cudaErrorInvalidValue for a head dim, stride or alignment that is not supported.
cudaError_t AttentionF32Forward(const AttentionForwardArgs& args, const AttentionVariant& variant,
                                const AttentionTiles& tiles, cudaStream_t stream);
cudaError_t AttentionF32Backward(const AttentionBackwardArgs& args, const AttentionVariant& variant,
                                 const AttentionTiles& tiles, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_ATTENTION_F32_H_
