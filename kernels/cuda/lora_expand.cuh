// y [T, columns] (+)= scale * u W^T, and an addend too: the rank is summed over. Included by
// lora.cu alone; C++17.
#ifndef SOUP_KERNELS_CUDA_LORA_EXPAND_CUH_
#define SOUP_KERNELS_CUDA_LORA_EXPAND_CUH_

#include "kernels/cuda/lora_tiles.cuh"

namespace soup::kernels::cuda::lora {

// W [row, k] lies at w[row * ldw + k], or transposed at w[k * ldw + row]. A warp makes 16 rows of
// 64 columns at a time, the next rows on their way meanwhile, and keeps its part of W in registers.
// The columns of its 8-wide mma tiles are permuted so that a lane owns 8 consecutive columns of
// each 32: one 16-byte access a row.
constexpr int kExpandBlock = 256;

struct ExpandArgs {
  Strips strips;
  const bf16* u;
  const bf16* w;
  bf16* y;
  int T, rank, ldu, ldw;
  int64_t ldy;
  float scale;
  bool accumulate;               // false: as if y were 0
  const bf16* addend = nullptr;  // rows ldy apart, as y's
};

// What a lane needs of 16 rows: those of g and of g + 8.
template <int K8, bool kAddend>
struct ExpandRows {
  uint4 y[kAddend ? 4 : 2][2];  // of two halves of 32 columns; the addend's behind y's
  uint32_t u[2][K8];

  __device__ __forceinline__ void Load(const ExpandArgs& a, const bf16* u0, const bf16* y0,
                                       const bf16* addend0, int first) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = first + 8 * i;
      const bool valid = row < a.T;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        y[i][half] = make_uint4(0, 0, 0, 0);
        if (valid && a.accumulate)
          y[i][half] = *reinterpret_cast<const uint4*>(y0 + row * a.ldy + 32 * half);
        if (kAddend)
          y[2 + i][half] =
              valid ? Load16(addend0 + row * a.ldy + 32 * half) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int k = 0; k < K8; ++k) u[i][k] = valid ? Load4(u0 + row * a.ldu + 8 * k) : 0u;
    }
  }
};

// c = u W^T of 16 rows and 32 columns.
template <int K8>
__device__ __forceinline__ void ExpandProduct(const uint32_t (&u)[2][K8],
                                              const uint32_t (&w)[4][K8], float (&c)[4][4]) {
#pragma unroll
  for (int k = 0; k + 1 < K8; k += 2)
#pragma unroll
    for (int t = 0; t < 4; ++t)
      Mma16(c[t], u[0][k], u[1][k], u[0][k + 1], u[1][k + 1], w[t][k], w[t][k + 1]);
  if (K8 % 2 == 1) {
#pragma unroll
    for (int t = 0; t < 4; ++t) Mma8(c[t], u[0][K8 - 1], u[1][K8 - 1], w[t][K8 - 1]);
  }
}

// The lane's part of W for the 32 columns from `row` on.
template <int K8, bool kTransposed>
__device__ __forceinline__ void LoadExpandWeights(const bf16* base, int ldw, int row, int q, int g,
                                                  uint32_t (&w)[4][K8]) {
#pragma unroll
  for (int k = 0; k < K8; ++k) {
    if (kTransposed) {
      const bf16* p = base + static_cast<int64_t>(8 * k + 2 * q) * ldw + row + 8 * (g >> 1);
      const uint4 low = Load16(p), high = Load16(p + ldw);
      w[0][k] = Weave(low.x, high.x, (g & 1) != 0);
      w[1][k] = Weave(low.y, high.y, (g & 1) != 0);
      w[2][k] = Weave(low.z, high.z, (g & 1) != 0);
      w[3][k] = Weave(low.w, high.w, (g & 1) != 0);
    } else {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int at = row + 8 * (g >> 1) + 2 * t + (g & 1);
        w[t][k] = Load4(base + static_cast<int64_t>(at) * ldw + 8 * k + 2 * q);
      }
    }
  }
}

// kAddend: whether a.addend is there.
template <int K8, bool kTransposed, bool kAddend>
__global__ void __launch_bounds__(kExpandBlock, 2)
    ExpandKernel(const __grid_constant__ ExpandArgs a) {
  BeginBehind();
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2;
  Place place;
  const int group = blockIdx.x * (kExpandBlock / 32) + (threadIdx.x >> 5);
  if (!Find(a.strips, 64 * group, &place)) return;
  const bf16* u0 = a.u + place.strip * a.rank + 2 * q;
  bf16* y0 = a.y + place.column + 8 * q;
  const bf16* addend0 = kAddend ? a.addend + place.column + 8 * q : nullptr;
  const int tiles = (a.T + 15) / 16;
  ExpandRows<K8, kAddend> rows;
  int tile = blockIdx.y;
  if (tile < tiles) rows.Load(a, u0, y0, addend0, tile * 16 + g);
  uint32_t w[2][4][K8];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    LoadExpandWeights<K8, kTransposed>(a.w, a.ldw, place.row + 32 * half, q, g, w[half]);
  while (tile < tiles) {
    const int next_tile = tile + gridDim.y;
    ExpandRows<K8, kAddend> next = {};
    if (next_tile < tiles) next.Load(a, u0, y0, addend0, next_tile * 16 + g);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float c[4][4] = {};
      ExpandProduct<K8>(rows.u, w[half], c);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t row = tile * 16 + g + 8 * i;
        float f[8];
        Unpack8(rows.y[i][half], f);
        if (kAddend) {
          float more[8];
          Unpack8(rows.y[2 + i][half], more);
#pragma unroll
          for (int k = 0; k < 8; ++k) f[k] += more[k];
        }
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          f[2 * t] = fmaf(a.scale, c[t][2 * i], f[2 * t]);
          f[2 * t + 1] = fmaf(a.scale, c[t][2 * i + 1], f[2 * t + 1]);
        }
        if (row < a.T) Store16(y0 + row * a.ldy + 32 * half, Pack8(f));
      }
    }
    rows = next;
    tile = next_tile;
  }
}

}  // namespace soup::kernels::cuda::lora

#endif  // SOUP_KERNELS_CUDA_LORA_EXPAND_CUH_
