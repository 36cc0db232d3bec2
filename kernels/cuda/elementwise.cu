#include "kernels/cuda/common.cuh"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/philox.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 256;

__device__ __forceinline__ int64_t FirstIndex() {
  return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
}
__device__ __forceinline__ int64_t Stride() { return gridDim.x * static_cast<int64_t>(blockDim.x); }

// A thread's vector of a [T, width] matrix: blocks take rows from the last to the first, `chunks`
// of them a row. False: beyond the row.
__device__ __forceinline__ bool VectorOf(int chunks, int width, int64_t* t, int* c) {
  const unsigned block = FromTheEnd(blockIdx.x, gridDim.x);
  *t = block / static_cast<unsigned>(chunks);
  *c = static_cast<int>(block % static_cast<unsigned>(chunks)) * kBlock + threadIdx.x;
  return *c < width;
}
int ChunksOf(int64_t width) { return static_cast<int>((width + kBlock - 1) / kBlock); }

// gate_up [T, 2 I] as vectors of 8: row of 2 * width vectors, gate first; y [T, I].
template <typename V, bool GELU>
__global__ void __launch_bounds__(kBlock)
    SwigluForwardKernel(const V* __restrict__ gate_up, V* __restrict__ y, int chunks, int width) {
  BeginBehind();
  int64_t t;
  int c;
  if (!VectorOf(chunks, width, &t, &c)) return;
  float g[8], u[8];
  Unpack8(LoadOnce(gate_up + t * 2 * width + c), g);
  Unpack8(LoadOnce(gate_up + t * 2 * width + width + c), u);
  Gated<GELU>(u, g);
  y[t * width + c] = PackAs<V>(g);
}

// d_up = dy * f(g); d_gate = dy * u * f'(g). In place is fine: a thread reads both of its vectors
// before it writes them.
template <typename V, bool GELU>
__global__ void __launch_bounds__(kBlock)
    SwigluBackwardKernel(const V* gate_up, const V* __restrict__ dy, V* d_gate_up, int chunks,
                         int width) {
  BeginBehind();
  int64_t t;
  int c;
  if (!VectorOf(chunks, width, &t, &c)) return;
  const int64_t at = t * 2 * width + c;
  float g[8], u[8], d[8];
  Unpack8(gate_up[at], g);
  Unpack8(gate_up[at + width], u);
  Unpack8(LoadOnce(dy + t * width + c), d);
  GatedBack<GELU>(d, g, u);
  d_gate_up[at] = PackAs<V>(g);
  d_gate_up[at + width] = PackAs<V>(u);
}

// y [T, width vectors], rows `stride` vectors apart.
template <typename V>
__global__ void __launch_bounds__(kBlock)
    AddBiasKernel(V* y, const uint4* __restrict__ bias, int64_t T, int width, int64_t stride) {
  const int64_t n = T * width;
  for (int64_t i = FirstIndex(); i < n; i += Stride()) {
    const int64_t t = i / width, c = i - t * width;
    float a[8], b[8];
    Unpack8(y[t * stride + c], a);
    Unpack8(__ldg(bias + c), b);
#pragma unroll
    for (int k = 0; k < 8; ++k) a[k] += b[k];
    y[t * stride + c] = PackAs<V>(a);
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlock)
    AxpyKernel(const T* x, T* y, int64_t n, float scale, bool accumulate) {
  const int64_t vectors = n / kVector;
  for (int64_t i = FirstIndex(); i < vectors; i += Stride()) {
    float a[8], b[8];
    Unpack8(reinterpret_cast<const Vector<T>*>(x)[i], a);
    if (accumulate) Unpack8(reinterpret_cast<const Vector<T>*>(y)[i], b);
#pragma unroll
    for (int k = 0; k < 8; ++k) b[k] = accumulate ? fmaf(scale, a[k], b[k]) : scale * a[k];
    reinterpret_cast<Vector<T>*>(y)[i] = PackAs<Vector<T>>(b);
  }
  const int64_t i = vectors * kVector + FirstIndex();
  if (i < n) {
    const float a = ToFloat(x[i]);
    y[i] = FromFloat<T>(accumulate ? fmaf(scale, a, ToFloat(y[i])) : scale * a);
  }
}

// A thread takes 4 elements: one Philox block.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    DropoutKernel(const T* x, T* y, int64_t n, uint32_t threshold, float keep_scale,
                  PhiloxStream draws) {
  const int64_t blocks = (n + 3) / 4;
  for (int64_t i = FirstIndex(); i < blocks; i += Stride()) {
    const PhiloxBlock draw = draws.Block(static_cast<uint64_t>(i));
    for (int k = 0; k < 4 && 4 * i + k < n; ++k) {
      const float v = ToFloat(x[4 * i + k]);
      y[4 * i + k] = FromFloat<T>(draw.v[k] >= threshold ? v * keep_scale : 0.f);
    }
  }
}

// One block a row of `width` 16-byte vectors.
__global__ void __launch_bounds__(kBlock)
    GatherKernel(const uint4* __restrict__ table, const int32_t* __restrict__ rows,
                 uint4* __restrict__ y, int width) {
  const uint4* from = table + static_cast<int64_t>(rows[blockIdx.x]) * width;
  uint4* to = y + static_cast<int64_t>(blockIdx.x) * width;
  for (int c = threadIdx.x; c < width; c += blockDim.x) to[c] = from[c];
}

// bf16 rows, widened; a block a row of `width` vectors.
__global__ void __launch_bounds__(kBlock)
    GatherWideKernel(const uint4* __restrict__ table, const int32_t* __restrict__ rows,
                     F32x8* __restrict__ y, int width) {
  const uint4* from = table + static_cast<int64_t>(rows[blockIdx.x]) * width;
  F32x8* to = y + static_cast<int64_t>(blockIdx.x) * width;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    float f[8];
    Unpack8(from[c], f);
    to[c] = PackAs<F32x8>(f);
  }
}

__global__ void __launch_bounds__(kBlock)
    ScatterKernel(const uint4* __restrict__ dy, const int32_t* __restrict__ rows,
                  uint4* __restrict__ dx, int width) {
  uint4* to = dx + static_cast<int64_t>(rows[blockIdx.x]) * width;
  const uint4* from = dy + static_cast<int64_t>(blockIdx.x) * width;
  for (int c = threadIdx.x; c < width; c += blockDim.x) to[c] = from[c];
}

__global__ void __launch_bounds__(kBlock)
    NarrowKernel(const float* __restrict__ src, bf16* __restrict__ dst, int64_t n) {
  for (int64_t i = FirstIndex(); i < n; i += Stride()) dst[i] = __float2bfloat16_rn(src[i]);
}

// 16-byte vectors of a row of H activations.
int VectorsOf(int64_t H, ActType act) { return static_cast<int>(H * ActBytes(act) / 16); }

cudaError_t Gather(const void* table, const int32_t* rows, void* y, int64_t n, int64_t H,
                   ActType act, cudaStream_t stream) {
  if (H % kVector != 0 || !Aligned16(table) || !Aligned16(y)) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  GatherKernel<<<static_cast<unsigned>(n), kBlock, 0, stream>>>(
      static_cast<const uint4*>(table), rows, static_cast<uint4*>(y), VectorsOf(H, act));
  return cudaGetLastError();
}

}  // namespace

cudaError_t SwigluForward(const SwigluForwardArgs& a, cudaStream_t stream, ActType act) {
  if (a.I % kVector != 0 || !Aligned16(a.gate_up) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    const auto kernel = a.gate == GateActivation::kGeluTanh ? SwigluForwardKernel<V, true>
                                                            : SwigluForwardKernel<V, false>;
    const int chunks = ChunksOf(a.I / kVector);
    return LaunchBehind(kernel, dim3(static_cast<unsigned>(a.T * chunks)), kBlock, 0, stream,
                        static_cast<const V*>(a.gate_up), static_cast<V*>(a.y), chunks,
                        static_cast<int>(a.I / kVector));
  });
}

cudaError_t SwigluBackward(const SwigluBackwardArgs& a, cudaStream_t stream, ActType act) {
  if (a.I % kVector != 0 || !Aligned16(a.gate_up) || !Aligned16(a.dy) || !Aligned16(a.d_gate_up)) {
    return cudaErrorInvalidValue;
  }
  if (a.T == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    const auto kernel = a.gate == GateActivation::kGeluTanh ? SwigluBackwardKernel<V, true>
                                                            : SwigluBackwardKernel<V, false>;
    const int chunks = ChunksOf(a.I / kVector);
    return LaunchBehind(kernel, dim3(static_cast<unsigned>(a.T * chunks)), kBlock, 0, stream,
                        static_cast<const V*>(a.gate_up), static_cast<const V*>(a.dy),
                        static_cast<V*>(a.d_gate_up), chunks, static_cast<int>(a.I / kVector));
  });
}

cudaError_t AddBias(const AddBiasArgs& a, cudaStream_t stream, ActType act) {
  if (a.N % kVector != 0 || a.row_stride % kVector != 0 || !Aligned16(a.y) || !Aligned16(a.bias))
    return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    AddBiasKernel<V><<<GridFor(a.T * a.N / kVector, kBlock), kBlock, 0, stream>>>(
        static_cast<V*>(a.y), reinterpret_cast<const uint4*>(a.bias), a.T,
        static_cast<int>(a.N / kVector), a.row_stride / kVector);
    return cudaGetLastError();
  });
}

cudaError_t Axpy(const AxpyArgs& a, cudaStream_t stream, ActType act) {
  if (!Aligned16(a.x) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using T = decltype(t);
    AxpyKernel<T><<<GridFor((a.n + kVector - 1) / kVector, kBlock), kBlock, 0, stream>>>(
        static_cast<const T*>(a.x), static_cast<T*>(a.y), a.n, a.scale, a.accumulate);
    return cudaGetLastError();
  });
}

cudaError_t Dropout(const DropoutArgs& a, cudaStream_t stream, ActType act) {
  if (!(a.p >= 0.f && a.p < 1.f)) return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  const uint32_t threshold = static_cast<uint32_t>(static_cast<double>(a.p) * 4294967296.0);
  return WithActType(act, [&](auto t) {
    using T = decltype(t);
    DropoutKernel<T><<<GridFor((a.n + 3) / 4, kBlock), kBlock, 0, stream>>>(
        static_cast<const T*>(a.x), static_cast<T*>(a.y), a.n, threshold, 1.f / (1.f - a.p),
        PhiloxStream(a.seed, a.stream_hi, a.stream_lo));
    return cudaGetLastError();
  });
}

cudaError_t GatherRows(const GatherRowsArgs& a, cudaStream_t stream, ActType act) {
  if (act == ActType::kBf16) return Gather(a.table, a.ids, a.y, a.T, a.H, act, stream);
  if (a.H % kVector != 0 || !Aligned16(a.table) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  GatherWideKernel<<<static_cast<unsigned>(a.T), kBlock, 0, stream>>>(
      reinterpret_cast<const uint4*>(a.table), a.ids, static_cast<F32x8*>(a.y),
      static_cast<int>(a.H / kVector));
  return cudaGetLastError();
}

cudaError_t GatherActRows(const GatherActRowsArgs& a, cudaStream_t stream, ActType act) {
  return Gather(a.x, a.rows, a.y, a.n, a.H, act, stream);
}

cudaError_t ScatterActRows(const ScatterActRowsArgs& a, cudaStream_t stream, ActType act) {
  if (a.H % kVector != 0 || !Aligned16(a.dy) || !Aligned16(a.dx)) return cudaErrorInvalidValue;
  const cudaError_t cleared =
      cudaMemsetAsync(a.dx, 0, static_cast<size_t>(a.T * a.H * ActBytes(act)), stream);
  if (cleared != cudaSuccess || a.n == 0) return cleared;
  ScatterKernel<<<static_cast<unsigned>(a.n), kBlock, 0, stream>>>(
      static_cast<const uint4*>(a.dy), a.rows, static_cast<uint4*>(a.dx), VectorsOf(a.H, act));
  return cudaGetLastError();
}

cudaError_t NarrowToBf16(const float* src, void* dst, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  NarrowKernel<<<GridFor(n, kBlock), kBlock, 0, stream>>>(src, static_cast<bf16*>(dst), n);
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
