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

}  // namespace

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
