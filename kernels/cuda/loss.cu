#include <cmath>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/loss.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 512;
constexpr int kRowBlock = 256;

// What a slice does to a row's gradient so far: zero, or by the factor that its sum changed by.
__device__ __forceinline__ void RescaleGradient(const LossSliceArgs& a, float factor) {
  float4* grad = reinterpret_cast<float4*>(a.grad + blockIdx.x * a.H);
  const int64_t vectors = a.H / 4;
  if (a.first) {
    for (int64_t c = threadIdx.x; c < vectors; c += kBlock)
      grad[c] = make_float4(0.f, 0.f, 0.f, 0.f);
  } else if (factor != 1.f) {
    for (int64_t c = threadIdx.x; c < vectors; c += kBlock) {
      float4 g = grad[c];
      g.x *= factor;
      g.y *= factor;
      g.z *= factor;
      g.w *= factor;
      grad[c] = g;
    }
  }
}

// A NaN wins, so that a poisoned row is seen as such.
__device__ __forceinline__ float Greater(float a, float b) { return (a > b || a != a) ? a : b; }

// Vector c of 4 of a row of p, which lies over the row of logits.
__device__ __forceinline__ void StoreP(float4* row, int c, const float (&p)[4], bf16) {
  __nv_bfloat162* to = reinterpret_cast<__nv_bfloat162*>(row) + 2 * c;
  to[0] = __floats2bfloat162_rn(p[0], p[1]);
  to[1] = __floats2bfloat162_rn(p[2], p[3]);
}
__device__ __forceinline__ void StoreP(float4* row, int c, const float (&p)[4], float) {
  row[c] = make_float4(p[0], p[1], p[2], p[3]);
}

// The row in registers: logits are read once. Rows of at most kHeld * kBlock * 4, in whole vectors.
constexpr int kHeld = 4;

template <typename T, bool CAP>
__global__ void __launch_bounds__(kBlock) HeldSliceKernel(LossSliceArgs a) {
  __shared__ float shared[32];
  const int64_t i = blockIdx.x;
  float4* row = reinterpret_cast<float4*>(a.logits + i * a.Vs);
  const int vectors = static_cast<int>(a.Vs / 4);
  const int64_t target = a.targets[i] - a.v0;
  float v[kHeld][4];
  float best = -INFINITY;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int c = threadIdx.x + k * kBlock;
    float4 x = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if (c < vectors) x = __ldcs(row + c);
    v[k][0] = x.x;
    v[k][1] = x.y;
    v[k][2] = x.z;
    v[k][3] = x.w;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (CAP && c < vectors) v[k][e] = a.soft_cap * tanhf(v[k][e] / a.soft_cap);
      best = Greater(v[k][e], best);
      if (c < vectors && 4 * c + e == target) a.target_logit[i] = v[k][e];
    }
  }
  if (a.first && threadIdx.x == 0 && (target < 0 || target >= a.Vs)) a.target_logit[i] = 0.f;
  best = BlockMax(best, shared);  // every thread has read its part
  const float m_old = a.first ? -INFINITY : a.m[i];
  const float m_new = Greater(m_old, best);
  // exp(-inf - finite) is 0, as wanted on the first slice; -inf - -inf cannot happen with finite
  // logits.
  const float factor = a.first ? 0.f : __expf(m_old - m_new);
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int c = threadIdx.x + k * kBlock;
    if (c >= vectors) continue;
    float p[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      p[e] = __expf(v[k][e] - m_new);
      sum += p[e];
      if (CAP) p[e] *= 1.f - (v[k][e] / a.soft_cap) * (v[k][e] / a.soft_cap);
    }
    if (!a.with_grad) continue;
    StoreP(row, c, p, T());
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) {
    a.m[i] = m_new;
    a.l[i] = (a.first ? 0.f : a.l[i] * factor) + sum;
  }
  if (a.with_grad) RescaleGradient(a, factor);
}

// Rows of any length.
template <typename T, bool CAP>
__global__ void __launch_bounds__(kBlock) SliceKernel(LossSliceArgs a) {
  __shared__ float shared[32];
  const int64_t i = blockIdx.x;
  float* row = a.logits + i * a.Vs;
  float best = -INFINITY;
  for (int64_t j = threadIdx.x; j < a.Vs; j += kBlock) {
    float v = row[j];
    if (CAP) {
      v = a.soft_cap * tanhf(v / a.soft_cap);
      row[j] = v;
    }
    best = Greater(best, v);
  }
  best = BlockMax(best, shared);
  const float m_old = a.first ? -INFINITY : a.m[i];
  const float m_new = Greater(m_old, best);
  // exp(-inf - finite) is 0, as wanted on the first slice; -inf - -inf cannot happen with finite
  // logits.
  const float factor = a.first ? 0.f : __expf(m_old - m_new);

  // BlockMax has parted the writing of capped logits from reading them.
  const int64_t target = a.targets[i] - a.v0;
  if (threadIdx.x == 0) {
    if (target >= 0 && target < a.Vs) {
      a.target_logit[i] = row[target];
    } else if (a.first) {
      a.target_logit[i] = 0.f;
    }
  }
  __syncthreads();

  // p over the fp32 logits, fp32 each in its own place, or bf16: chunk c reads bytes [4 c B, 4 (c +
  // 1) B) and writes [2 c B, 2 (c + 1) B), which every thread has read by then: the barrier parts
  // reading from writing.
  T* p = reinterpret_cast<T*>(row);
  float sum = 0.f;
  for (int64_t j0 = 0; j0 < a.Vs; j0 += kBlock) {
    const int64_t j = j0 + threadIdx.x;
    float e = 0.f;
    if (j < a.Vs) {
      const float v = row[j];
      e = __expf(v - m_new);
      sum += e;
      if (CAP) e *= 1.f - (v / a.soft_cap) * (v / a.soft_cap);
    }
    __syncthreads();
    if (j < a.Vs && a.with_grad) p[j] = FromFloat<T>(e);
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) {
    a.m[i] = m_new;
    a.l[i] = (a.first ? 0.f : a.l[i] * factor) + sum;
  }
  if (a.with_grad) RescaleGradient(a, factor);
}

__global__ void __launch_bounds__(kRowBlock)
    TargetRowsKernel(const uint4* __restrict__ weight, const int32_t* __restrict__ targets,
                     uint4* __restrict__ out, int64_t v0, int64_t Vs, int width) {
  const int64_t target = targets[blockIdx.x] - v0;
  if (target < 0 || target >= Vs) return;
  for (int c = threadIdx.x; c < width; c += kRowBlock) {
    out[static_cast<int64_t>(blockIdx.x) * width + c] = weight[target * width + c];
  }
}

template <typename V>
__global__ void __launch_bounds__(kRowBlock) FinishKernel(LossFinishArgs a) {
  const int64_t i = blockIdx.x;
  const float l = a.l[i];
  if (threadIdx.x == 0) a.loss[i] = logf(l) + a.m[i] - a.target_logit[i];
  if (a.dh == nullptr) return;
  const float inv_l = 1.f / l;
  const float capped = a.soft_cap > 0.f ? a.target_logit[i] / a.soft_cap : 0.f;
  const float slope = 1.f - capped * capped;
  const float4* grad = reinterpret_cast<const float4*>(a.grad + i * a.H);
  const uint4* target = static_cast<const uint4*>(a.target_row) + i * (a.H / kVector);
  V* dh = static_cast<V*>(a.dh) + i * (a.H / kVector);
  for (int64_t c = threadIdx.x; c < a.H / kVector; c += kRowBlock) {
    const float4 g0 = grad[2 * c], g1 = grad[2 * c + 1];
    const float g[8] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
    float w[8], d[8];
    Unpack8(target[c], w);
#pragma unroll
    for (int k = 0; k < 8; ++k) d[k] = (g[k] * inv_l - w[k] * slope) * a.scale;
    dh[c] = PackAs<V>(d);
  }
}

}  // namespace

cudaError_t LossSlice(const LossSliceArgs& a, cudaStream_t stream, ActType act) {
  if (a.H % kVector != 0 || a.Vs < 1) return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  const bool held = a.Vs % 4 == 0 && a.Vs <= int64_t{kHeld} * 4 * kBlock && Aligned16(a.logits);
  const bool cap = a.soft_cap > 0.f;
  return WithActType(act, [&](auto t) {
    using T = decltype(t);
    const auto kernel = held ? (cap ? HeldSliceKernel<T, true> : HeldSliceKernel<T, false>)
                             : (cap ? SliceKernel<T, true> : SliceKernel<T, false>);
    kernel<<<static_cast<unsigned>(a.n), kBlock, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t LossTargetRows(const LossTargetRowsArgs& a, cudaStream_t stream) {
  if (a.H % kVector != 0 || !Aligned16(a.weight) || !Aligned16(a.target_row))
    return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  TargetRowsKernel<<<static_cast<unsigned>(a.n), kRowBlock, 0, stream>>>(
      static_cast<const uint4*>(a.weight), a.targets, static_cast<uint4*>(a.target_row), a.v0, a.Vs,
      static_cast<int>(a.H / kVector));
  return cudaGetLastError();
}

cudaError_t LossFinish(const LossFinishArgs& a, cudaStream_t stream, ActType act) {
  if (a.H % kVector != 0) return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  const auto kernel =
      act == ActType::kF32 ? FinishKernel<Vector<float>> : FinishKernel<Vector<bf16>>;
  kernel<<<static_cast<unsigned>(a.n), kRowBlock, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
