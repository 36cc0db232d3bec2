// u [T, rank] = scale * y W: the columns are summed over. Included by lora.cu alone; C++17.
#ifndef SOUP_KERNELS_CUDA_LORA_REDUCE_CUH_
#define SOUP_KERNELS_CUDA_LORA_REDUCE_CUH_

#include "kernels/cuda/lora_tiles.cuh"

namespace soup::kernels::cuda::lora {

// W [row, i] lies at w[row * ldw + i], or transposed at w[i * ldw + row]. A CTA makes 16 M rows of
// one strip; its warps take runs of 32 columns in turn and add up in warp order. Rows come through
// a ring in shared memory of which a lane reads what it has copied itself. Within a run the order
// of the summands is permuted so that a lane reads 16 bytes of a row. M and the ring decide no
// bits.
constexpr int kReduceWarps = 16;
constexpr int kReduceStages = 3;

struct ReduceArgs {
  Strips strips;
  const bf16* y;
  const bf16* w;
  bf16* u;
  int T, rank, ldu, ldw;
  int64_t ldy;
  float scale;
};

// Dynamic shared memory: the ring; then the warps' sums, which take less.
template <int M>
constexpr int ReduceSharedBytes() {
  return kReduceStages * kReduceWarps * 2 * M * 512;
}

// The lane's part of 32 rows of W from `row` on.
template <int N8, bool kTransposed>
__device__ __forceinline__ void LoadReduceWeights(const ReduceArgs& a, int row, int g,
                                                  uint32_t (&w)[N8][4]) {
#pragma unroll
  for (int n = 0; n < N8; ++n) {
    if (kTransposed) {
      const uint4 x = Load16(a.w + static_cast<int64_t>(8 * n + g) * a.ldw + row);
      w[n][0] = x.x;
      w[n][1] = x.y;
      w[n][2] = x.z;
      w[n][3] = x.w;
    } else {
      const bf16* p = a.w + static_cast<int64_t>(row) * a.ldw + 8 * n + g;
#pragma unroll
      for (int i = 0; i < 4; ++i) w[n][i] = Pair(p + 2 * i * a.ldw, p + (2 * i + 1) * a.ldw);
    }
  }
}

template <int N8, int M, bool kTransposed>
__global__ void __launch_bounds__(32 * kReduceWarps)
    ReduceKernel(const __grid_constant__ ReduceArgs a) {
  BeginBehind();
  constexpr int kWarps = kReduceWarps, kStages = kReduceStages, kStageBytes = kWarps * 2 * M * 512;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2, warp = threadIdx.x >> 5;
  const int strip = blockIdx.y, t0 = blockIdx.x * 16 * M;
  int first_row = 8 * q;
  for (int m = 0; m < strip; ++m) first_row += a.strips.width[m];
  const bf16* y0 = a.y + a.strips.column[strip] + 8 * q;
  const int runs = a.strips.width[strip] / 32;
  const uint32_t own = SharedAddress(shared) + warp * 2 * M * 512 + lane * 16;

  const auto copy = [&](int run, uint32_t to) {
    if (run < runs) {
#pragma unroll
      for (int i = 0; i < 2 * M; ++i) {
        const int t = t0 + 8 * i + g;
        attention::CopyAsync16(to + 512 * i, y0 + static_cast<int64_t>(t) * a.ldy + 32 * run,
                               t < a.T);
      }
    }
    attention::CommitCopies();
  };
  uint32_t w[N8][4], next_w[N8][4];
  if (warp < runs) LoadReduceWeights<N8, kTransposed>(a, first_row + 32 * warp, g, w);
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) copy(warp + s * kWarps, own + s * kStageBytes);
  float c[M][N8][4] = {};
  uint32_t from = own, to = own + (kStages - 1) * kStageBytes;
  for (int run = warp; run < runs; run += kWarps) {
    copy(run + (kStages - 1) * kWarps, to);
    if (run + kWarps < runs)
      LoadReduceWeights<N8, kTransposed>(a, first_row + 32 * (run + kWarps), g, next_w);
    attention::WaitCopies<kStages - 1>();
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const uint4 low = attention::LoadShared16(from + 1024 * m);
      const uint4 high = attention::LoadShared16(from + 1024 * m + 512);
#pragma unroll
      for (int n = 0; n < N8; ++n) {
        Mma16(c[m][n], low.x, high.x, low.y, high.y, w[n][0], w[n][1]);
        Mma16(c[m][n], low.z, high.z, low.w, high.w, w[n][2], w[n][3]);
      }
    }
#pragma unroll
    for (int n = 0; n < N8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) w[n][i] = next_w[n][i];
    to = from;
    from = from + kStageBytes == own + kStages * kStageBytes ? own : from + kStageBytes;
  }
  attention::WaitCopies<0>();
  __syncthreads();
  float* parts = reinterpret_cast<float*>(shared);  // [warp][16 M rows][8 N8]
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * m + g + 8 * (i >> 1), column = 8 * n + 2 * q + (i & 1);
        parts[(warp * 16 * M + row) * 8 * N8 + column] = c[m][n][i];
      }
  __syncthreads();
  for (int x = threadIdx.x; x < 16 * M * 8 * N8; x += 32 * kWarps) {
    const int t = x / (8 * N8), i = x % (8 * N8);
    if (t0 + t >= a.T) continue;
    float sum = 0.f;
#pragma unroll
    for (int v = 0; v < kWarps; ++v) sum += parts[v * 16 * M * 8 * N8 + x];
    a.u[static_cast<int64_t>(t0 + t) * a.ldu + strip * a.rank + i] =
        __float2bfloat16_rn(a.scale * sum);
  }
}

}  // namespace soup::kernels::cuda::lora

#endif  // SOUP_KERNELS_CUDA_LORA_REDUCE_CUH_
