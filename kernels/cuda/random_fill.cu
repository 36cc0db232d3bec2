#include "kernels/cuda/common.cuh"
#include "kernels/cuda/random_fill.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 256;

__device__ __forceinline__ uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ __forceinline__ float Uniform(int64_t i, uint32_t seed) {
  const uint32_t low = static_cast<uint32_t>(i), high = static_cast<uint32_t>(i >> 32);
  const uint32_t bits = Mix(low * 2654435761u + Mix(seed + high));
  return static_cast<float>(bits >> 8) * (2.f / 16777216.f) - 1.f;
}

__global__ void __launch_bounds__(kBlock) FillBf16Kernel(bf16* data, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < n;
       i += gridDim.x * static_cast<int64_t>(kBlock)) {
    data[i] = __float2bfloat16_rn(Uniform(i, seed));
  }
}

__global__ void __launch_bounds__(kBlock) FillF32Kernel(float* data, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < n;
       i += gridDim.x * static_cast<int64_t>(kBlock)) {
    data[i] = Uniform(i, seed);
  }
}

// Integer sums do not depend on their order.
__global__ void __launch_bounds__(kBlock)
    SumOfBitsKernel(const uint16_t* data, int64_t words, unsigned long long* result) {
  unsigned long long sum = 0;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < words;
       i += gridDim.x * static_cast<int64_t>(kBlock)) {
    sum += static_cast<unsigned long long>(data[i]) * (Mix(static_cast<uint32_t>(i)) | 1u);
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if ((threadIdx.x & 31) == 0) atomicAdd(result, sum);
}

__global__ void SpinKernel(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

}  // namespace

cudaError_t FillRandomBf16(void* data, int64_t n, uint32_t seed, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  FillBf16Kernel<<<GridFor(n, kBlock), kBlock, 0, stream>>>(static_cast<bf16*>(data), n, seed);
  return cudaGetLastError();
}

cudaError_t FillRandomF32(float* data, int64_t n, uint32_t seed, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  FillF32Kernel<<<GridFor(n, kBlock), kBlock, 0, stream>>>(data, n, seed);
  return cudaGetLastError();
}

cudaError_t SumOfBits(const void* data, int64_t bytes, unsigned long long* result,
                      cudaStream_t stream) {
  const cudaError_t cleared = cudaMemsetAsync(result, 0, sizeof *result, stream);
  if (cleared != cudaSuccess || bytes < 2) return cleared;
  SumOfBitsKernel<<<GridFor(bytes / 2, kBlock), kBlock, 0, stream>>>(
      static_cast<const uint16_t*>(data), bytes / 2, result);
  return cudaGetLastError();
}

cudaError_t Spin(int64_t cycles, cudaStream_t stream) {
  SpinKernel<<<1, 1, 0, stream>>>(cycles);
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
