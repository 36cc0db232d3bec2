// Random operands and checks of bits for tuning and measuring. Not part of a pass.
#ifndef SOUP_KERNELS_CUDA_RANDOM_FILL_H_
#define SOUP_KERNELS_CUDA_RANDOM_FILL_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace soup::kernels::cuda {

// n values, uniform in (-1, 1), a function of (seed, index): the same on every call.
cudaError_t FillRandomBf16(void* data, int64_t n, uint32_t seed, cudaStream_t stream);
cudaError_t FillRandomF32(float* data, int64_t n, uint32_t seed, cudaStream_t stream);
// result[0] (device) = a sum over the 16-bit words of `bytes` (even), mixed with their places:
// equal bits give equal sums.
cudaError_t SumOfBits(const void* data, int64_t bytes, unsigned long long* result,
                      cudaStream_t stream);
// Keeps the stream busy for about `cycles` of the device's clock, so that what is launched next
// queues up and is timed without the gaps between launches.
cudaError_t Spin(int64_t cycles, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_RANDOM_FILL_H_
