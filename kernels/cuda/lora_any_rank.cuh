// y [T, columns] = (accumulate ? y : 0) + addend + scale * u W^T for what ExpandKernel does not
// take: any rank up to 16, columns and rows at any multiple of an element. Included by lora.cu
// alone; C++17.
//
// Bound by reading and writing y, so by plain fp32 arithmetic: sums in the order k = 0 .. r - 1,
// one rounding. How wide the accesses are decides no bits.
#ifndef SOUP_KERNELS_CUDA_LORA_ANY_RANK_CUH_
#define SOUP_KERNELS_CUDA_LORA_ANY_RANK_CUH_

#include "kernels/cuda/lora_expand.cuh"

namespace soup::kernels::cuda::lora {

// A block makes 64 rows of 256 columns of one linear, a thread two neighbouring columns with their
// part of W in registers.
constexpr int kAnyRankThreads = 128;
constexpr int kAnyRankColumns = 2 * kAnyRankThreads;
constexpr int kAnyRankRows = 64;

__host__ __device__ constexpr int AnyRankChunks(int width) {
  return (width + kAnyRankColumns - 1) / kAnyRankColumns;
}

// Two neighbours as one word; alone: the first, beside a zero.
__device__ __forceinline__ uint32_t LoadTwo(const bf16* p, bool paired, bool both) {
  if (paired) return *reinterpret_cast<const uint32_t*>(p);
  const auto* h = reinterpret_cast<const uint16_t*>(p);
  return h[0] | (both ? static_cast<uint32_t>(h[1]) << 16 : 0u);
}
__device__ __forceinline__ void StoreTwo(bf16* p, float2 v, bool paired, bool both) {
  if (paired) {
    *reinterpret_cast<__nv_bfloat162*>(p) = __floats2bfloat162_rn(v.x, v.y);
    return;
  }
  p[0] = __float2bfloat16_rn(v.x);
  if (both) p[1] = __float2bfloat16_rn(v.y);
}
__device__ __forceinline__ float2 UnpackTwo(uint32_t v) {
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

// kRank: a.rank up to 4, 8 or 16; the columns between are zeros here (u's own may hold anything).
// Grid x: chunks of columns, linear after linear; y: rows.
template <int kRank>
__global__ void __launch_bounds__(kAnyRankThreads)
    AnyRankKernel(const __grid_constant__ ExpandArgs a) {
  BeginBehind();
  __shared__ float4 u_tile[kAnyRankRows][kRank / 4];
  // W as it lies, one float in 33 unused: the threads' rows then begin in different banks.
  __shared__ float w_tile[kAnyRankColumns * kRank / 32 * 33];
  int strip = 0, chunk = blockIdx.x, w_row = 0;
  while (chunk >= AnyRankChunks(a.strips.width[strip])) {
    chunk -= AnyRankChunks(a.strips.width[strip]);
    w_row += a.strips.width[strip++];
  }
  const int width = a.strips.width[strip], from = chunk * kAnyRankColumns;
  const int first = blockIdx.y * kAnyRankRows, rows = min(kAnyRankRows, a.T - first);

  const bf16* u = a.u + static_cast<int64_t>(first) * a.ldu + strip * (a.ldu / a.strips.count);
  float* const u_flat = reinterpret_cast<float*>(u_tile);
#pragma unroll
  for (int i = threadIdx.x; i < kAnyRankRows * kRank; i += kAnyRankThreads) {
    const int t = i / kRank, k = i % kRank;
    u_flat[i] = t < rows && k < a.rank ? ToFloat(u[static_cast<int64_t>(t) * a.ldu + k]) : 0.f;
  }
  const bf16* w = a.w + static_cast<int64_t>(w_row + from) * a.rank;
  const int weights = min(kAnyRankColumns, width - from) * a.rank;
  for (int i = threadIdx.x; i < weights; i += kAnyRankThreads) w_tile[i + i / 32] = ToFloat(w[i]);
  __syncthreads();

  const int column = from + 2 * static_cast<int>(threadIdx.x);
  if (column >= width) return;
  const bool both = column + 1 < width;
  float w0[kRank], w1[kRank];
#pragma unroll
  for (int k = 0; k < kRank; ++k) {
    const int i = 2 * static_cast<int>(threadIdx.x) * a.rank + k, j = i + a.rank;
    w0[k] = k < a.rank ? w_tile[i + i / 32] : 0.f;
    w1[k] = k < a.rank && both ? w_tile[j + j / 32] : 0.f;
  }

  const int64_t start = first * a.ldy + a.strips.column[strip] + column;
  bf16* const y = a.y + start;
  const bf16* const addend = a.addend == nullptr ? nullptr : a.addend + start;
  const bool paired =
      both && a.ldy % 2 == 0 &&
      ((reinterpret_cast<uintptr_t>(y) | reinterpret_cast<uintptr_t>(addend)) & 3) == 0;
  constexpr int kAhead = 8;  // rows whose loads are on their way at a time
  for (int t0 = 0; t0 < rows; t0 += kAhead) {
    uint32_t before[kAhead], more[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool valid = t0 + i < rows;
      const int64_t at = (t0 + i) * a.ldy;
      before[i] = valid && a.accumulate ? LoadTwo(y + at, paired, both) : 0u;
      more[i] = valid && addend != nullptr ? LoadTwo(addend + at, paired, both) : 0u;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (t0 + i >= rows) break;
      float2 sum = make_float2(0.f, 0.f);
#pragma unroll
      for (int k = 0; k < kRank; k += 4) {
        const float4 x = u_tile[t0 + i][k / 4];
        sum.x = fmaf(x.x, w0[k], sum.x);
        sum.y = fmaf(x.x, w1[k], sum.y);
        sum.x = fmaf(x.y, w0[k + 1], sum.x);
        sum.y = fmaf(x.y, w1[k + 1], sum.y);
        sum.x = fmaf(x.z, w0[k + 2], sum.x);
        sum.y = fmaf(x.z, w1[k + 2], sum.y);
        sum.x = fmaf(x.w, w0[k + 3], sum.x);
        sum.y = fmaf(x.w, w1[k + 3], sum.y);
      }
      const float2 b = UnpackTwo(before[i]), m = UnpackTwo(more[i]);
      StoreTwo(y + (t0 + i) * a.ldy,
               make_float2(fmaf(a.scale, sum.x, b.x + m.x), fmaf(a.scale, sum.y, b.y + m.y)),
               paired, both);
    }
  }
}

}  // namespace soup::kernels::cuda::lora

#endif  // SOUP_KERNELS_CUDA_LORA_ANY_RANK_CUH_
