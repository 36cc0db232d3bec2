// What cuDNN reads on the device about sequences: ragged offsets and the length of one, and the
// rows' statistics in its order. Internal to kernels/cuda.
#ifndef SOUP_KERNELS_CUDA_CUDNN_LENGTHS_H_
#define SOUP_KERNELS_CUDA_CUDNN_LENGTHS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace soup::kernels::cuda {

// Byte offsets in the block, int32 each: {0, length * stride} of q, k, v and of out; length.
inline constexpr int64_t kCudnnOffsetsQkv = 0;
inline constexpr int64_t kCudnnOffsetsOut = 16;
inline constexpr int64_t kCudnnLength = 32;

// Strides in elements; their products with the length must be under 2^31: cudaErrorInvalidValue.
cudaError_t WriteCudnnLengths(void* block, int64_t length, int64_t row_stride, int64_t out_stride,
                              cudaStream_t stream);

// Statistics between our order, [Hq, T] from the first row of the first sequence on (lse[h * T + s
// * length + i]), and the library's, [sequences, Hq, row_class] (rows[(s * Hq + h) * row_class +
// i]), for i < length.
struct CudnnStatistics {
  float* lse;
  float* rows;
  int64_t T, sequences, Hq, length, row_class;
};
cudaError_t StatisticsToLibrary(const CudnnStatistics& s, cudaStream_t stream);
cudaError_t StatisticsFromLibrary(const CudnnStatistics& s, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_CUDNN_LENGTHS_H_
