#include "kernels/cuda/common.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/rope.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 256;

// A thread takes 8 angles of one token and turns those pairs in kHeads heads: sincos once, heads
// read with 16-byte loads, several of them on their way at once. Grid x: (token, group of 8
// angles); y: heads.
constexpr int kHeads = 8, kTogether = 4;

template <typename T>
__global__ void __launch_bounds__(kBlock)
    RopeKernel(T* x, const int32_t* __restrict__ positions, const float* __restrict__ inv_freq,
               int64_t tokens, int heads, int D, int rotary, int64_t row_stride, float sign,
               float scale) {
  BeginBehind();
  const int groups = rotary / 16;
  const int64_t i = FromTheEnd(blockIdx.x, gridDim.x) * static_cast<int64_t>(kBlock) + threadIdx.x;
  if (i >= tokens * groups) return;
  const int64_t t = i / groups;
  const int g = static_cast<int>(i - t * groups);
  const int first = blockIdx.y * kHeads, end = min(first + kHeads, heads);
  T* const row = x + t * row_stride + 8 * g;
  float c[8], s[8];
  const float position = static_cast<float>(positions[t]);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    sincosf(position * __ldg(inv_freq + 8 * g + k), &s[k], &c[k]);
    c[k] *= scale;
    s[k] *= sign * scale;
  }
  for (int h = first; h < end; h += kTogether) {
    Vector<T> low[kTogether], high[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (h + j >= end) continue;
      const T* head = row + static_cast<int64_t>(h + j) * D;
      low[j] = *reinterpret_cast<const Vector<T>*>(head);
      high[j] = *reinterpret_cast<const Vector<T>*>(head + rotary / 2);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (h + j >= end) continue;
      float a[8], b[8], ra[8], rb[8];
      Unpack8(low[j], a);
      Unpack8(high[j], b);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        ra[k] = a[k] * c[k] - b[k] * s[k];
        rb[k] = b[k] * c[k] + a[k] * s[k];
      }
      T* head = row + static_cast<int64_t>(h + j) * D;
      *reinterpret_cast<Vector<T>*>(head) = PackAs<Vector<T>>(ra);
      *reinterpret_cast<Vector<T>*>(head + rotary / 2) = PackAs<Vector<T>>(rb);
    }
  }
}

}  // namespace

cudaError_t Rope(const RopeArgs& a, cudaStream_t stream, ActType act) {
  const int64_t rotary = a.rotary > 0 ? a.rotary : a.D;
  if (a.D % kVector != 0 || rotary % 16 != 0 || rotary > a.D || a.row_stride % kVector != 0 ||
      !Aligned16(a.x))
    return cudaErrorInvalidValue;
  if (a.T == 0 || a.heads == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using T = decltype(t);
    const dim3 grid(static_cast<unsigned>((a.T * (rotary / 16) + kBlock - 1) / kBlock),
                    static_cast<unsigned>((a.heads + kHeads - 1) / kHeads));
    return LaunchBehind(RopeKernel<T>, grid, kBlock, 0, stream, static_cast<T*>(a.x), a.positions,
                        a.inv_freq, a.T, static_cast<int>(a.heads), static_cast<int>(a.D),
                        static_cast<int>(rotary), a.row_stride, a.inverse ? -1.f : 1.f, a.scale);
  });
}

}  // namespace soup::kernels::cuda
