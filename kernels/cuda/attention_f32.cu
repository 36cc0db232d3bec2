#include <cmath>
#include <type_traits>

#include "kernels/cuda/attention_f32.h"
#include "kernels/cuda/common.cuh"

namespace soup::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// What a CTA's threads share out. A thread owns row `row` of the CTA's own tile together with its
// kLanes - 1 neighbours, which lie in the same warp; of that row it makes the scores with rows
// lane, lane + kLanes, ... of the other tile, and the output columns kWide (lane + kLanes e) ...
template <int D>
struct Shape {
  static constexpr int kRows = AttentionF32Rows(D);  // of a tile
  static constexpr int kLanes = kThreads / kRows;    // threads a row
  static constexpr int kScores = kRows / kLanes;     // scores a thread
  static constexpr int kColumns = D / kLanes;        // output columns a thread
  static constexpr int kWide = kColumns >= 4 ? 4 : kColumns;
  static constexpr int kRuns = kColumns / kWide;
  static constexpr int kRowFloats = D + 4;  // of a tile: rows start 4 banks apart
  static constexpr int kTileFloats = kRows * kRowFloats;
  static constexpr int kScoreFloats = kRows * (kRows + 1);
  static_assert(32 % kLanes == 0, "a row's threads lie in one warp");
  static_assert(kScores * kLanes == kRows && kColumns * kLanes == D && kRuns * kWide == kColumns,
                "rows and columns are shared out whole");
};

struct Params {
  const AttentionTile* tiles;
  const float* q;
  const float* k;
  const float* v;
  const float* dout;
  const float* out_in;
  float* out;
  float* lse;
  float* delta;
  float* dq;
  float* dk;
  float* dv;
  int64_t row_stride, out_stride, grad_stride, T;
  int Hq, Hkv, group, window;
  float scale, cap;
};

// Rows [0, rows) of a tile from global memory, rows at and after `valid` as zeros.
template <int D>
__device__ __forceinline__ void LoadTile(float* tile, const float* from, int64_t stride,
                                         int valid) {
  constexpr int kVectors = D / 4;
  for (int i = threadIdx.x; i < Shape<D>::kRows * kVectors; i += kThreads) {
    const int r = i / kVectors, c = i - r * kVectors;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (r < valid) x = *reinterpret_cast<const float4*>(from + r * stride + 4 * c);
    *reinterpret_cast<float4*>(tile + r * Shape<D>::kRowFloats + 4 * c) = x;
  }
}

// score[c] = row `row` of a times row lane + kLanes c of b.
template <int D>
__device__ __forceinline__ void Scores(const float* a, const float* b, int row, int lane,
                                       float (&score)[Shape<D>::kScores]) {
  using S = Shape<D>;
#pragma unroll
  for (int c = 0; c < S::kScores; ++c) score[c] = 0.f;
#pragma unroll 4
  for (int d = 0; d < D; d += 4) {
    const float4 x = *reinterpret_cast<const float4*>(a + row * S::kRowFloats + d);
#pragma unroll
    for (int c = 0; c < S::kScores; ++c) {
      const float4 y =
          *reinterpret_cast<const float4*>(b + (lane + S::kLanes * c) * S::kRowFloats + d);
      score[c] = fmaf(x.x, y.x, score[c]);
      score[c] = fmaf(x.y, y.y, score[c]);
      score[c] = fmaf(x.z, y.z, score[c]);
      score[c] = fmaf(x.w, y.w, score[c]);
    }
  }
}

// sum[column] += sum over j of weights[j] * row j of b, this thread's columns.
template <int D>
__device__ __forceinline__ void AddRows(const float* weights, const float* b, int lane,
                                        float (&sum)[Shape<D>::kColumns]) {
  using S = Shape<D>;
#pragma unroll 4
  for (int j = 0; j < S::kRows; ++j) {
    const float w = weights[j];
#pragma unroll
    for (int e = 0; e < S::kRuns; ++e) {
      const float* x = b + j * S::kRowFloats + S::kWide * (lane + S::kLanes * e);
      float f[S::kWide];
      if constexpr (S::kWide == 4) {
        const float4 v = *reinterpret_cast<const float4*>(x);
        f[0] = v.x;
        f[1] = v.y;
        f[2] = v.z;
        f[3] = v.w;
      } else {
#pragma unroll
        for (int k = 0; k < S::kWide; ++k) f[k] = x[k];
      }
#pragma unroll
      for (int k = 0; k < S::kWide; ++k)
        sum[S::kWide * e + k] = fmaf(w, f[k], sum[S::kWide * e + k]);
    }
  }
}

// This thread's columns of a row.
template <int D>
__device__ __forceinline__ void StoreRow(float* to, int lane,
                                         const float (&x)[Shape<D>::kColumns]) {
  using S = Shape<D>;
#pragma unroll
  for (int e = 0; e < S::kRuns; ++e) {
    float* at = to + S::kWide * (lane + S::kLanes * e);
#pragma unroll
    for (int k = 0; k < S::kWide; ++k) at[k] = x[S::kWide * e + k];
  }
}

// Over the threads of a row, the same bits in each.
template <int kLanes>
__device__ __forceinline__ float RowSum(float x) {
#pragma unroll
  for (int o = kLanes / 2; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
template <int kLanes>
__device__ __forceinline__ float RowMax(float x) {
#pragma unroll
  for (int o = kLanes / 2; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  return x;
}

__device__ __forceinline__ bool Sees(int query, int key, int window) {
  return key <= query && (window == 0 || query - key < window);
}

// The score that softmax sees, and its slope with regard to the product of query and key.
__device__ __forceinline__ float Scaled(float product, const Params& p, float* slope) {
  float s = product * p.scale;
  *slope = p.scale;
  if (p.cap > 0.f) {
    const float t = tanhf(s / p.cap);
    s = p.cap * t;
    *slope = p.scale * (1.f - t * t);
  }
  return s;
}

// Grid: tiles times Hq. Shared: Q, one tile for K and then V, P.
template <int D>
__global__ void __launch_bounds__(kThreads) ForwardKernel(const Params p) {
  using S = Shape<D>;
  extern __shared__ __align__(16) float shared[];
  float* const sq = shared;
  float* const sx = sq + S::kTileFloats;
  float* const sp = sx + S::kTileFloats;
  const int row = threadIdx.x / S::kLanes, lane = threadIdx.x % S::kLanes;
  const int h = static_cast<int>(blockIdx.x) % p.Hq;
  const AttentionTile tile = p.tiles[blockIdx.x / p.Hq];
  const int kh = h / p.group, q0 = tile.row, query = q0 + row;
  const int64_t first = tile.first;
  const float* k = p.k + first * p.row_stride + static_cast<int64_t>(kh) * D;
  const float* v = p.v + first * p.row_stride + static_cast<int64_t>(kh) * D;
  float* const weights = sp + row * (S::kRows + 1);
  LoadTile<D>(sq, p.q + (first + q0) * p.row_stride + static_cast<int64_t>(h) * D, p.row_stride,
              tile.length - q0);
  float best = -INFINITY, sum = 0.f;
  float acc[S::kColumns] = {};
  const int begin = p.window > 0 ? max(0, q0 - p.window + 1) / S::kRows * S::kRows : 0;
  const int end = min(tile.length, q0 + S::kRows);
  for (int k0 = begin; k0 < end; k0 += S::kRows) {
    __syncthreads();  // the last block's V is read
    LoadTile<D>(sx, k + k0 * p.row_stride, p.row_stride, tile.length - k0);
    __syncthreads();
    float s[S::kScores];
    Scores<D>(sq, sx, row, lane, s);
    float most = -INFINITY;
#pragma unroll
    for (int c = 0; c < S::kScores; ++c) {
      const int key = k0 + lane + S::kLanes * c;
      float slope;
      s[c] = Sees(query, key, p.window) && key < tile.length ? Scaled(s[c], p, &slope) : -INFINITY;
      most = fmaxf(most, s[c]);
    }
    // No key in sight yet: -inf, and every factor and weight is 0.
    const float next = fmaxf(best, RowMax<S::kLanes>(most));
    const float factor = best == -INFINITY ? 0.f : expf(best - next);
    float part = 0.f;
#pragma unroll
    for (int c = 0; c < S::kScores; ++c) {
      const float w = s[c] == -INFINITY ? 0.f : expf(s[c] - next);
      weights[lane + S::kLanes * c] = w;
      part += w;
    }
    best = next;
    sum = sum * factor + RowSum<S::kLanes>(part);
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) acc[i] *= factor;
    __syncthreads();  // K is read
    LoadTile<D>(sx, v + k0 * p.row_stride, p.row_stride, tile.length - k0);
    __syncthreads();
    AddRows<D>(weights, sx, lane, acc);
  }
  if (query >= tile.length) return;
  const float inverse = 1.f / sum;
#pragma unroll
  for (int i = 0; i < S::kColumns; ++i) acc[i] *= inverse;
  StoreRow<D>(p.out + (first + query) * p.out_stride + static_cast<int64_t>(h) * D, lane, acc);
  if (lane == 0) p.lse[h * p.T + first + query] = best + logf(sum);
}

// delta and dq. Grid: tiles times Hq. Shared: Q, dO, one tile for V and then K, dS.
template <int D>
__global__ void __launch_bounds__(kThreads) BackwardQKernel(const Params p) {
  using S = Shape<D>;
  extern __shared__ __align__(16) float shared[];
  float* const sq = shared;
  float* const so = sq + S::kTileFloats;
  float* const sx = so + S::kTileFloats;
  float* const sd = sx + S::kTileFloats;
  const int row = threadIdx.x / S::kLanes, lane = threadIdx.x % S::kLanes;
  const int h = static_cast<int>(blockIdx.x) % p.Hq;
  const AttentionTile tile = p.tiles[blockIdx.x / p.Hq];
  const int kh = h / p.group, q0 = tile.row, query = q0 + row;
  const int64_t first = tile.first, head = static_cast<int64_t>(h) * D;
  const float* k = p.k + first * p.row_stride + static_cast<int64_t>(kh) * D;
  const float* v = p.v + first * p.row_stride + static_cast<int64_t>(kh) * D;
  float* const weights = sd + row * (S::kRows + 1);
  const bool valid = query < tile.length;
  LoadTile<D>(sq, p.q + (first + q0) * p.row_stride + head, p.row_stride, tile.length - q0);
  LoadTile<D>(so, p.dout + (first + q0) * p.out_stride + head, p.out_stride, tile.length - q0);
  __syncthreads();
  float part = 0.f;
  if (valid) {
    const float* out = p.out_in + (first + query) * p.out_stride + head;
    for (int d = lane; d < D; d += S::kLanes)
      part = fmaf(so[row * S::kRowFloats + d], out[d], part);
  }
  const float delta = RowSum<S::kLanes>(part);
  const float lse = valid ? p.lse[h * p.T + first + query] : 0.f;
  if (valid && lane == 0) p.delta[h * p.T + first + query] = delta;
  float acc[S::kColumns] = {};
  const int begin = p.window > 0 ? max(0, q0 - p.window + 1) / S::kRows * S::kRows : 0;
  const int end = min(tile.length, q0 + S::kRows);
  for (int k0 = begin; k0 < end; k0 += S::kRows) {
    __syncthreads();  // the last block's K is read
    LoadTile<D>(sx, v + k0 * p.row_stride, p.row_stride, tile.length - k0);
    __syncthreads();
    float dp[S::kScores], s[S::kScores];
    Scores<D>(so, sx, row, lane, dp);
    __syncthreads();  // V is read
    LoadTile<D>(sx, k + k0 * p.row_stride, p.row_stride, tile.length - k0);
    __syncthreads();
    Scores<D>(sq, sx, row, lane, s);
#pragma unroll
    for (int c = 0; c < S::kScores; ++c) {
      const int key = k0 + lane + S::kLanes * c;
      float ds = 0.f;
      if (valid && key < tile.length && Sees(query, key, p.window)) {
        float slope;
        const float score = Scaled(s[c], p, &slope);
        ds = expf(score - lse) * (dp[c] - delta) * slope;
      }
      weights[lane + S::kLanes * c] = ds;
    }
    __syncwarp();  // a row's threads lie in one warp
    AddRows<D>(weights, sx, lane, acc);
  }
  if (valid) StoreRow<D>(p.dq + (first + query) * p.grad_stride + head, lane, acc);
}

// dk and dv. Grid: tiles times Hkv; a thread's row is a key. Shared: K, V, Q, dO, P and dS by key,
// lse and delta of the queries.
template <int D>
__global__ void __launch_bounds__(kThreads) BackwardKvKernel(const Params p) {
  using S = Shape<D>;
  extern __shared__ __align__(16) float shared[];
  float* const sk = shared;
  float* const sv = sk + S::kTileFloats;
  float* const sq = sv + S::kTileFloats;
  float* const so = sq + S::kTileFloats;
  float* const sp = so + S::kTileFloats;
  float* const sd = sp + S::kScoreFloats;
  float* const slse = sd + S::kScoreFloats;
  float* const sdelta = slse + S::kRows;
  const int row = threadIdx.x / S::kLanes, lane = threadIdx.x % S::kLanes;
  const int kh = static_cast<int>(blockIdx.x) % p.Hkv;
  const AttentionTile tile = p.tiles[blockIdx.x / p.Hkv];
  const int k0 = tile.row, key = k0 + row;
  const int64_t first = tile.first, kv_head = static_cast<int64_t>(kh) * D;
  float* const weights = sp + row * (S::kRows + 1);
  float* const slopes = sd + row * (S::kRows + 1);
  LoadTile<D>(sk, p.k + (first + k0) * p.row_stride + kv_head, p.row_stride, tile.length - k0);
  LoadTile<D>(sv, p.v + (first + k0) * p.row_stride + kv_head, p.row_stride, tile.length - k0);
  float dk[S::kColumns] = {}, dv[S::kColumns] = {};
  // Queries see this tile from its own rows on; with a window up to its last key's reach.
  const int64_t reach = static_cast<int64_t>(k0) + S::kRows - 1 + p.window;
  const int end = p.window > 0 && reach < tile.length ? static_cast<int>(reach) : tile.length;
  for (int g = 0; g < p.group; ++g) {
    const int h = kh * p.group + g;
    const int64_t head = static_cast<int64_t>(h) * D;
    for (int q0 = k0; q0 < end; q0 += S::kRows) {
      __syncthreads();  // the last block's Q, dO, lse and delta are read
      LoadTile<D>(sq, p.q + (first + q0) * p.row_stride + head, p.row_stride, tile.length - q0);
      LoadTile<D>(so, p.dout + (first + q0) * p.out_stride + head, p.out_stride, tile.length - q0);
      if (threadIdx.x < S::kRows) {
        const int query = q0 + static_cast<int>(threadIdx.x);
        const bool valid = query < tile.length;
        slse[threadIdx.x] = valid ? p.lse[h * p.T + first + query] : 0.f;
        sdelta[threadIdx.x] = valid ? p.delta[h * p.T + first + query] : 0.f;
      }
      __syncthreads();
      float s[S::kScores], dp[S::kScores];
      Scores<D>(sk, sq, row, lane, s);
      Scores<D>(sv, so, row, lane, dp);
#pragma unroll
      for (int c = 0; c < S::kScores; ++c) {
        const int i = lane + S::kLanes * c, query = q0 + i;
        float w = 0.f, ds = 0.f;
        if (key < tile.length && query < tile.length && Sees(query, key, p.window)) {
          float slope;
          const float score = Scaled(s[c], p, &slope);
          w = expf(score - slse[i]);
          ds = w * (dp[c] - sdelta[i]) * slope;
        }
        weights[i] = w;
        slopes[i] = ds;
      }
      __syncwarp();  // a row's threads lie in one warp
      AddRows<D>(weights, so, lane, dv);
      AddRows<D>(slopes, sq, lane, dk);
    }
  }
  if (key >= tile.length) return;
  StoreRow<D>(p.dk + (first + key) * p.grad_stride + kv_head, lane, dk);
  StoreRow<D>(p.dv + (first + key) * p.grad_stride + kv_head, lane, dv);
}

template <int D>
constexpr int ForwardFloats() {
  return 2 * Shape<D>::kTileFloats + Shape<D>::kScoreFloats;
}
template <int D>
constexpr int BackwardQFloats() {
  return 3 * Shape<D>::kTileFloats + Shape<D>::kScoreFloats;
}
template <int D>
constexpr int BackwardKvFloats() {
  return 4 * Shape<D>::kTileFloats + 2 * Shape<D>::kScoreFloats + 2 * Shape<D>::kRows;
}

cudaError_t Launch(void (*kernel)(Params), int floats, int64_t grid, const AttentionTile* tiles,
                   Params p, cudaStream_t stream) {
  if (grid == 0) return cudaSuccess;
  p.tiles = tiles;
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (bytes > 48 * 1024) {  // more than a block gets unasked
    const cudaError_t allowed = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (allowed != cudaSuccess) return allowed;
  }
  kernel<<<static_cast<unsigned>(grid), kThreads, bytes, stream>>>(p);
  return cudaGetLastError();
}

template <int D>
cudaError_t LaunchForward(const Params& p, const AttentionTiles& t, cudaStream_t stream) {
  return Launch(ForwardKernel<D>, ForwardFloats<D>(), int64_t{t.forward_count} * p.Hq, t.forward, p,
                stream);
}
template <int D>
cudaError_t LaunchBackward(const Params& p, const AttentionTiles& t, cudaStream_t stream) {
  const cudaError_t first = Launch(BackwardQKernel<D>, BackwardQFloats<D>(),
                                   int64_t{t.backward_q_count} * p.Hq, t.backward_q, p, stream);
  if (first != cudaSuccess) return first;
  return Launch(BackwardKvKernel<D>, BackwardKvFloats<D>(), int64_t{t.backward_kv_count} * p.Hkv,
                t.backward_kv, p, stream);
}

// Calls run(std::integral_constant of D).
template <typename Run>
cudaError_t WithHeadDim(int64_t D, const Run& run) {
  switch (D) {
    case 16:
      return run(std::integral_constant<int, 16>());
    case 32:
      return run(std::integral_constant<int, 32>());
    case 64:
      return run(std::integral_constant<int, 64>());
    case 96:
      return run(std::integral_constant<int, 96>());
    case 128:
      return run(std::integral_constant<int, 128>());
    case 256:
      return run(std::integral_constant<int, 256>());
    default:
      return cudaErrorInvalidValue;
  }
}

// Rows [covered, T) of `width` elements become zeros.
cudaError_t ZeroTail(void* rows, int64_t covered, int64_t T, int64_t width, int64_t stride,
                     cudaStream_t stream) {
  if (covered >= T) return cudaSuccess;
  return cudaMemset2DAsync(
      static_cast<float*>(rows) + covered * stride, static_cast<size_t>(stride) * sizeof(float), 0,
      static_cast<size_t>(width) * sizeof(float), static_cast<size_t>(T - covered), stream);
}

template <typename Args>
Params Common(const Args& a, const AttentionVariant& variant) {
  Params p{};
  p.q = static_cast<const float*>(a.q);
  p.k = static_cast<const float*>(a.k);
  p.v = static_cast<const float*>(a.v);
  p.row_stride = a.row_stride;
  p.out_stride = a.Hq * a.D;
  p.T = a.T;
  p.Hq = static_cast<int>(a.Hq);
  p.Hkv = static_cast<int>(a.Hkv);
  p.group = static_cast<int>(a.Hq / a.Hkv);
  p.window = variant.window;
  p.scale = a.scale;
  p.cap = variant.soft_cap;
  return p;
}

template <typename Args>
bool Bad(const Args& a) {
  return a.Hkv < 1 || a.Hq % a.Hkv != 0 || a.row_stride % 4 != 0 || !Aligned16(a.q) ||
         !Aligned16(a.k) || !Aligned16(a.v);
}

}  // namespace

cudaError_t AttentionF32Forward(const AttentionForwardArgs& a, const AttentionVariant& variant,
                                const AttentionTiles& tiles, cudaStream_t stream) {
  if (Bad(a) || !Aligned16(a.out)) return cudaErrorInvalidValue;
  Params p = Common(a, variant);
  p.out = static_cast<float*>(a.out);
  p.lse = a.lse;
  const cudaError_t tail = ZeroTail(a.out, a.cu_seqlens[a.S], a.T, a.Hq * a.D, a.Hq * a.D, stream);
  if (tail != cudaSuccess) return tail;
  return WithHeadDim(a.D,
                     [&](auto d) { return LaunchForward<decltype(d)::value>(p, tiles, stream); });
}

cudaError_t AttentionF32Backward(const AttentionBackwardArgs& a, const AttentionVariant& variant,
                                 const AttentionTiles& tiles, cudaStream_t stream) {
  if (Bad(a) || a.grad_row_stride % 4 != 0 || !Aligned16(a.dout) || !Aligned16(a.out))
    return cudaErrorInvalidValue;
  Params p = Common(a, variant);
  p.out_in = static_cast<const float*>(a.out);
  p.dout = static_cast<const float*>(a.dout);
  p.lse = const_cast<float*>(a.lse);
  p.delta = a.delta;
  p.dq = static_cast<float*>(a.dq);
  p.dk = static_cast<float*>(a.dk);
  p.dv = static_cast<float*>(a.dv);
  p.grad_stride = a.grad_row_stride;
  const int64_t covered = a.cu_seqlens[a.S];
  cudaError_t status = ZeroTail(a.dq, covered, a.T, a.Hq * a.D, a.grad_row_stride, stream);
  if (status == cudaSuccess)
    status = ZeroTail(a.dk, covered, a.T, a.Hkv * a.D, a.grad_row_stride, stream);
  if (status == cudaSuccess)
    status = ZeroTail(a.dv, covered, a.T, a.Hkv * a.D, a.grad_row_stride, stream);
  if (status != cudaSuccess) return status;
  return WithHeadDim(a.D,
                     [&](auto d) { return LaunchBackward<decltype(d)::value>(p, tiles, stream); });
}

}  // namespace soup::kernels::cuda
