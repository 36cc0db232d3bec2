#include <cudaTypedefs.h>

#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/gate_products.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/hopper_product.cuh"

namespace soup::kernels::cuda {
namespace {

using hopper::kFinishers;
using hopper::kHalfRows;
using hopper::kTileN;

struct GateUpOut {
  uint4* gate_up;  // [T, 2 I]; null: not wanted
  uint4* y;        // [T, I]; null: not wanted
  int T, I;
};
struct DownBackwardOut {
  uint4* d_act;    // [T, I], where gate_up is null
  uint4* gate_up;  // [T, 2 I]
  int T, I;
};

#if SOUP_ON_HOPPER

// What goes by here is read once, by somebody else, or was: it must not push the operands, which
// several blocks read at nearly the same time, out of the cache (7 % of DownBackward).

// A tile is 128 columns of gate beside the same 128 of up.
template <bool GELU>
struct GateUpFinisher {
  static constexpr bool kColumnsFirst = false;
  static constexpr int kChunks = kTileN / 16;  // of a row, of each
  static constexpr int kRows = kFinishers / kChunks;
  GateUpOut out;
  int thread;

  __device__ int RowOfB(int n, int half) const { return n / 2 + half * out.I; }
  __device__ void Fetch(int, int) {}
  __device__ void Finish(uint32_t half, int row, int n) {
    const int width = out.I / kVector, c = thread % kChunks;
    const int64_t column = n / 2 / kVector + c;
    if (column >= width) return;
#pragma unroll 4
    for (int r = thread / kChunks; r < kHalfRows; r += kRows) {
      const int64_t t = row + r;
      if (t >= out.T) continue;
      const uint4 gates = LoadShared16(half + hopper::InHalf(r, c));
      const uint4 ups = LoadShared16(half + hopper::InHalf(r, c + kChunks));
      if (out.gate_up != nullptr) {
        __stcs(out.gate_up + t * 2 * width + column, gates);
        __stcs(out.gate_up + t * 2 * width + width + column, ups);
      }
      if (out.y != nullptr) __stcs(out.y + t * width + column, Gated8<GELU>(gates, ups));
    }
  }
};

// Gates and ups are on their way before their rows of d act are made.
template <bool GELU>
struct DownBackwardFinisher {
  static constexpr bool kColumnsFirst = true;
  static constexpr int kChunks = kTileN / 8;  // of a row
  static constexpr int kRows = kFinishers / kChunks;
  static constexpr int kAhead = 4;
  DownBackwardOut out;
  int thread;
  uint4 gates[kAhead], ups[kAhead];

  // A thread has one column, and every kRows-th row.
  __device__ int Column(int n) const { return n / kVector + thread % kChunks; }
  __device__ uint4* GatesOf(int64_t t, int n) const {
    return out.gate_up + t * 2 * (out.I / kVector) + Column(n);
  }
  __device__ void FetchRow(int r, int slot, int row, int n) {
    if (r >= kHalfRows || row + r >= out.T) return;
    const uint4* at = GatesOf(row + r, n);
    gates[slot] = __ldcs(at);
    ups[slot] = __ldcs(at + out.I / kVector);
  }
  __device__ void Fetch(int row, int n) {
    if (out.gate_up == nullptr || Column(n) * kVector >= out.I) return;
#pragma unroll
    for (int p = 0; p < kAhead; ++p) FetchRow(thread / kChunks + p * kRows, p, row, n);
  }
  __device__ void Finish(uint32_t half, int row, int n) {
    if (Column(n) * kVector >= out.I) return;
    if (out.gate_up == nullptr) return Plain(half, row, n);
#pragma unroll 1
    for (int first = thread / kChunks; first < kHalfRows; first += kAhead * kRows) {
#pragma unroll
      for (int p = 0; p < kAhead; ++p) {
        const int r = first + p * kRows;
        if (r >= kHalfRows || row + r >= out.T) continue;
        uint4 g = gates[p], u = ups[p];
        FetchRow(r + kAhead * kRows, p, row, n);
        GatedBack8<GELU>(LoadShared16(half + hopper::InHalf(r, thread % kChunks)), &g, &u);
        uint4* at = GatesOf(row + r, n);
        __stcs(at, g);
        __stcs(at + out.I / kVector, u);
      }
    }
  }
  __device__ void Plain(uint32_t half, int row, int n) {
#pragma unroll 4
    for (int r = thread / kChunks; r < kHalfRows; r += kRows) {
      const int64_t t = row + r;
      if (t >= out.T) continue;
      out.d_act[t * (out.I / kVector) + Column(n)] =
          LoadShared16(half + hopper::InHalf(r, thread % kChunks));
    }
  }
};

#endif  // SOUP_ON_HOPPER

template <bool GELU>
__global__ void __launch_bounds__(hopper::kThreads, 1)
    GateUpKernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                 const hopper::Shape shape, const GateUpOut out) {
#if SOUP_ON_HOPPER
  const int thread = static_cast<int>(threadIdx.x) - (128 - kFinishers);
  hopper::Product(x, w, shape, GateUpFinisher<GELU>{out, thread});
#endif
}

template <bool GELU>
__global__ void __launch_bounds__(hopper::kThreads, 1)
    DownBackwardKernel(const __grid_constant__ CUtensorMap dy,
                       const __grid_constant__ CUtensorMap w, const hopper::Shape shape,
                       const DownBackwardOut out) {
#if SOUP_ON_HOPPER
  const int thread = static_cast<int>(threadIdx.x) - (128 - kFinishers);
  hopper::Product(dy, w, shape, DownBackwardFinisher<GELU>{out, thread, {}, {}});
#endif
}

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

// Boxes of box_rows x 64 of a bf16 matrix [rows, columns]; zeros beyond it.
cudaError_t MakeMap(const void* matrix, int64_t rows, int64_t columns, int box_rows,
                    CUtensorMap* map) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {hopper::kTileK, static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
  const CUresult made =
      MapMaker()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes, stride,
                 box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// A launch of clusters of two. `clusters`: how many of them the device runs at a time; 0: ask it.
template <typename... Params, typename Out>
cudaError_t Launch(void (*kernel)(Params...), int* clusters, const CUtensorMap& a,
                   const CUtensorMap& b, hopper::Shape shape, const Out& out, cudaStream_t stream) {
  cudaLaunchAttribute pairs{};
  pairs.id = cudaLaunchAttributeClusterDimension;
  pairs.val.clusterDim.x = 2;
  pairs.val.clusterDim.y = pairs.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2);
  config.blockDim = dim3(hopper::kThreads);
  config.dynamicSmemBytes = hopper::kSharedBytes;
  config.stream = stream;
  config.attrs = &pairs;
  config.numAttrs = 1;
  if (*clusters == 0) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             hopper::kSharedBytes);
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
    if (error != cudaSuccess) return error;
    if (*clusters == 0) return cudaErrorNotSupported;
  }
  const int tiles =
      (shape.M + hopper::kClusterM - 1) / hopper::kClusterM * ((shape.N + kTileN - 1) / kTileN);
  shape.clusters = std::min(*clusters, tiles);
  config.gridDim = dim3(static_cast<unsigned>(2 * shape.clusters));
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, a, b, shape, out);
  return launched != cudaSuccess ? launched : cudaGetLastError();
}

// What is common to both: sizes that a launch can count in, maps that can be made.
template <typename Args>
cudaError_t Check(const Args& a) {
  if (!HasGateProducts()) return cudaErrorNotSupported;
  constexpr int64_t kMost = INT32_MAX / 2;
  const bool sizes = a.H > 0 && a.H % kVector == 0 && a.I > 0 && a.I % kVector == 0 &&
                     std::max({a.T, a.H, a.I}) <= kMost;
  return sizes && Aligned16(a.w) && Aligned16(a.gate_up) ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

bool HasGateProducts() {
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

cudaError_t GateUp(const GateUpArgs& a, cudaStream_t stream) {
  cudaError_t error = Check(a);
  if (error != cudaSuccess) return error;
  if (!Aligned16(a.x) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  CUtensorMap x, w;
  error = MakeMap(a.x, a.T, a.H, hopper::kRowsOfA, &x);
  if (error == cudaSuccess) error = MakeMap(a.w, 2 * a.I, a.H, hopper::kRowsOfB, &w);
  if (error != cudaSuccess) return error;
  const int T = static_cast<int>(a.T), I = static_cast<int>(a.I), H = static_cast<int>(a.H);
  const GateUpOut out{a.wanted ? static_cast<uint4*>(a.gate_up) : nullptr, static_cast<uint4*>(a.y),
                      T, I};
  // A last tile of less than 128 columns of each: rows of up for gate's, which nobody looks at.
  const hopper::Shape shape{T, (I + 127) / 128 * kTileN, H, 0};
  static int silu = 0, gelu = 0;
  return a.gate == GateActivation::kGeluTanh
             ? Launch(GateUpKernel<true>, &gelu, x, w, shape, out, stream)
             : Launch(GateUpKernel<false>, &silu, x, w, shape, out, stream);
}

cudaError_t DownBackward(const DownBackwardArgs& a, cudaStream_t stream) {
  cudaError_t error = Check(a);
  if (error != cudaSuccess) return error;
  if (!Aligned16(a.dy) || !Aligned16(a.d_act)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  CUtensorMap dy, w;
  error = MakeMap(a.dy, a.T, a.H, hopper::kRowsOfA, &dy);
  if (error == cudaSuccess) error = MakeMap(a.w, a.H, a.I, hopper::kTileK, &w);
  if (error != cudaSuccess) return error;
  const int T = static_cast<int>(a.T), I = static_cast<int>(a.I), H = static_cast<int>(a.H);
  const DownBackwardOut out{static_cast<uint4*>(a.d_act), static_cast<uint4*>(a.gate_up), T, I};
  const hopper::Shape shape{T, I, H, 0};
  static int silu = 0, gelu = 0;
  return a.gate == GateActivation::kGeluTanh
             ? Launch(DownBackwardKernel<true>, &gelu, dy, w, shape, out, stream)
             : Launch(DownBackwardKernel<false>, &silu, dy, w, shape, out, stream);
}

}  // namespace soup::kernels::cuda
