// Tensor maps: how the copy engine of sm_90 and newer finds a box of a bf16 matrix in device memory
// (CUDA driver API, cuTensorMapEncodeTiled). Boxes lie in shared memory in rows of 128 bytes, in
// the 128-byte swizzle; what is beyond the matrix comes as zeros and is not written. Any thread.
#ifndef SOUP_KERNELS_CUDA_TENSOR_MAP_H_
#define SOUP_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace soup::kernels::cuda {

// Columns of a box.
inline constexpr int kTensorMapColumns = 64;

// Whether this build has code for sm_90a, and the current device and its driver take it and maps.
// Asked once: of the first device.
bool HasTensorMaps();

// Boxes of box_rows x 64 of `count` matrices [rows, columns]: rows `stride` elements apart,
// matrices `apart`. Matrices and strides 16-byte aligned. Only where HasTensorMaps().
struct TensorMapArgs {
  const void* matrix = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;
  int box_rows = 0;
  int64_t count = 1, apart = 0;
};
// Of two coordinates (column, row); count is 1. Errors: cudaErrorInvalidValue.
cudaError_t MakeTensorMap(const TensorMapArgs& args, CUtensorMap* map);
// Of three (column, row, matrix); a box is of one matrix.
cudaError_t MakeTensorMaps(const TensorMapArgs& args, CUtensorMap* map);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_TENSOR_MAP_H_
