// What the attention kernels of sm_90a share. All tiles are boxes of 64 rows and 64 columns, in
// rows of 128 bytes, in the 128-byte swizzle. A head is two boxes wide. Device code only; C++17.
#ifndef SOUP_KERNELS_CUDA_HOPPER_ATTENTION_TILES_CUH_
#define SOUP_KERNELS_CUDA_HOPPER_ATTENTION_TILES_CUH_

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/overlap.cuh"

namespace soup::kernels::cuda::hopper_attention {

inline constexpr int kHeadDim = 128;
inline constexpr int kBox = 64;
inline constexpr int kBoxBytes = kBox * kBox * 2;
inline constexpr int kBlock = 128;       // keys or queries of a CTA, a box's rows each warpgroup
inline constexpr int kAlignment = 1024;  // of the swizzle's pattern
inline constexpr int kBarrierBytes = 128;
inline constexpr int kPanel = kBoxBytes / 16;    // from one box to the next, as descriptors count
inline constexpr int kNextRows = 16 * 128 / 16;  // 16 rows of a box on

// How queries and keys were turned (ops.h, RopeArgs): by whole heads.
struct Turning {
  const int32_t* positions;  // of the first sequence's first row; null: they were not
  const float* inv_freq;     // [64]
  float scale;
};

#if SOUP_ON_HOPPER

// A place in a ring.
template <int kRing>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kRing) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A warpgroup's row of the matrices that it stores at one place of a lane, and their chunk there.
struct StorePlace {
  int row, right;
  __device__ explicit StorePlace(int thread)
      : row(thread / 32 * 16 + (thread & 15)), right((thread & 31) / 16) {}
  // Of the 8 columns of chunk c, an even one, and the next 8.
  __device__ __forceinline__ uint32_t In(uint32_t box, int c) const {
    return box + row * 128 + (((c + right) ^ row) & 7) * 16;
  }
};

// A warpgroup's 64 x 128 sums, scaled, to two boxes.
__device__ __forceinline__ void StoreSums(const float (&d)[64], float scale, uint32_t low,
                                          uint32_t high, int thread) {
  const StorePlace place(thread);
  const auto pair = [&](int i) { return PackPair(d[i] * scale, d[i + 1] * scale); };
#pragma unroll
  for (int c = 0; c < 16; c += 2) {
    StoreMatrices(place.In(c < 8 ? low : high, c & 7), pair(4 * c), pair(4 * c + 2),
                  pair(4 * c + 4), pair(4 * c + 6));
  }
}

// The body of a kernel of three warpgroups: one brings, by one thread, what two multiply.
template <typename Pass, typename Params>
__device__ __forceinline__ void BringAndMultiply(const Params& p) {
  extern __shared__ unsigned char shared[];
  const Pass pass(p, shared);
  if (threadIdx.x == 0) pass.InitBarriers();
  __syncthreads();
  BeginBehind();
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x & 127;
  if (warpgroup == 0) {
    GiveRegisters<40>();
    if (thread == 0) pass.BringTiles();
  } else {
    TakeRegisters<232>();
    pass.Multiply(warpgroup - 1, thread);
  }
}

// Sine and cosine of an angle of up to some 10^6: turns taken off in three parts, then the card's
// own for what is left. Good to 2^-18.
__device__ __forceinline__ void SineCosine(float x, float* sine, float* cosine) {
  const float turns = rintf(x * 0.15915494309189535f);
  float left = fmaf(-turns, 6.28125f, x);
  left = fmaf(-turns, 1.9350051879882812e-3f, left);
  left = fmaf(-turns, 3.0199159819567e-7f, left);
  *sine = __sinf(left);
  *cosine = __cosf(left);
}

// A warpgroup's gradients of turned rows become those of the rows before: rows `row` and row + 8 of
// a lane, of `rows`.
__device__ __forceinline__ void TurnBack(const Turning& turning, int row, int rows, int lane,
                                         float (&d)[64]) {
  float position[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool valid = row + 8 * r < rows;
    position[r] = valid ? static_cast<float>(__ldg(turning.positions + row + 8 * r)) : 0.f;
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {  // element i of the lower half of a head, and 64 columns on
    const int column = i / 4 * 8 + 2 * (lane & 3) + i % 2;
    float sine, cosine;
    SineCosine(position[i / 2 % 2] * __ldg(turning.inv_freq + column), &sine, &cosine);
    const float low = d[i], high = d[i + 32];
    d[i] = (low * cosine + high * sine) * turning.scale;
    d[i + 32] = (high * cosine - low * sine) * turning.scale;
  }
}

#endif  // SOUP_ON_HOPPER

}  // namespace soup::kernels::cuda::hopper_attention

#endif  // SOUP_KERNELS_CUDA_HOPPER_ATTENTION_TILES_CUH_
