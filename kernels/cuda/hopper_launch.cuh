// How a product of hopper_product.cuh is started. C++17, host only.
#ifndef SOUP_KERNELS_CUDA_HOPPER_LAUNCH_CUH_
#define SOUP_KERNELS_CUDA_HOPPER_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/hopper_product.cuh"
#include "kernels/cuda/tensor_map.h"

namespace soup::kernels::cuda::hopper {

// Boxes of box_rows x 64 of a matrix without gaps.
inline cudaError_t MakeMap(const void* matrix, int64_t rows, int64_t columns, int box_rows,
                           CUtensorMap* map) {
  return MakeTensorMap({matrix, rows, columns, columns, box_rows}, map);
}

// A launch of clusters of two: kernel(shape, args...). `clusters`: how many of them the device runs
// at a time; 0: ask it.
template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), int* clusters, Shape shape, cudaStream_t stream,
                   const Args&... args) {
  cudaLaunchAttribute pairs{};
  pairs.id = cudaLaunchAttributeClusterDimension;
  pairs.val.clusterDim.x = 2;
  pairs.val.clusterDim.y = pairs.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &pairs;
  config.numAttrs = 1;
  if (*clusters == 0) {
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
    if (error != cudaSuccess) return error;
    if (*clusters == 0) return cudaErrorNotSupported;
  }
  const int tiles = (shape.M + kClusterM - 1) / kClusterM * ((shape.N + kTileN - 1) / kTileN);
  shape.clusters = std::min(*clusters, tiles);
  // Rows of a group that do not fit would push one another out.
  const int64_t rows = std::min(shape.M, kGroup * kClusterM);
  const bool whole_lines = (reinterpret_cast<uintptr_t>(shape.kept) & 127) == 0;
  if (rows * shape.K * 2 > kKeptBytes || !whole_lines) shape.kept = nullptr;
  config.gridDim = dim3(static_cast<unsigned>(2 * shape.clusters));
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, shape, args...);
  return launched != cudaSuccess ? launched : cudaGetLastError();
}

}  // namespace soup::kernels::cuda::hopper

#endif  // SOUP_KERNELS_CUDA_HOPPER_LAUNCH_CUH_
