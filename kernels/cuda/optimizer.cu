#include <cmath>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/optimizer.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 256;

__device__ __forceinline__ double BlockSumDouble(double x, double* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
  __syncthreads();
  double sum = 0.0;
  for (unsigned w = 0; w < kBlock / 32; ++w) sum += shared[w];
  return sum;
}

__global__ void __launch_bounds__(kBlock)
    PartialSquaresKernel(const float* __restrict__ x, int64_t n, int64_t run,
                         double* __restrict__ partials) {
  __shared__ double shared[kBlock / 32];
  const int64_t begin = blockIdx.x * run;
  const int64_t end = begin + run < n ? begin + run : n;
  double sum = 0.0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
    const double v = x[i];
    sum += v * v;
  }
  sum = BlockSumDouble(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlock)
    TotalKernel(const double* __restrict__ partials, double* __restrict__ result) {
  __shared__ double shared[kBlock / 32];
  double sum = 0.0;
  for (int i = threadIdx.x; i < kSumSquaresPartials; i += kBlock) sum += partials[i];
  sum = BlockSumDouble(sum, shared);
  if (threadIdx.x == 0) result[0] = sum;
}

__global__ void __launch_bounds__(kBlock)
    AdamWKernel(AdamWArgs a, float decay, float step_size, float inv_sqrt_bc2) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < a.n;
       i += gridDim.x * static_cast<int64_t>(kBlock)) {
    const float g = a.g[i] * a.grad_scale;
    const float m = a.beta1 * a.m[i] + (1.f - a.beta1) * g;
    const float v = a.beta2 * a.v[i] + (1.f - a.beta2) * g * g;
    a.m[i] = m;
    a.v[i] = v;
    a.w[i] = a.w[i] * decay - step_size * m / (sqrtf(v) * inv_sqrt_bc2 + a.eps);
  }
}

}  // namespace

cudaError_t SumSquares(const SumSquaresArgs& a, double* partials, cudaStream_t stream) {
  const int64_t run = (a.n + kSumSquaresPartials - 1) / kSumSquaresPartials;
  PartialSquaresKernel<<<kSumSquaresPartials, kBlock, 0, stream>>>(a.x, a.n, run, partials);
  TotalKernel<<<1, kBlock, 0, stream>>>(partials, a.result);
  return cudaGetLastError();
}

cudaError_t AdamW(const AdamWArgs& a, cudaStream_t stream) {
  if (a.n == 0) return cudaSuccess;
  const double bc1 = 1.0 - std::pow(static_cast<double>(a.beta1), static_cast<double>(a.t));
  const double bc2 = 1.0 - std::pow(static_cast<double>(a.beta2), static_cast<double>(a.t));
  AdamWKernel<<<GridFor(a.n, kBlock), kBlock, 0, stream>>>(
      a, static_cast<float>(1.0 - double{a.lr} * a.weight_decay), static_cast<float>(a.lr / bc1),
      static_cast<float>(1.0 / std::sqrt(bc2)));
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
