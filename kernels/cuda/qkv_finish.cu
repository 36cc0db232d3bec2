#include "kernels/cuda/head_lanes.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/qkv_finish.h"
#include "kernels/lora_products.h"
#include "kernels/qkv_ops.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 4;  // a warp: what it has read of B serves them all

// Ranks k0 .. k0 + 7 of one row of u or B; those from r on are 0, whatever lies there.
template <bool kWhole>
__device__ __forceinline__ void LoadRanks(const bf16* row, int k0, int r, float (&out)[8]) {
  if constexpr (kWhole) {
    Unpack8(__ldg(reinterpret_cast<const uint4*>(row + k0)), out);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) out[k] = k0 + k < r ? __bfloat162float(row[k0 + k]) : 0.f;
  }
}

// sum[j][e] = u B^T of the warp's rows j and the lane's 8 columns, from `row` of B on.
template <bool kWhole>
__device__ __forceinline__ void Adapters(const QkvFinishArgs& a, int64_t t0, int64_t u_column,
                                         int64_t ldu, int64_t row, float (&sum)[kRows][8]) {
  const bf16* u0 = static_cast<const bf16*>(a.u) + u_column;
  const bf16* b0 = static_cast<const bf16*>(a.b) + row * a.r;
  const int r = static_cast<int>(a.r);
  for (int k0 = 0; k0 < r; k0 += 8) {
    float u[kRows][8] = {};
#pragma unroll
    for (int j = 0; j < kRows; ++j)
      if (t0 + j < a.T) LoadRanks<kWhole>(u0 + (t0 + j) * ldu, k0, r, u[j]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float b[8];
      LoadRanks<kWhole>(b0 + e * a.r, k0, r, b);
#pragma unroll
      for (int j = 0; j < kRows; ++j)
#pragma unroll
        for (int k = 0; k < 8; ++k) sum[j][e] = fmaf(u[j][k], b[k], sum[j][e]);
    }
  }
}

// c: columns of u that a linear has.
template <bool kWhole>
__global__ void __launch_bounds__(kWarps * 32)
    FinishKernel(const __grid_constant__ QkvFinishArgs a, int c) {
  const int heads = static_cast<int>(a.Hq + 2 * a.Hkv);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t t0 = i / heads * kRows;
  if (t0 >= a.T) return;
  const int h = static_cast<int>(i % heads), lane = threadIdx.x & 31;
  const bool holds = lane * kVector < a.D;
  const int64_t column = h * a.D + lane * kVector;

  float f[kRows][8] = {};
  float bias[8] = {};
  if (holds && a.bias != nullptr)
    Unpack8(__ldg(reinterpret_cast<const uint4*>(a.bias + column)), bias);
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const int64_t t = t0 + j;
    if (!holds || t >= a.T) continue;
    const float4* x = reinterpret_cast<const float4*>(a.x + t * a.x_row_stride + column);
    const float4 low = x[0], high = x[1];
    const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int e = 0; e < 8; ++e) f[j][e] = t < a.biased_rows ? v[e] + bias[e] : v[e];
  }

  int64_t before = 0;
  for (int m = 0; m < a.linears.count; before += a.linears.width[m++]) {
    const int64_t at = column - a.linears.column[m];
    if (!holds || at < 0 || at >= a.linears.width[m]) continue;
    float sum[kRows][8] = {};
    Adapters<kWhole>(a, t0, m * c, a.linears.count * c, before + at, sum);
#pragma unroll
    for (int j = 0; j < kRows; ++j)
#pragma unroll
      for (int e = 0; e < 8; ++e) f[j][e] = fmaf(a.lora_scale, sum[j][e], f[j][e]);
  }

  const bool turns = h < a.Hq + a.Hkv;
  const uint16_t* norm = h < a.Hq ? a.q_norm : a.k_norm;
  float w[8] = {};
  if (turns && norm != nullptr && holds)
    Unpack8(__ldg(reinterpret_cast<const uint4*>(norm) + lane), w);
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const int64_t t = t0 + j;
    if (t >= a.T) break;  // the whole warp
    const int64_t at = t * a.row_stride + column;
    if (turns && norm != nullptr) {
      if (holds) *reinterpret_cast<uint4*>(static_cast<bf16*>(a.saved) + at) = Pack8(f[j]);
      float squares = 0.f;
#pragma unroll
      for (int e = 0; e < 8; ++e) squares = fmaf(f[j][e], f[j][e], squares);
      const float rstd = rsqrtf(WarpSum(squares) / static_cast<float>(a.D) + a.eps);
#pragma unroll
      for (int e = 0; e < 8; ++e) f[j][e] *= rstd * (w[e] + a.weight_offset);
    }
    if (turns) Turn(a.rope, t, lane, 1.f, f[j]);
    if (holds) *reinterpret_cast<uint4*>(static_cast<bf16*>(a.y) + at) = Pack8(f[j]);
  }
}

bool Taken(const QkvFinishArgs& a) {
  const bool normed = a.q_norm != nullptr;
  if (a.D < 1 || a.D % kVector != 0 || a.D > 32 * kVector || BadRope(a.rope, a.D)) return false;
  if (a.row_stride % kVector != 0 || a.x_row_stride % kVector != 0) return false;
  if (!Aligned16(a.x) || !Aligned16(a.y) || !Aligned16(a.bias) || !Aligned16(a.u)) return false;
  if (normed != (a.k_norm != nullptr) || (normed && a.saved == nullptr)) return false;
  if (!Aligned16(a.saved) || !Aligned16(a.q_norm) || !Aligned16(a.k_norm)) return false;
  return WholeHeads(a.linears, a.D) && (a.linears.count == 0 || a.r >= 1);
}

}  // namespace

cudaError_t QkvFinish(const QkvFinishArgs& a, cudaStream_t stream) {
  if (!Taken(a)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  const int64_t warps = (a.T + kRows - 1) / kRows * (a.Hq + 2 * a.Hkv);
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  const bool whole = a.linears.count == 0 || (a.r % kVector == 0 && Aligned16(a.b));
  const auto kernel = whole ? FinishKernel<true> : FinishKernel<false>;
  kernel<<<blocks, kWarps * 32, 0, stream>>>(a, static_cast<int>(LoraColumns(a.r)));
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
