#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/gate_products.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/hopper_launch.cuh"
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
    GateUpKernel(const hopper::Shape shape, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ CUtensorMap w, const GateUpOut out) {
#if SOUP_ON_HOPPER
  const int thread = static_cast<int>(threadIdx.x) - (128 - kFinishers);
  hopper::Product(x, w, shape, GateUpFinisher<GELU>{out, thread}, hopper::NoAdapters{});
#endif
}

template <bool GELU>
__global__ void __launch_bounds__(hopper::kThreads, 1)
    DownBackwardKernel(const hopper::Shape shape, const __grid_constant__ CUtensorMap dy,
                       const __grid_constant__ CUtensorMap w, const DownBackwardOut out) {
#if SOUP_ON_HOPPER
  const int thread = static_cast<int>(threadIdx.x) - (128 - kFinishers);
  hopper::Product(dy, w, shape, DownBackwardFinisher<GELU>{out, thread, {}, {}},
                  hopper::NoAdapters{});
#endif
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

bool HasGateProducts() { return HasTensorMaps(); }

cudaError_t SetCacheAside() {
  const cudaError_t set =
      cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, hopper::kSetAsideBytes);
  if (set != cudaSuccess) cudaGetLastError();
  return set;
}

cudaError_t GateUp(const GateUpArgs& a, cudaStream_t stream) {
  cudaError_t error = Check(a);
  if (error != cudaSuccess) return error;
  if (!Aligned16(a.x) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  CUtensorMap x, w;
  error = hopper::MakeMap(a.x, a.T, a.H, hopper::kRowsOfA, &x);
  if (error == cudaSuccess) error = hopper::MakeMap(a.w, 2 * a.I, a.H, hopper::kRowsOfB, &w);
  if (error != cudaSuccess) return error;
  const int T = static_cast<int>(a.T), I = static_cast<int>(a.I), H = static_cast<int>(a.H);
  const GateUpOut out{a.wanted ? static_cast<uint4*>(a.gate_up) : nullptr, static_cast<uint4*>(a.y),
                      T, I};
  // A last tile of less than 128 columns of each: rows of up for gate's, which nobody looks at.
  const hopper::Shape shape{T, (I + 127) / 128 * kTileN, H, static_cast<const uint8_t*>(a.x)};
  static int silu = 0, gelu = 0;
  return a.gate == GateActivation::kGeluTanh
             ? hopper::Launch(GateUpKernel<true>, &gelu, shape, stream, x, w, out)
             : hopper::Launch(GateUpKernel<false>, &silu, shape, stream, x, w, out);
}

cudaError_t DownBackward(const DownBackwardArgs& a, cudaStream_t stream) {
  cudaError_t error = Check(a);
  if (error != cudaSuccess) return error;
  if (!Aligned16(a.dy) || !Aligned16(a.d_act)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  CUtensorMap dy, w;
  error = hopper::MakeMap(a.dy, a.T, a.H, hopper::kRowsOfA, &dy);
  if (error == cudaSuccess) error = hopper::MakeMap(a.w, a.H, a.I, hopper::kTileK, &w);
  if (error != cudaSuccess) return error;
  const int T = static_cast<int>(a.T), I = static_cast<int>(a.I), H = static_cast<int>(a.H);
  const DownBackwardOut out{static_cast<uint4*>(a.d_act), static_cast<uint4*>(a.gate_up), T, I};
  const hopper::Shape shape{T, I, H, static_cast<const uint8_t*>(a.dy)};
  static int silu = 0, gelu = 0;
  return a.gate == GateActivation::kGeluTanh
             ? hopper::Launch(DownBackwardKernel<true>, &gelu, shape, stream, dy, w, out)
             : hopper::Launch(DownBackwardKernel<false>, &silu, shape, stream, dy, w, out);
}

}  // namespace soup::kernels::cuda
