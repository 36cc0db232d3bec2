#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

namespace soup::kernels::cuda {
namespace {

// The driver's maker of tensor maps; null where there is none.
PFN_cuTensorMapEncodeTiled_v12000 MapMaker() {
  static const PFN_cuTensorMapEncodeTiled_v12000 maker = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t asked = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                               12000, cudaEnableDefault, &result);
    if (asked != cudaSuccess) cudaGetLastError();
    const bool ok = asked == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return ok ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found) : nullptr;
  }();
  return maker;
}

cudaError_t Make(const TensorMapArgs& a, cuuint32_t coordinates, CUtensorMap* map) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(a.columns), static_cast<cuuint64_t>(a.rows),
                               static_cast<cuuint64_t>(a.count)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(a.stride) * 2,
                                 static_cast<cuuint64_t>(a.apart) * 2};
  const cuuint32_t box[3] = {kTensorMapColumns, static_cast<cuuint32_t>(a.box_rows), 1};
  const cuuint32_t step[3] = {1, 1, 1};
  const CUresult made = MapMaker()(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, coordinates, const_cast<void*>(a.matrix), sizes,
      strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

bool HasTensorMaps() {
#ifdef SOUP_CUDA_SM90A
  static const bool has = [] {
    int device = 0, major = 0, minor = 0;
    const bool told =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
    if (!told) cudaGetLastError();
    return told && major == 9 && minor == 0 && MapMaker() != nullptr;
  }();
  return has;
#else
  return false;
#endif
}

cudaError_t MakeTensorMap(const TensorMapArgs& args, CUtensorMap* map) {
  return Make(args, 2, map);
}

cudaError_t MakeTensorMaps(const TensorMapArgs& args, CUtensorMap* map) {
  return Make(args, 3, map);
}

}  // namespace soup::kernels::cuda
