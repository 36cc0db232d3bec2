#include <algorithm>
#include <cstdint>

#include "kernels/cuda/adapted_product.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gate_products.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/hopper_launch.cuh"
#include "kernels/cuda/hopper_product.cuh"
#include "kernels/gate_ops.h"

namespace soup::kernels::cuda {
namespace {

using hopper::kFinishers;
using hopper::kHalfRows;
using hopper::kTileK;
using hopper::kTileN;

struct SumOut {
  uint4* y;             // [M, N]
  const uint4* addend;  // [M, N]; null: none
  int M, N;
};

struct TurnOut {
  uint4* y;  // [T, N], rows `stride` vectors apart
  int64_t stride;
  const int32_t* positions;  // [T]
  const float* inv_freq;     // [64]
  int T, N, turning;         // columns that turn come first
  float scale;
};
struct Linears {
  int count, rank, slices;  // slices: of K, that hold a linear's columns of U
  int column[3], width[3];
};

#if SOUP_ON_HOPPER

// Rows of the addend are on their way before those of the product are made. What goes by is not to
// push operands out of the cache.
template <bool COLUMNS_FIRST>
struct SumFinisher {
  static constexpr bool kColumnsFirst = COLUMNS_FIRST;
  static constexpr int kChunks = kTileN / kVector;  // of a row
  static constexpr int kRows = kFinishers / kChunks;
  static constexpr int kAhead = 8;
  SumOut out;
  int thread;
  uint4 addends[kAhead];

  __device__ int RowOfB(int n, int half) const { return n + half * hopper::kRowsOfB; }
  // A thread has one column, and every kRows-th row.
  __device__ int64_t Place(int64_t t, int n) const {
    return t * (out.N / kVector) + n / kVector + thread % kChunks;
  }
  __device__ bool Beyond(int n) const { return n + thread % kChunks * kVector >= out.N; }
  __device__ void FetchRow(int r, int slot, int row, int n) {
    if (r < kHalfRows && row + r < out.M) addends[slot] = __ldcs(out.addend + Place(row + r, n));
  }
  __device__ void Fetch(int row, int n) {
    if (out.addend == nullptr || Beyond(n)) return;
#pragma unroll
    for (int p = 0; p < kAhead; ++p) FetchRow(thread / kChunks + p * kRows, p, row, n);
  }
  __device__ void Finish(uint32_t half, int row, int n) {
    if (Beyond(n)) return;
#pragma unroll 1
    for (int first = thread / kChunks; first < kHalfRows; first += kAhead * kRows) {
#pragma unroll
      for (int p = 0; p < kAhead; ++p) {
        const int r = first + p * kRows;
        if (r >= kHalfRows || row + r >= out.M) continue;
        uint4 y = LoadShared16(half + hopper::InHalf(r, thread % kChunks));
        if (out.addend != nullptr) {
          y = Added(y, addends[p]);
          FetchRow(r + kAhead * kRows, p, row, n);
        }
        out.y[Place(row + r, n)] = y;
      }
    }
  }
  __device__ static uint4 Added(uint4 a, uint4 b) {
    float x[8], y[8];
    Unpack8(a, x);
    Unpack8(b, y);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] += y[k];
    return Pack8(x);
  }
};

// All of U beside all of A.
struct WholeAdapters {
  const CUtensorMap* u;
  const CUtensorMap* v;
  float scale;
  int slices;
  __device__ int Slices(int) const { return slices; }
  __device__ static int ColumnOfU(int) { return 0; }
  __device__ static int RowOfV(int n, int half) { return n + half * hopper::kRowsOfB; }
};

// Each linear's columns of U, for its columns of y.
struct LinearAdapters {
  const CUtensorMap* u;
  const CUtensorMap* v;
  float scale;
  Linears linears;
  __device__ int LinearOf(int n) const {
    for (int m = 0; m < linears.count; ++m) {
      if (n >= linears.column[m] && n < linears.column[m] + linears.width[m]) return m;
    }
    return -1;
  }
  __device__ int Slices(int n) const { return LinearOf(n) < 0 ? 0 : linears.slices; }
  __device__ int ColumnOfU(int n) const { return LinearOf(n) * linears.rank; }
  __device__ int RowOfV(int n, int half) const {
    const int m = LinearOf(n);
    int row = n - linears.column[m] + half * hopper::kRowsOfB;
    for (int before = 0; before < m; ++before) row += linears.width[before];
    return row;
  }
};

// A tile is two heads of 128: a thread turns 8 columns of a row and those half a head further, in
// both.
struct TurnFinisher {
  static constexpr bool kColumnsFirst = false;
  static constexpr int kChunks = 64 / kVector;  // of half a head
  static constexpr int kRows = kFinishers / kChunks;
  TurnOut out;
  int thread;

  __device__ int RowOfB(int n, int half) const { return n + half * hopper::kRowsOfB; }
  __device__ void Fetch(int, int) {}
  __device__ void Finish(uint32_t half, int row, int n) {
    const int chunk = thread % kChunks;
    const bool turns = n < out.turning;
#pragma unroll 1
    for (int r = thread / kChunks; r < kHalfRows; r += kRows) {
      const int64_t t = row + r;
      if (t >= out.T) continue;
      float cosine[8], sine[8];
      if (turns) Angles(static_cast<float>(out.positions[t]), chunk, cosine, sine);
      uint4* const y = out.y + t * out.stride + n / kVector + chunk;
#pragma unroll
      for (int head = 0; head < 2; ++head) {
        const int c = head * 2 * kChunks + chunk;
        if (n + head * kTileN / 2 >= out.N) continue;
        uint4 low = LoadShared16(half + hopper::InHalf(r, c));
        uint4 high = LoadShared16(half + hopper::InHalf(r, c + kChunks));
        if (turns) Turn(cosine, sine, &low, &high);
        y[head * 2 * kChunks] = low;
        y[head * 2 * kChunks + kChunks] = high;
      }
    }
  }
  __device__ void Angles(float position, int chunk, float (&cosine)[8], float (&sine)[8]) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sincosf(position * __ldg(out.inv_freq + chunk * kVector + k), &sine[k], &cosine[k]);
      cosine[k] *= out.scale;
      sine[k] *= out.scale;
    }
  }
  __device__ static void Turn(const float (&cosine)[8], const float (&sine)[8], uint4* low,
                              uint4* high) {
    float x[8], z[8];
    Unpack8(*low, x);
    Unpack8(*high, z);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float b = x[k], e = z[k];
      x[k] = b * cosine[k] - e * sine[k];
      z[k] = e * cosine[k] + b * sine[k];
    }
    *low = Pack8(x);
    *high = Pack8(z);
  }
};

#endif  // SOUP_ON_HOPPER

// u, v: of the adapters.
template <bool COLUMNS_FIRST>
__global__ void __launch_bounds__(hopper::kThreads, 1)
    AdaptedKernel(const hopper::Shape shape, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap u,
                  const __grid_constant__ CUtensorMap v, const float scale, const int slices,
                  const SumOut out) {
#if SOUP_ON_HOPPER
  const int thread = static_cast<int>(threadIdx.x) - (128 - kFinishers);
  hopper::Product(x, w, shape, SumFinisher<COLUMNS_FIRST>{out, thread, {}},
                  WholeAdapters{&u, &v, scale, slices});
#endif
}

__global__ void __launch_bounds__(hopper::kThreads, 1)
    TurnedKernel(const hopper::Shape shape, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap u,
                 const __grid_constant__ CUtensorMap v, const float scale, const Linears linears,
                 const TurnOut out) {
#if SOUP_ON_HOPPER
  const int thread = static_cast<int>(threadIdx.x) - (128 - kFinishers);
  hopper::Product(x, w, shape, TurnFinisher{out, thread}, LinearAdapters{&u, &v, scale, linears});
#endif
}

bool Takes(const AdaptedProductArgs& a) {
  constexpr int64_t kMost = INT32_MAX / 2;
  const bool sizes = a.N > 0 && a.N % kVector == 0 && a.K > 0 && a.K % kVector == 0 && a.R > 0 &&
                     a.R % kVector == 0 && std::max({a.M, a.N, a.K, a.R}) <= kMost;
  return sizes && Aligned16(a.x) && Aligned16(a.w) && Aligned16(a.u) && Aligned16(a.b) &&
         Aligned16(a.y) && Aligned16(a.addend);
}

int Slices(int64_t rank) { return static_cast<int>((rank + kTileK - 1) / kTileK); }

// Rows of a box of W and b.
template <bool COLUMNS_FIRST>
cudaError_t Start(const AdaptedProductArgs& a, cudaStream_t stream) {
  constexpr int kBoxRows = COLUMNS_FIRST ? kTileK : hopper::kRowsOfB;
  CUtensorMap x, w, u, v;
  for (const cudaError_t made :
       {hopper::MakeMap(a.x, a.M, a.K, hopper::kRowsOfA, &x),
        hopper::MakeMap(a.w, COLUMNS_FIRST ? a.K : a.N, COLUMNS_FIRST ? a.N : a.K, kBoxRows, &w),
        hopper::MakeMap(a.u, a.M, a.R, hopper::kRowsOfA, &u),
        hopper::MakeMap(a.b, COLUMNS_FIRST ? a.R : a.N, COLUMNS_FIRST ? a.N : a.R, kBoxRows, &v)}) {
    if (made != cudaSuccess) return made;
  }
  const int M = static_cast<int>(a.M), N = static_cast<int>(a.N);
  hopper::Shape shape{M, N, static_cast<int>(a.K), static_cast<const uint8_t*>(a.x)};
  const SumOut out{static_cast<uint4*>(a.y), static_cast<const uint4*>(a.addend), M, N};
  static int clusters = 0;
  return hopper::Launch(AdaptedKernel<COLUMNS_FIRST>, &clusters, shape, stream, x, w, u, v, a.scale,
                        Slices(a.R), out);
}

}  // namespace

cudaError_t AdaptedProduct(const AdaptedProductArgs& a, cudaStream_t stream) {
  if (!HasGateProducts()) return cudaErrorNotSupported;
  if (!Takes(a)) return cudaErrorInvalidValue;
  if (a.M == 0) return cudaSuccess;
  return a.transpose_w ? Start<false>(a, stream) : Start<true>(a, stream);
}

cudaError_t TurnedProduct(const TurnedProductArgs& a, cudaStream_t stream) {
  if (!HasGateProducts()) return cudaErrorNotSupported;
  const LoraUpArgs& up = a.turned.up;
  const RopeArgs& rope = a.turned.rope;
  const bool aligned = Aligned16(a.x) && Aligned16(a.w) && Aligned16(up.u) && Aligned16(up.b) &&
                       Aligned16(up.y) && rope.x == up.y;
  if (!TurnedProductTaken(1, a) || !aligned || std::max({up.T, a.N, a.K}) > INT32_MAX / 2) {
    return cudaErrorInvalidValue;
  }
  Linears linears{up.linears.count, static_cast<int>(up.r), Slices(up.r), {}, {}};
  int64_t rows = 0;
  for (int m = 0; m < linears.count; ++m) {
    linears.column[m] = static_cast<int>(up.linears.column[m]);
    linears.width[m] = static_cast<int>(up.linears.width[m]);
    rows += up.linears.width[m];
  }
  CUtensorMap x, w, u, v;
  for (const cudaError_t made :
       {hopper::MakeMap(a.x, up.T, a.K, hopper::kRowsOfA, &x),
        hopper::MakeMap(a.w, a.N, a.K, hopper::kRowsOfB, &w),
        hopper::MakeMap(up.u, up.T, linears.count * up.r, hopper::kRowsOfA, &u),
        hopper::MakeMap(up.b, rows, up.r, hopper::kRowsOfB, &v)}) {
    if (made != cudaSuccess) return made;
  }
  const int T = static_cast<int>(up.T), N = static_cast<int>(a.N);
  const TurnOut out{static_cast<uint4*>(up.y),
                    up.ldy / kVector,
                    rope.positions,
                    rope.inv_freq,
                    T,
                    N,
                    static_cast<int>(rope.heads * rope.D),
                    rope.scale};
  static int clusters = 0;
  return hopper::Launch(TurnedKernel, &clusters,
                        {T, N, static_cast<int>(a.K), static_cast<const uint8_t*>(a.x)}, stream, x,
                        w, u, v, up.scale, linears, out);
}

}  // namespace soup::kernels::cuda
