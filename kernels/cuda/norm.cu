#include "kernels/cuda/common.cuh"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/rope.h"

namespace soup::kernels::cuda {
namespace {

// Vectors of 8 a thread holds in registers: rows up to kBlock * kHeld * 8 = 16384 wide are read
// once.
constexpr int kHeld = 4;
constexpr int kBlock = 512;

unsigned BlockFor(int64_t H) {
  const int64_t vectors = H / kVector;
  int64_t threads = (vectors + kHeld - 1) / kHeld;
  threads = (threads + 31) / 32 * 32;
  return static_cast<unsigned>(threads < 32 ? 32 : threads > kBlock ? kBlock : threads);
}

// x, y [T, H]; grid T, block BlockFor(H); rows from the last to the first.
template <typename V>
__global__ void __launch_bounds__(kBlock)
    ForwardKernel(const V* __restrict__ x, const uint4* __restrict__ weight, V* y,
                  float* __restrict__ rstd, int vectors, float inv_h, float eps, float offset,
                  bool accumulate) {
  BeginBehind();
  __shared__ float shared[32];
  const unsigned t = FromTheEnd(blockIdx.x, gridDim.x);
  const int64_t row = static_cast<int64_t>(t) * vectors;
  V held[kHeld];
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int c = threadIdx.x + k * blockDim.x;
    if (c >= vectors) continue;
    held[k] = x[row + c];
    float f[8];
    Unpack8(held[k], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(f[i], f[i], sum);
  }
  for (int c = threadIdx.x + kHeld * blockDim.x; c < vectors; c += blockDim.x) {
    float f[8];
    Unpack8(x[row + c], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(f[i], f[i], sum);
  }
  const float r = rsqrtf(BlockSum(sum, shared) * inv_h + eps);
  if (threadIdx.x == 0 && rstd != nullptr) rstd[t] = r;
  const auto write = [&](const V& from, int c) {
    float f[8], w[8];
    Unpack8(from, f);
    Unpack8(__ldg(weight + c), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] *= r * (w[i] + offset);
    if (accumulate) {
      float before[8];
      Unpack8(y[row + c], before);
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i] += before[i];
    }
    y[row + c] = PackAs<V>(f);
  };
  // Unrolled: what is held must stay in registers.
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int c = threadIdx.x + k * blockDim.x;
    if (c < vectors) write(held[k], c);
  }
  for (int c = threadIdx.x + kHeld * blockDim.x; c < vectors; c += blockDim.x) write(x[row + c], c);
}

// dx (+)= r * (dy w - x * r^2 * mean(dy w x)); grid T, rows from the last to the first.
template <typename V>
__global__ void __launch_bounds__(kBlock)
    BackwardKernel(const V* __restrict__ dy, const V* __restrict__ x,
                   const uint4* __restrict__ weight, const float* rstd, float* rstd_out, V* dx,
                   int vectors, float inv_h, bool accumulate, float offset, float eps) {
  BeginBehind();
  __shared__ float shared[32];
  const unsigned t = FromTheEnd(blockIdx.x, gridDim.x);
  const int64_t row = static_cast<int64_t>(t) * vectors;
  V held_x[kHeld], held_dy[kHeld], held_dx[kHeld];
  float dot = 0.f, squares = 0.f;
  const auto sum = [&](const V& vx, const V& vdy, int c) {
    float fx[8], g[8], w[8];
    Unpack8(vx, fx);
    Unpack8(vdy, g);
    Unpack8(__ldg(weight + c), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      dot = fmaf(g[i] * (w[i] + offset), fx[i], dot);
      squares = fmaf(fx[i], fx[i], squares);
    }
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int c = threadIdx.x + k * blockDim.x;
    if (c >= vectors) continue;
    held_x[k] = x[row + c];
    held_dy[k] = dy[row + c];
    if (accumulate) held_dx[k] = dx[row + c];
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int c = threadIdx.x + k * blockDim.x;
    if (c < vectors) sum(held_x[k], held_dy[k], c);
  }
  for (int c = threadIdx.x + kHeld * blockDim.x; c < vectors; c += blockDim.x)
    sum(x[row + c], dy[row + c], c);
  const float r = rstd != nullptr ? rstd[t] : rsqrtf(BlockSum(squares, shared) * inv_h + eps);
  if (threadIdx.x == 0 && rstd_out != nullptr) rstd_out[t] = r;
  const float k = r * r * BlockSum(dot, shared) * inv_h;
  const auto write = [&](const V& vx, const V& vdy, const V& before, int c) {
    float fx[8], g[8], w[8], out[8] = {};
    Unpack8(vx, fx);
    Unpack8(vdy, g);
    Unpack8(__ldg(weight + c), w);
    if (accumulate) Unpack8(before, out);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] += r * (g[i] * (w[i] + offset) - fx[i] * k);
    dx[row + c] = PackAs<V>(out);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int c = threadIdx.x + i * blockDim.x;
    if (c < vectors) write(held_x[i], held_dy[i], held_dx[i], c);
  }
  for (int c = threadIdx.x + kHeld * blockDim.x; c < vectors; c += blockDim.x)
    write(x[row + c], dy[row + c], accumulate ? dx[row + c] : V{}, c);
}

// Heads of up to 256: one warp a head, a lane holds 8 values or none; 8 heads a block.
constexpr int kHeadsPerBlock = 8;

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// Turns the head that a warp holds, 8 values a lane: a value's partner lies half of the turned
// dimensions away, in another lane.
__device__ __forceinline__ void Turn(const HeadRope& rope, int64_t t, int lane, float sign,
                                     float (&f)[8]) {
  if (rope.positions == nullptr) return;
  const int lanes = static_cast<int>(rope.rotary) / 2 / kVector;  // of one half
  const int angle = lane < lanes ? lane : lane - lanes;
  const int partner = lane < lanes ? lane + lanes : angle;
  const bool turns = lane < 2 * lanes;
  const float position = static_cast<float>(rope.positions[t]);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float other = __shfl_sync(~0u, f[k], turns ? partner : lane);
    float s, c;
    sincosf(position * (turns ? __ldg(rope.inv_freq + angle * kVector + k) : 0.f), &s, &c);
    s *= sign;
    const float turned = lane < lanes ? f[k] * c - other * s : f[k] * c + other * s;
    if (turns) f[k] = turned * rope.scale;
  }
}

// Which head of which row a warp has; false: none.
__device__ __forceinline__ bool HeadOf(int64_t T, int heads, int64_t* t, int* h) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kHeadsPerBlock + threadIdx.x / 32;
  *t = i / heads;
  *h = static_cast<int>(i - *t * heads);
  return i < T * heads;
}

template <typename T>
__global__ void __launch_bounds__(kHeadsPerBlock * 32) HeadForwardKernel(HeadNormForwardArgs a) {
  int64_t t;
  int h;
  if (!HeadOf(a.T, static_cast<int>(a.heads), &t, &h)) return;
  const int lane = threadIdx.x & 31;
  const bool holds = lane * kVector < a.D;
  const int64_t at = t * a.row_stride + h * a.D + lane * kVector;
  float f[8] = {}, w[8] = {};
  float sum = 0.f;
  if (holds) {
    const Vector<T> raw = *reinterpret_cast<const Vector<T>*>(static_cast<const T*>(a.x) + at);
    *reinterpret_cast<Vector<T>*>(static_cast<T*>(a.saved) + at) = raw;
    Unpack8(raw, f);
    Unpack8(__ldg(reinterpret_cast<const uint4*>(a.weight) + lane), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(f[i], f[i], sum);
  }
  const float r = rsqrtf(WarpSum(sum) / static_cast<float>(a.D) + a.eps);
#pragma unroll
  for (int i = 0; i < 8; ++i) f[i] *= r * (w[i] + a.weight_offset);
  Turn(a.rope, t, lane, 1.f, f);
  if (!holds) return;
  *reinterpret_cast<Vector<T>*>(static_cast<T*>(a.x) + at) = PackAs<Vector<T>>(f);
}

template <typename T>
__global__ void __launch_bounds__(kHeadsPerBlock * 32) HeadBackwardKernel(HeadNormBackwardArgs a) {
  int64_t t;
  int h;
  if (!HeadOf(a.T, static_cast<int>(a.heads), &t, &h)) return;
  const int lane = threadIdx.x & 31;
  const bool holds = lane * kVector < a.D;
  Vector<T>* dx =
      reinterpret_cast<Vector<T>*>(static_cast<T*>(a.dx) + t * a.grad_row_stride + h * a.D) + lane;
  float x[8] = {}, g[8] = {};
  float squares = 0.f, dot = 0.f;
  if (holds) {
    Unpack8(*(reinterpret_cast<const Vector<T>*>(static_cast<const T*>(a.x) + t * a.row_stride +
                                                 h * a.D) +
              lane),
            x);
    Unpack8(*dx, g);
  }
  Turn(a.rope, t, lane, -1.f, g);
  if (holds) {
    float w[8];
    Unpack8(__ldg(reinterpret_cast<const uint4*>(a.weight) + lane), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      g[i] *= w[i] + a.weight_offset;
      squares = fmaf(x[i], x[i], squares);
      dot = fmaf(g[i], x[i], dot);
    }
  }
  const float inv_d = 1.f / static_cast<float>(a.D);
  const float r = rsqrtf(WarpSum(squares) * inv_d + a.eps);
  const float k = r * r * WarpSum(dot) * inv_d;
  if (!holds) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) g[i] = r * (g[i] - x[i] * k);
  *dx = PackAs<Vector<T>>(g);
}

bool BadHeads(int64_t D, int64_t stride, const void* x, const void* y, const void* weight) {
  return D % kVector != 0 || D > 32 * kVector || stride % kVector != 0 || !Aligned16(x) ||
         !Aligned16(y) || !Aligned16(weight);
}
unsigned HeadBlocks(int64_t heads) {
  return static_cast<unsigned>((heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
}

}  // namespace

cudaError_t HeadNormForward(const HeadNormForwardArgs& a, cudaStream_t stream, ActType act) {
  if (BadHeads(a.D, a.row_stride, a.x, a.saved, a.weight) || !HeadRopeTaken(a.rope, a.D))
    return cudaErrorInvalidValue;
  if (a.T * a.heads == 0) return cudaSuccess;
  const auto kernel = act == ActType::kF32 ? HeadForwardKernel<float> : HeadForwardKernel<bf16>;
  kernel<<<HeadBlocks(a.T * a.heads), kHeadsPerBlock * 32, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t HeadNormBackward(const HeadNormBackwardArgs& a, cudaStream_t stream, ActType act) {
  if (BadHeads(a.D, a.row_stride, a.x, a.dx, a.weight) || a.grad_row_stride % kVector != 0 ||
      !HeadRopeTaken(a.rope, a.D))
    return cudaErrorInvalidValue;
  if (a.T * a.heads == 0) return cudaSuccess;
  const auto kernel = act == ActType::kF32 ? HeadBackwardKernel<float> : HeadBackwardKernel<bf16>;
  kernel<<<HeadBlocks(a.T * a.heads), kHeadsPerBlock * 32, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t RmsNormForward(const RmsNormForwardArgs& a, cudaStream_t stream, ActType act) {
  if (a.H % kVector != 0 || !Aligned16(a.x) || !Aligned16(a.y) || !Aligned16(a.weight))
    return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    return LaunchBehind(ForwardKernel<V>, dim3(static_cast<unsigned>(a.T)), BlockFor(a.H), 0,
                        stream, static_cast<const V*>(a.x),
                        reinterpret_cast<const uint4*>(a.weight), static_cast<V*>(a.y), a.rstd,
                        static_cast<int>(a.H / kVector), 1.f / static_cast<float>(a.H), a.eps,
                        a.weight_offset, a.accumulate);
  });
}

cudaError_t RmsNormBackward(const RmsNormBackwardArgs& a, cudaStream_t stream, ActType act) {
  if (a.H % kVector != 0 || !Aligned16(a.x) || !Aligned16(a.dy) || !Aligned16(a.dx) ||
      !Aligned16(a.weight)) {
    return cudaErrorInvalidValue;
  }
  if (a.T == 0) return cudaSuccess;
  return WithActType(act, [&](auto t) {
    using V = Vector<decltype(t)>;
    return LaunchBehind(BackwardKernel<V>, dim3(static_cast<unsigned>(a.T)), BlockFor(a.H), 0,
                        stream, static_cast<const V*>(a.dy), static_cast<const V*>(a.x),
                        reinterpret_cast<const uint4*>(a.weight), a.rstd, a.rstd_out,
                        static_cast<V*>(a.dx), static_cast<int>(a.H / kVector),
                        1.f / static_cast<float>(a.H), a.accumulate, a.weight_offset, a.eps);
  });
}

}  // namespace soup::kernels::cuda
