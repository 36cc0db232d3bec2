// Small kernels behind one another in a stream: the next one's blocks are placed while the last of
// the one before still run (programmatic dependent launch, sm_90 and newer; elsewhere an ordinary
// launch). C++17.
//
// A kernel that LaunchBehind starts calls BeginBehind first of all, in every thread: it returns
// when all kernels before in the stream have ended and what they wrote can be read; nothing may be
// read or written before. An ordinary kernel before or behind is waited for as ever.
#ifndef SOUP_KERNELS_CUDA_OVERLAP_CUH_
#define SOUP_KERNELS_CUDA_OVERLAP_CUH_

#include <cuda_runtime.h>

#include <utility>

namespace soup::kernels::cuda {

__device__ __forceinline__ void BeginBehind() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline bool CardOverlaps() {
  static const bool overlaps = [] {
    int device = 0, major = 0;
    const bool told =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    if (!told) cudaGetLastError();
    return told && major >= 9;
  }();
  return overlaps;
}

template <typename... Params, typename... Args>
cudaError_t LaunchBehind(void (*kernel)(Params...), dim3 grid, unsigned block, int shared_bytes,
                         cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(block);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = CardOverlaps() ? 1 : 0;
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  return launched != cudaSuccess ? launched : cudaGetLastError();
}

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_OVERLAP_CUH_
