#include <algorithm>

#include "kernels/cuda/cudnn_lengths.h"

namespace soup::kernels::cuda {
namespace {

// One thread: five words.
__global__ void WriteKernel(int32_t* block, int32_t length, int32_t qkv_end, int32_t out_end) {
  block[kCudnnOffsetsQkv / 4] = 0;
  block[kCudnnOffsetsQkv / 4 + 1] = qkv_end;
  block[kCudnnOffsetsOut / 4] = 0;
  block[kCudnnOffsetsOut / 4 + 1] = out_end;
  block[kCudnnLength / 4] = length;
}

// grid: [ceil(length / block), Hq, sequences].
template <bool kToLibrary>
__global__ void StatisticsKernel(const __grid_constant__ CudnnStatistics s) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= s.length) return;
  const int64_t h = blockIdx.y, sequence = blockIdx.z;
  float* ours = s.lse + h * s.T + sequence * s.length + i;
  float* theirs = s.rows + (sequence * s.Hq + h) * s.row_class + i;
  if (kToLibrary) {
    *theirs = *ours;
  } else {
    *ours = *theirs;
  }
}

template <bool kToLibrary>
cudaError_t CopyStatistics(const CudnnStatistics& s, cudaStream_t stream) {
  constexpr int kBlock = 256, kMostGrid = 65535;
  if (s.Hq > kMostGrid || s.sequences > kMostGrid) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((s.length + kBlock - 1) / kBlock),
                  static_cast<unsigned>(s.Hq), static_cast<unsigned>(s.sequences));
  StatisticsKernel<kToLibrary><<<grid, kBlock, 0, stream>>>(s);
  return cudaGetLastError();
}

}  // namespace

cudaError_t StatisticsToLibrary(const CudnnStatistics& s, cudaStream_t stream) {
  return CopyStatistics<true>(s, stream);
}
cudaError_t StatisticsFromLibrary(const CudnnStatistics& s, cudaStream_t stream) {
  return CopyStatistics<false>(s, stream);
}

cudaError_t WriteCudnnLengths(void* block, int64_t length, int64_t row_stride, int64_t out_stride,
                              cudaStream_t stream) {
  if (length * std::max(row_stride, out_stride) > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  WriteKernel<<<1, 1, 0, stream>>>(static_cast<int32_t*>(block), static_cast<int32_t>(length),
                                   static_cast<int32_t>(length * row_stride),
                                   static_cast<int32_t>(length * out_stride));
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
