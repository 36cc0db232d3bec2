// What the CUDA ops share: vectors of 8 activations (bf16: 16 bytes, fp32: 32), sums in fixed
// order, grids. Device code only; C++17.
#ifndef SOUP_KERNELS_CUDA_COMMON_CUH_
#define SOUP_KERNELS_CUDA_COMMON_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/act_type.h"

namespace soup::kernels::cuda {

using bf16 = __nv_bfloat16;

inline constexpr int kVector = 8;  // values in a vector; bf16: 16 bytes

// 8 fp32 values: two 16-byte accesses.
struct F32x8 {
  float4 low, high;
};
// An activation's type and 8 of it as they lie in memory.
template <typename T>
struct ActVector;
template <>
struct ActVector<bf16> {
  using Type = uint4;
};
template <>
struct ActVector<float> {
  using Type = F32x8;
};
template <typename T>
using Vector = typename ActVector<T>::Type;

__device__ __forceinline__ float ToFloat(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(float x) { return x; }
template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ bf16 FromFloat<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Rounded to bf16, the lower 16 bits first.
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// 32 bits, of shared memory.
__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

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

__device__ __forceinline__ void Unpack8(const F32x8& v, float (&f)[8]) {
  f[0] = v.low.x;
  f[1] = v.low.y;
  f[2] = v.low.z;
  f[3] = v.low.w;
  f[4] = v.high.x;
  f[5] = v.high.y;
  f[6] = v.high.z;
  f[7] = v.high.w;
}

template <typename V>
__device__ __forceinline__ V PackAs(const float (&f)[8]);
template <>
__device__ __forceinline__ uint4 PackAs<uint4>(const float (&f)[8]) {
  return Pack8(f);
}
template <>
__device__ __forceinline__ F32x8 PackAs<F32x8>(const float (&f)[8]) {
  return {make_float4(f[0], f[1], f[2], f[3]), make_float4(f[4], f[5], f[6], f[7])};
}

// Read once: the cache need not keep it.
__device__ __forceinline__ uint4 LoadOnce(const uint4* p) { return __ldcs(p); }
__device__ __forceinline__ F32x8 LoadOnce(const F32x8* p) {
  const float4* q = reinterpret_cast<const float4*>(p);
  return {__ldcs(q), __ldcs(q + 1)};
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

// Whose turn it is: from the last row to the first. The product before has left its last rows in
// the cache, the one behind begins with the first.
__device__ __forceinline__ unsigned FromTheEnd(unsigned i, unsigned n) { return n - 1 - i; }

// Blocks for a grid-stride loop over n work units: enough to fill any card, few enough to be cheap.
inline unsigned GridFor(int64_t n, int64_t per_block) {
  const int64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}

// Calls run(T()) with the activation's type.
template <typename Run>
cudaError_t WithActType(ActType type, const Run& run) {
  return type == ActType::kF32 ? run(float()) : run(bf16());
}

inline bool Aligned16(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_COMMON_CUH_
