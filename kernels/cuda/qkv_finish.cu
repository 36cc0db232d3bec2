#include "kernels/cuda/common.cuh"
#include "kernels/cuda/qkv_finish.h"
#include "kernels/cuda/rope.h"
#include "kernels/lora_products.h"
#include "kernels/qkv_ops.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 2;  // of a group of lanes: what it has read of B serves them all
// A block's rows times half of the turned dimensions, at most: 32 / lanes * kRows rows, 8 values a
// lane.
constexpr int kAngles = 32 * kRows * kVector / 2;

// Lanes that share a head: a power of two, 8 values each or none.
int LanesOf(int64_t D) {
  int lanes = 1;
  while (lanes * kVector < D) lanes *= 2;
  return lanes;
}

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

// f[j][e] += lora_scale * u B^T of rows t0 + j and the lane's 8 columns, from `row` of B on.
template <bool kWhole>
__device__ __forceinline__ void AddAdapters(const QkvFinishArgs& a, int64_t t0, int64_t u_column,
                                            int64_t ldu, int64_t row, float (&f)[kRows][8]) {
  const bf16* u0 = static_cast<const bf16*>(a.u) + u_column;
  const bf16* b0 = static_cast<const bf16*>(a.b) + row * a.r;
  const int r = static_cast<int>(a.r);
  for (int k0 = 0; k0 < r; k0 += 8) {
    float u[kRows][8] = {};
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      if (t0 + j < a.T) LoadRanks<kWhole>(u0 + (t0 + j) * ldu, k0, r, u[j]);
#pragma unroll
      for (int k = 0; k < 8; ++k) u[j][k] *= a.lora_scale;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float b[8];
      LoadRanks<kWhole>(b0 + e * a.r, k0, r, b);
#pragma unroll
      for (int j = 0; j < kRows; ++j)
#pragma unroll
        for (int k = 0; k < 8; ++k) f[j][e] = fmaf(u[j][k], b[k], f[j][e]);
    }
  }
}

// The sum over a head's lanes.
__device__ __forceinline__ float HeadSum(float x, int lanes) {
  for (int o = lanes / 2; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// A block has some rows, its warps take their heads in turn: sines and cosines are made once a row.
// lanes: LanesOf(D); 32 / lanes groups of them share a warp, each with kRows rows. Grid x: rows; y:
// `each` heads. c: columns of u that a linear has.
template <bool kWhole>
__global__ void __launch_bounds__(kWarps * 32, 2)
    FinishKernel(const __grid_constant__ QkvFinishArgs a, int lanes, int each, int c) {
  __shared__ float2 angles[kAngles];  // sine, cosine
  const int lane = threadIdx.x & 31, l = lane & (lanes - 1), group = lane / lanes;
  const int rows = 32 / lanes * kRows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows, t0 = first + group * kRows;
  const int half = a.rope.positions == nullptr ? 0 : static_cast<int>(a.rope.rotary) / 2;
  for (int i = threadIdx.x; i < rows * half; i += kWarps * 32) {
    const int row = i / half;
    if (first + row >= a.T) break;
    const float position = static_cast<float>(a.rope.positions[first + row]);
    sincosf(position * __ldg(a.rope.inv_freq + (i - row * half)), &angles[i].x, &angles[i].y);
  }
  __syncthreads();

  const int heads = static_cast<int>(a.Hq + 2 * a.Hkv), turned = static_cast<int>(a.Hq + a.Hkv);
  const int end = min(heads, static_cast<int>(blockIdx.y + 1) * each);
  const bool holds = l * kVector < a.D;
  for (int h = blockIdx.y * each + threadIdx.x / 32; h < end; h += kWarps) {
    const int64_t column = h * a.D + l * kVector;
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
      AddAdapters<kWhole>(a, t0, m * c, a.linears.count * c, before + at, f);
    }

    const bool turns = h < turned;
    const uint16_t* norm = h < a.Hq ? a.q_norm : a.k_norm;
    if (turns && norm != nullptr) {
      float w[8] = {};
      if (holds) Unpack8(__ldg(reinterpret_cast<const uint4*>(norm) + l), w);
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (holds && t0 + j < a.T) {
          const int64_t at = (t0 + j) * a.row_stride + column;
          *reinterpret_cast<uint4*>(static_cast<bf16*>(a.saved) + at) = Pack8(f[j]);
        }
        float squares = 0.f;
#pragma unroll
        for (int e = 0; e < 8; ++e) squares = fmaf(f[j][e], f[j][e], squares);
        const float rstd = rsqrtf(HeadSum(squares, lanes) / static_cast<float>(a.D) + a.eps);
#pragma unroll
        for (int e = 0; e < 8; ++e) f[j][e] *= rstd * (w[e] + a.weight_offset);
      }
    }
    if (turns && half > 0) {
      // A value's partner lies half of the turned dimensions away, in another lane.
      const int apart = half / kVector;
      const bool low = l < apart, in = l < 2 * apart;
      const int partner = in ? lane + (low ? apart : -apart) : lane;
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const float2* turn = angles + (group * kRows + j) * half + (low ? l : l - apart) * kVector;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const float other = __shfl_sync(~0u, f[j][e], partner);
          if (!in || t0 + j >= a.T) continue;
          const float2 by = turn[e];
          const float v = low ? f[j][e] * by.y - other * by.x : f[j][e] * by.y + other * by.x;
          f[j][e] = v * a.rope.scale;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      if (!holds || t0 + j >= a.T) continue;
      const int64_t at = (t0 + j) * a.row_stride + column;
      *reinterpret_cast<uint4*>(static_cast<bf16*>(a.y) + at) = Pack8(f[j]);
    }
  }
}

bool Taken(const QkvFinishArgs& a) {
  const bool normed = a.q_norm != nullptr;
  if (a.D < 1 || a.D % kVector != 0 || a.D > 32 * kVector || !HeadRopeTaken(a.rope, a.D))
    return false;
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
  const int lanes = LanesOf(a.D), rows = 32 / lanes * kRows;
  const int heads = static_cast<int>(a.Hq + 2 * a.Hkv);
  const auto x = static_cast<unsigned>((a.T + rows - 1) / rows);
  // Heads apart where rows alone do not fill a large card. Decides no bits.
  const int each = x >= 264 ? heads : kWarps;
  const dim3 grid(x, static_cast<unsigned>((heads + each - 1) / each));
  const bool whole = a.linears.count == 0 || (a.r % kVector == 0 && Aligned16(a.b));
  const auto kernel = whole ? FinishKernel<true> : FinishKernel<false>;
  kernel<<<grid, kWarps * 32, 0, stream>>>(a, lanes, each, static_cast<int>(LoraColumns(a.r)));
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
