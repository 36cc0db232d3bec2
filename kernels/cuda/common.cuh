// What the CUDA ops share: 16-byte vectors of bf16, sums in fixed order, grids. Device code only;
// C++17.
#ifndef SOUP_KERNELS_CUDA_COMMON_CUH_
#define SOUP_KERNELS_CUDA_COMMON_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace soup::kernels::cuda {

using bf16 = __nv_bfloat16;

inline constexpr int kVector = 8;  // bf16 values in 16 bytes

__device__ __forceinline__ void Unpack8(uint4 v, float (&f)[8]) {
  const __nv_bfloat162* p = reinterpret_cast<const __nv_bfloat162*>(&v);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 t = __bfloat1622float2(p[i]);
    f[2 * i] = t.x;
    f[2 * i + 1] = t.y;
  }
}

__device__ __forceinline__ uint4 Pack8(const float (&f)[8]) {
  uint4 v;
  __nv_bfloat162* p = reinterpret_cast<__nv_bfloat162*>(&v);
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
  return v;
}

// Sum over the block, the same bits in every thread: butterfly in each warp, then the warps' sums
// in index order. `shared` holds 32 values; the call may follow another one on the same array (it
// synchronises first).
__device__ __forceinline__ float BlockSum(float x, float* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
  __syncthreads();
  float sum = 0.f;
  for (unsigned w = 0; w < (blockDim.x + 31) / 32; ++w) sum += shared[w];
  return sum;
}

__device__ __forceinline__ float BlockMax(float x, float* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    const float y = __shfl_xor_sync(~0u, x, o);
    // Not fmaxf: a NaN must win, so that a poisoned row is seen as such.
    x = (x > y || x != x) ? x : y;
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
  __syncthreads();
  float best = shared[0];
  for (unsigned w = 1; w < (blockDim.x + 31) / 32; ++w) {
    const float y = shared[w];
    best = (best > y || best != best) ? best : y;
  }
  return best;
}

// Blocks for a grid-stride loop over n work units: enough to fill any card, few enough to be cheap.
inline unsigned GridFor(int64_t n, int64_t per_block) {
  const int64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}

inline bool Aligned16(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_COMMON_CUH_
