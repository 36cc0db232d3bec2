#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/moe.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kRouteWarps = 4;  // tokens a block
constexpr int64_t kMostExperts = 4096;

// Sum over a warp, the same bits in every lane.
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// p [E] in shared memory = softmax of a row of logits; a warp.
__device__ __forceinline__ void Softmax(const float* logits, int E, float* p, int lane) {
  float largest = -INFINITY;
  for (int e = lane; e < E; e += 32) largest = fmaxf(largest, logits[e]);
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
  float sum = 0.f;
  for (int e = lane; e < E; e += 32) {
    p[e] = expf(logits[e] - largest);
    sum += p[e];
  }
  const float inverse = 1.f / WarpSum(sum);
  for (int e = lane; e < E; e += 32) p[e] *= inverse;
  __syncwarp();
}

__global__ void __launch_bounds__(kRouteWarps * 32) RouteKernel(RouteArgs a) {
  extern __shared__ float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, E = static_cast<int>(a.E);
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  if (t >= a.T) return;
  float* p = shared + static_cast<size_t>(warp) * E;
  Softmax(a.logits + t * a.lde, E, p, lane);
  float sum = 0.f;
  for (int j = 0; j < a.k; ++j) {
    // Each lane's first largest, then the warp's: of equals the lower index. Taken ones are below
    // 0; a NaN counts as 0, so that there is always one to take.
    float value = -1.f;
    int best = E;
    for (int e = lane; e < E; e += 32) {
      const float v = p[e] != p[e] ? 0.f : p[e];
      if (v > value) {
        value = v;
        best = e;
      }
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
      const float v = __shfl_xor_sync(~0u, value, o);
      const int e = __shfl_xor_sync(~0u, best, o);
      if (v > value || (v == value && e < best)) {
        value = v;
        best = e;
      }
    }
    const float weight = p[best];
    __syncwarp();
    if (lane == 0) {
      a.experts[t * a.k + j] = best;
      a.weights[t * a.k + j] = weight;
      p[best] = -1.f;
    }
    __syncwarp();
    sum += weight;
  }
  if (!a.normalise) return;
  for (int j = lane; j < a.k; j += 32) a.weights[t * a.k + j] /= sum;
}

template <typename T>
__global__ void __launch_bounds__(kRouteWarps * 32) RouteBackwardKernel(RouteBackwardArgs a) {
  extern __shared__ float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int E = static_cast<int>(a.E), lde = static_cast<int>(a.lde);
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  if (t >= a.T) return;
  float* out = shared + static_cast<size_t>(warp) * lde;
  float m = 0.f;
  for (int j = 0; j < a.k; ++j) m += a.weights[t * a.k + j] * a.d_weights[t * a.k + j];
  if (!a.normalise) {
    Softmax(a.logits + t * a.lde, E, out, lane);
    for (int e = lane; e < E; e += 32) out[e] = -out[e] * m;
  } else {
    for (int e = lane; e < E; e += 32) out[e] = 0.f;
  }
  for (int e = E + lane; e < lde; e += 32) out[e] = 0.f;
  __syncwarp();
  for (int j = lane; j < a.k; j += 32) {
    const float d = a.d_weights[t * a.k + j];
    out[a.experts[t * a.k + j]] += a.weights[t * a.k + j] * (a.normalise ? d - m : d);
  }
  __syncwarp();
  T* to = static_cast<T*>(a.d_logits) + t * a.lde;
  for (int e = lane; e < lde; e += 32) to[e] = FromFloat<T>(out[e]);
}

// A block an expert, walking all entries: places by a prefix sum over the block, so entries stay in
// order.
__global__ void __launch_bounds__(kBlock) ListKernel(ListExpertsArgs a) {
  __shared__ int warps[kBlock / 32];
  const int expert = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  int32_t* list = a.lists + static_cast<int64_t>(expert) * a.T;
  const int64_t n = a.T * a.k;
  int count = 0;
  for (int64_t i0 = 0; i0 < n; i0 += kBlock) {
    const int64_t i = i0 + threadIdx.x;
    const bool mine = i < n && a.experts[i] == expert;
    const unsigned ballot = __ballot_sync(~0u, mine);
    if (lane == 0) warps[warp] = __popc(ballot);
    __syncthreads();
    int before = 0, total = 0;
    for (int w = 0; w < kBlock / 32; ++w) {
      before += w < warp ? warps[w] : 0;
      total += warps[w];
    }
    if (mine) list[count + before + __popc(ballot & ((1u << lane) - 1))] = static_cast<int32_t>(i);
    count += total;
    __syncthreads();
  }
  if (threadIdx.x == 0) a.counts[expert] = count;
}

// A block a row of `width` 16-byte vectors.
__global__ void __launch_bounds__(kBlock)
    GatherKernel(const uint4* __restrict__ x, const int32_t* __restrict__ entries,
                 uint4* __restrict__ y, int64_t n, int width, int k) {
  uint4* to = y + static_cast<int64_t>(blockIdx.x) * width;
  if (blockIdx.x >= n) {
    for (int c = threadIdx.x; c < width; c += kBlock) to[c] = make_uint4(0, 0, 0, 0);
    return;
  }
  const uint4* from = x + static_cast<int64_t>(entries[blockIdx.x] / k) * width;
  for (int c = threadIdx.x; c < width; c += kBlock) to[c] = from[c];
}

template <typename V>
__global__ void __launch_bounds__(kBlock)
    ScatterKernel(const V* __restrict__ x, const int32_t* __restrict__ entries,
                  const float* __restrict__ weights, float4* __restrict__ y, int width, int k) {
  const int32_t entry = entries[blockIdx.x];
  const float weight = weights == nullptr ? 1.f : weights[entry];
  const V* from = x + static_cast<int64_t>(blockIdx.x) * width;
  float4* to = y + static_cast<int64_t>(entry / k) * width * 2;
  for (int c = threadIdx.x; c < width; c += kBlock) {
    float f[8];
    Unpack8(from[c], f);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 v = to[2 * c + half];
      v.x = fmaf(weight, f[4 * half], v.x);
      v.y = fmaf(weight, f[4 * half + 1], v.y);
      v.z = fmaf(weight, f[4 * half + 2], v.z);
      v.w = fmaf(weight, f[4 * half + 3], v.w);
      to[2 * c + half] = v;
    }
  }
}

// A block a row.
template <typename V, bool GELU>
__global__ void __launch_bounds__(kBlock)
    EntryGradKernel(const V* __restrict__ gate_up, V* d_act, const int32_t* __restrict__ entries,
                    const float* __restrict__ weights, float* __restrict__ d_weights, int width) {
  __shared__ float shared[32];
  const int32_t entry = entries[blockIdx.x];
  const float weight = weights[entry];
  const V* gate = gate_up + static_cast<int64_t>(blockIdx.x) * 2 * width;
  V* d = d_act + static_cast<int64_t>(blockIdx.x) * width;
  float sum = 0.f;
  for (int c = threadIdx.x; c < width; c += kBlock) {
    float g[8], u[8], f[8];
    Unpack8(gate[c], g);
    Unpack8(gate[width + c], u);
    Unpack8(d[c], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = fmaf(f[i], Gate<GELU>(g[i]) * u[i], sum);
      f[i] *= weight;
    }
    d[c] = PackAs<V>(f);
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) d_weights[entry] = sum;
}

template <typename V>
__global__ void __launch_bounds__(kBlock)
    AddF32Kernel(const float4* __restrict__ x, V* y, int64_t vectors, bool accumulate) {
  const int64_t stride = gridDim.x * static_cast<int64_t>(kBlock);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < vectors;
       i += stride) {
    const float4 a = x[2 * i], b = x[2 * i + 1];
    float f[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (accumulate) {
      float before[8];
      Unpack8(y[i], before);
#pragma unroll
      for (int k = 0; k < 8; ++k) f[k] += before[k];
    }
    y[i] = PackAs<V>(f);
  }
}

unsigned RouteBlocks(int64_t T) {
  return static_cast<unsigned>((T + kRouteWarps - 1) / kRouteWarps);
}

// More shared memory than a block gets unasked.
template <typename Kernel>
cudaError_t AllowShared(Kernel kernel, size_t bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

}  // namespace

cudaError_t Route(const RouteArgs& a, cudaStream_t stream) {
  if (a.E < 1 || a.E > kMostExperts || a.k > a.E || a.lde < a.E) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  const size_t shared = static_cast<size_t>(kRouteWarps * a.E) * sizeof(float);
  const cudaError_t allowed = AllowShared(RouteKernel, shared);
  if (allowed != cudaSuccess) return allowed;
  RouteKernel<<<RouteBlocks(a.T), kRouteWarps * 32, shared, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t RouteBackward(const RouteBackwardArgs& a, cudaStream_t stream, ActType act) {
  if (a.E < 1 || a.lde > kMostExperts || a.k > a.E || a.lde < a.E) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  const size_t shared = static_cast<size_t>(kRouteWarps * a.lde) * sizeof(float);
  const auto kernel = act == ActType::kF32 ? RouteBackwardKernel<float> : RouteBackwardKernel<bf16>;
  const cudaError_t allowed = AllowShared(kernel, shared);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<RouteBlocks(a.T), kRouteWarps * 32, shared, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t ListExperts(const ListExpertsArgs& a, cudaStream_t stream) {
  if (a.E < 1 || a.E > kMostExperts) return cudaErrorInvalidValue;
  ListKernel<<<static_cast<unsigned>(a.E), kBlock, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t GatherEntries(const GatherEntriesArgs& a, cudaStream_t stream, ActType act) {
  if (a.H % kVector != 0 || !Aligned16(a.x) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.rows == 0) return cudaSuccess;
  GatherKernel<<<static_cast<unsigned>(a.rows), kBlock, 0, stream>>>(
      static_cast<const uint4*>(a.x), a.entries, static_cast<uint4*>(a.y), a.n,
      static_cast<int>(a.H * ActBytes(act) / 16), static_cast<int>(a.k));
  return cudaGetLastError();
}

cudaError_t ScatterEntries(const ScatterEntriesArgs& a, cudaStream_t stream, ActType act) {
  if (a.H % kVector != 0 || !Aligned16(a.x) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    ScatterKernel<V><<<static_cast<unsigned>(a.n), kBlock, 0, stream>>>(
        static_cast<const V*>(a.x), a.entries, a.weights, reinterpret_cast<float4*>(a.y),
        static_cast<int>(a.H / kVector), static_cast<int>(a.k));
    return cudaGetLastError();
  });
}

cudaError_t EntryGrad(const EntryGradArgs& a, cudaStream_t stream, ActType act) {
  if (a.I % kVector != 0 || !Aligned16(a.gate_up) || !Aligned16(a.d_act))
    return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    const auto kernel =
        a.gate == GateActivation::kGeluTanh ? EntryGradKernel<V, true> : EntryGradKernel<V, false>;
    kernel<<<static_cast<unsigned>(a.n), kBlock, 0, stream>>>(
        static_cast<const V*>(a.gate_up), static_cast<V*>(a.d_act), a.entries, a.weights,
        a.d_weights, static_cast<int>(a.I / kVector));
    return cudaGetLastError();
  });
}

cudaError_t AddF32(const AddF32Args& a, cudaStream_t stream, ActType act) {
  if (a.n % kVector != 0 || !Aligned16(a.x) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.n == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    AddF32Kernel<V><<<GridFor(a.n / kVector, kBlock), kBlock, 0, stream>>>(
        reinterpret_cast<const float4*>(a.x), static_cast<V*>(a.y), a.n / kVector, a.accumulate);
    return cudaGetLastError();
  });
}

}  // namespace soup::kernels::cuda
