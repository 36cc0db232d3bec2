#include "kernels/cuda/common.cuh"
#include "kernels/cuda/norm.h"

namespace soup::kernels::cuda {
namespace {

// Vectors of 8 a thread holds in registers: rows up to kBlock * kHeld * 8 = 16384 wide are read
// once.
constexpr int kHeld = 4;
constexpr int kBlock = 512;

unsigned BlockFor(int64_t H) {
  const int64_t vectors = H / kVector;
  int64_t threads = (vectors + kHeld - 1) / kHeld;
  threads = (threads + 31) / 32 * 32;
  return static_cast<unsigned>(threads < 32 ? 32 : threads > kBlock ? kBlock : threads);
}

// x, y [T, H]; grid T, block BlockFor(H).
__global__ void __launch_bounds__(kBlock)
    ForwardKernel(const uint4* __restrict__ x, const uint4* __restrict__ weight,
                  uint4* __restrict__ y, float* __restrict__ rstd, int vectors, float inv_h,
                  float eps) {
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * vectors;
  uint4 held[kHeld];
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int c = threadIdx.x + k * blockDim.x;
    if (c >= vectors) continue;
    held[k] = x[row + c];
    float f[8];
    Unpack8(held[k], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(f[i], f[i], sum);
  }
  for (int c = threadIdx.x + kHeld * blockDim.x; c < vectors; c += blockDim.x) {
    float f[8];
    Unpack8(x[row + c], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(f[i], f[i], sum);
  }
  const float r = rsqrtf(BlockSum(sum, shared) * inv_h + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  for (int k = 0, c = threadIdx.x; c < vectors; ++k, c += blockDim.x) {
    float f[8], w[8];
    Unpack8(k < kHeld ? held[k] : x[row + c], f);
    Unpack8(__ldg(weight + c), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] *= r * w[i];
    y[row + c] = Pack8(f);
  }
}

// dx (+)= r * (dy w - x * r^2 * mean(dy w x)); grid T.
__global__ void __launch_bounds__(kBlock)
    BackwardKernel(const uint4* __restrict__ dy, const uint4* __restrict__ x,
                   const uint4* __restrict__ weight, const float* __restrict__ rstd, uint4* dx,
                   int vectors, float inv_h, bool accumulate) {
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * vectors;
  float dot = 0.f;
  for (int c = threadIdx.x; c < vectors; c += blockDim.x) {
    float fx[8], g[8], w[8];
    Unpack8(x[row + c], fx);
    Unpack8(dy[row + c], g);
    Unpack8(__ldg(weight + c), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) dot = fmaf(g[i] * w[i], fx[i], dot);
  }
  const float r = rstd[blockIdx.x];
  const float k = r * r * BlockSum(dot, shared) * inv_h;
  for (int c = threadIdx.x; c < vectors; c += blockDim.x) {
    float fx[8], g[8], w[8], out[8];
    Unpack8(x[row + c], fx);
    Unpack8(dy[row + c], g);
    Unpack8(__ldg(weight + c), w);
    if (accumulate) {
      Unpack8(dx[row + c], out);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] += r * (g[i] * w[i] - fx[i] * k);
    dx[row + c] = Pack8(out);
  }
}

}  // namespace

cudaError_t RmsNormForward(const RmsNormForwardArgs& a, cudaStream_t stream) {
  if (a.H % kVector != 0 || !Aligned16(a.x) || !Aligned16(a.y) || !Aligned16(a.weight))
    return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  ForwardKernel<<<static_cast<unsigned>(a.T), BlockFor(a.H), 0, stream>>>(
      static_cast<const uint4*>(a.x), reinterpret_cast<const uint4*>(a.weight),
      static_cast<uint4*>(a.y), a.rstd, static_cast<int>(a.H / kVector),
      1.f / static_cast<float>(a.H), a.eps);
  return cudaGetLastError();
}

cudaError_t RmsNormBackward(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  if (a.H % kVector != 0 || !Aligned16(a.x) || !Aligned16(a.dy) || !Aligned16(a.dx) ||
      !Aligned16(a.weight)) {
    return cudaErrorInvalidValue;
  }
  if (a.T == 0) return cudaSuccess;
  BackwardKernel<<<static_cast<unsigned>(a.T), BlockFor(a.H), 0, stream>>>(
      static_cast<const uint4*>(a.dy), static_cast<const uint4*>(a.x),
      reinterpret_cast<const uint4*>(a.weight), a.rstd, static_cast<uint4*>(a.dx),
      static_cast<int>(a.H / kVector), 1.f / static_cast<float>(a.H), a.accumulate);
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
