// u [T, rank] = scale * y W: the columns are summed over. Included by lora.cu alone; C++17.
#ifndef SOUP_KERNELS_CUDA_LORA_REDUCE_CUH_
#define SOUP_KERNELS_CUDA_LORA_REDUCE_CUH_

#include "kernels/cuda/lora_tiles.cuh"

namespace soup::kernels::cuda::lora {

// W [row, i] lies at w[row * ldw + i], or transposed at w[i * ldw + row]. A CTA makes 16 M rows of
// one strip; its warps take runs of 64 columns, whole lines, in turn, through a ring in shared
// memory, and add up in warp order. Within a run the order of the summands is permuted so that a
// lane reads 32 bytes of a row. M is a function of T.
constexpr int kReduceStages = 3;
constexpr int kReduceRun = 64;  // columns
struct ReduceArgs {
  Strips strips;
  const bf16* y;
  const bf16* w;
  bf16* u;
  int T, rank, ldu, ldw;
  int64_t ldy;
  float scale;
};

template <int M>
struct ReduceShape {
  static constexpr int kWarps = 16 / M;
  static constexpr int kRowBytes = 2 * kReduceRun;
  static constexpr int kTileBytes = 16 * M * kRowBytes;
  static constexpr int kRingBytes = kReduceStages * kTileBytes;  // of a warp
  // Dynamic: the ring; then the warps' sums, which take less.
  static constexpr int kSharedBytes = kWarps * kRingBytes;
  static_assert(kSharedBytes <= 99 * 1024, "what cards of every class have");
};

// The lane's part of 64 rows of W, of its 16 from `row` on.
template <int N8, bool kTransposed>
__device__ __forceinline__ void LoadReduceWeights(const ReduceArgs& a, int row, int g,
                                                  uint32_t (&w)[N8][8]) {
#pragma unroll
  for (int n = 0; n < N8; ++n) {
    if (kTransposed) {
      const bf16* p = a.w + static_cast<int64_t>(8 * n + g) * a.ldw + row;
      const uint4 low = Load16(p), high = Load16(p + 8);
      w[n][0] = low.x;
      w[n][1] = low.y;
      w[n][2] = low.z;
      w[n][3] = low.w;
      w[n][4] = high.x;
      w[n][5] = high.y;
      w[n][6] = high.z;
      w[n][7] = high.w;
    } else {
      const bf16* p = a.w + static_cast<int64_t>(row) * a.ldw + 8 * n + g;
#pragma unroll
      for (int i = 0; i < 8; ++i) w[n][i] = Pair(p + 2 * i * a.ldw, p + (2 * i + 1) * a.ldw);
    }
  }
}

template <int N8, int M, bool kTransposed>
__global__ void __launch_bounds__(32 * ReduceShape<M>::kWarps)
    ReduceKernel(const __grid_constant__ ReduceArgs a) {
  BeginBehind();
  using Shape = ReduceShape<M>;
  constexpr int kWarps = Shape::kWarps, kRowBytes = Shape::kRowBytes;
  constexpr int kTileBytes = Shape::kTileBytes, kRingBytes = Shape::kRingBytes;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2, warp = threadIdx.x >> 5;
  const int strip = blockIdx.y, t0 = blockIdx.x * 16 * M;
  int first_row = 16 * q;
  for (int m = 0; m < strip; ++m) first_row += a.strips.width[m];
  const int runs = a.strips.width[strip] / kReduceRun;
  const uint32_t ring = attention::SharedAddress(shared) + warp * kRingBytes;

  // A lane copies 16 bytes of every fourth row. A row keeps its chunk c at c ^ (row & 1): a quarter
  // of a warp reads the even chunks of one row and the odd ones of the next.
  const int copy_row = lane >> 3, copy_chunk = lane & 7;
  const bf16* y = a.y + a.strips.column[strip] + static_cast<int64_t>(t0 + copy_row) * a.ldy +
                  kReduceRun * warp + 8 * copy_chunk;
  const uint32_t copy_to = copy_row * kRowBytes + ((copy_chunk ^ (copy_row & 1)) << 4);
  const auto copy = [&](int run, uint32_t to) {
    if (run < runs) {
#pragma unroll
      for (int i = 0; i < 4 * M; ++i) {
        attention::CopyAsync16(to + copy_to + 4 * i * kRowBytes, y + 4 * i * a.ldy,
                               t0 + copy_row + 4 * i < a.T);
      }
    }
    y += kReduceRun * kWarps;
    attention::CommitCopies();
  };
#pragma unroll
  for (int s = 0; s + 1 < kReduceStages; ++s) copy(warp + s * kWarps, ring + s * kTileBytes);
  float c[M][N8][4] = {};
  const uint32_t own = g * kRowBytes + ((2 * q + (g & 1)) << 4);  // its low 16 bytes; high: ^ 16
  uint32_t from = ring, to = ring + (kReduceStages - 1) * kTileBytes;
  for (int run = warp; run < runs; run += kWarps) {
    copy(run + (kReduceStages - 1) * kWarps, to);
    uint32_t w[N8][8];
    LoadReduceWeights<N8, kTransposed>(a, first_row + kReduceRun * run, g, w);
    attention::WaitCopies<kReduceStages - 1>();
    __syncwarp();  // a lane reads what others have copied
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t at = from + 16 * m * kRowBytes + (own ^ (half << 4));
        const uint4 low = attention::LoadShared16(at);
        const uint4 high = attention::LoadShared16(at + 8 * kRowBytes);
#pragma unroll
        for (int n = 0; n < N8; ++n) {
          const uint32_t* v = w[n] + 4 * half;
          Mma16(c[m][n], low.x, high.x, low.y, high.y, v[0], v[1]);
          Mma16(c[m][n], low.z, high.z, low.w, high.w, v[2], v[3]);
        }
      }
    __syncwarp();  // everyone is done with the run that the next copy replaces
    to = from;
    from = from + kTileBytes == ring + kRingBytes ? ring : from + kTileBytes;
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
