// grad [columns, rank] += scale * y^T u: the tokens are summed over. Included by lora.cu alone;
// C++17.
#ifndef SOUP_KERNELS_CUDA_LORA_GRAD_CUH_
#define SOUP_KERNELS_CUDA_LORA_GRAD_CUH_

#include "kernels/cuda/lora_tiles.cuh"

namespace soup::kernels::cuda::lora {

// grad (row, i) lies at grad[row * ldg + i], or transposed at grad[i * ldg + row]. A CTA makes 32
// columns of all 8 N8 ranks; its warps take runs of 16 tokens in turn, each through a ring of its
// own in shared memory, and add up in warp order. Transposed from the first run on, else from the
// last: where the kernel before has ended. Normed: y is x * rstd * (weight + offset) instead,
// rounded as a norm's output is. Narrow rows of u are copied whole, with the linears of others: few
// requests, of whole lines.
constexpr int kGradWarps = 16;
constexpr int kGradColumns = 32;
constexpr int kGradRun = 16;  // tokens

struct GradArgs {
  Strips strips;
  const bf16* y;
  const bf16* u;
  float* grad;
  int T, rank, ldu, ldg;
  int64_t ldy;
  float scale;
  const float* rstd = nullptr;   // [T], normed only
  const bf16* weight = nullptr;  // [columns]
  float weight_offset = 0;
};

constexpr int kGradStages = 3;
constexpr int kGradMostU = 24;  // columns of u that are copied whole

template <int N8, bool kNormed>
struct GradShape {
  static constexpr int kYBytes = kGradRun * kGradColumns * 2;
  static constexpr int kUBytes = kGradRun * kGradMostU * 2;
  static constexpr int kRunBytes = kYBytes + kUBytes + (kNormed ? kGradRun * 4 : 0);
  static constexpr int kRingBytes = kGradStages * kRunBytes;  // of a warp
  static constexpr int kPartRow = 8 * N8 + 1;                 // floats; no bank conflicts
  static constexpr int kSharedBytes = kGradWarps * kRingBytes;
  static_assert(kGradWarps * kGradColumns * kPartRow * 4 <= kSharedBytes, "sums fit into the ring");
  static_assert(kSharedBytes <= 99 * 1024, "what cards of every class have");
};

// bf16 pair of two tokens of one column, normed.
__device__ __forceinline__ uint32_t NormPair(uint32_t x, float2 rstd, float weight) {
  return PackPair(attention::Low(x) * (rstd.x * weight), attention::High(x) * (rstd.y * weight));
}

// What a lane copies of a run of tokens. Of u: `chunks` of 8 columns a row, in shared memory side
// by side.
template <int N8, bool kTransposed, bool kNormed>
struct GradCopies {
  using Shape = GradShape<N8, kNormed>;
  const bf16* y;
  const bf16* u[2];
  const float* rstd;
  int64_t y_half, y_step, u_step;  // elements: 8 rows; from one run of the warp to its next
  uint32_t y_to;
  int lane, chunks, u_row[2], t0;

  __device__ __forceinline__ GradCopies(const GradArgs& a, const bf16* y0, const bf16* u0,
                                        int u_chunks, int run, int of_lane)
      : lane(of_lane), chunks(u_chunks) {
    constexpr int kTokens = (kTransposed ? 1 : -1) * kGradWarps * kGradRun;
    t0 = run * kGradRun;
    y_step = kTokens * a.ldy;
    u_step = static_cast<int64_t>(kTokens) * a.ldu;
    const int row = lane >> 2, chunk = lane & 3;
    y = y0 + static_cast<int64_t>(t0 + row) * a.ldy + 8 * chunk;
    y_half = 8 * a.ldy;
    // A row of 64 bytes keeps its 16-byte chunk c at c ^ (row / 2 & 3): ldmatrix without conflicts.
    y_to = row * 64 + ((chunk ^ ((row >> 1) & 3)) << 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int x = lane + 32 * i;
      u_row[i] = x / chunks;
      u[i] = u0 + static_cast<int64_t>(t0 + u_row[i]) * a.ldu + 8 * (x - u_row[i] * chunks);
    }
    rstd = a.rstd + t0 + lane;
  }

  // Starts the copy of the warp's next run, and goes on.
  __device__ __forceinline__ void Start(uint32_t to, int T) {
    const int row = lane >> 2;
    attention::CopyAsync16(to + y_to, y, t0 + row < T);
    attention::CopyAsync16(to + y_to + 512, y + y_half, t0 + row + 8 < T);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (u_row[i] < kGradRun) {
        attention::CopyAsync16(to + Shape::kYBytes + 16 * (lane + 32 * i), u[i], t0 + u_row[i] < T);
      }
      u[i] += u_step;
    }
    if (kNormed && lane < kGradRun) {
      attention::CopyAsync4(to + Shape::kYBytes + Shape::kUBytes + lane * 4, rstd, t0 + lane < T);
    }
    y += y_step;
    constexpr int kTokens = (kTransposed ? 1 : -1) * kGradWarps * kGradRun;
    rstd += kTokens;
    t0 += kTokens;
  }
};

template <int N8, bool kTransposed, bool kNormed>
__global__ void __launch_bounds__(32 * kGradWarps, N8 == 1 ? 2 : 1)
    GradKernel(const __grid_constant__ GradArgs a) {
  BeginBehind();
  using Shape = GradShape<N8, kNormed>;
  constexpr int kStages = kGradStages;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2, warp = threadIdx.x >> 5;
  Place place;
  if (!Find(a.strips, blockIdx.x * kGradColumns, &place)) return;
  const int runs = (a.T + kGradRun - 1) / kGradRun;
  const int mine = (runs - warp + kGradWarps - 1) / kGradWarps;  // this warp's
  const uint32_t ring = SharedAddress(shared) + warp * Shape::kRingBytes;
  // Narrow rows whole; of others this linear's part.
  const bool whole = a.ldu <= kGradMostU && a.ldu == a.strips.count * a.rank;
  const int chunks = whole ? a.ldu / 8 : N8, strip_column = place.strip * a.rank;
  GradCopies<N8, kTransposed, kNormed> copies(a, a.y + place.column,
                                              a.u + (whole ? 0 : strip_column), chunks,
                                              kTransposed ? warp : runs - 1 - warp, lane);
  const uint32_t u_from =
      Shape::kYBytes + (whole ? strip_column * 2 : 0) + (lane & 15) * chunks * 16;
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) {
    if (s < mine) copies.Start(ring + s * Shape::kRunBytes, a.T);
    attention::CommitCopies();
  }
  float weight[2][2] = {};  // of columns g and g + 8 of both halves
  if (kNormed) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weight[i >> 1][i & 1] = ToFloat(a.weight[place.row + g + 8 * i]) + a.weight_offset;
    }
  }
  float c[2][N8][4] = {};
  uint32_t from = ring, to = ring + (kStages - 1) * Shape::kRunBytes;
  for (int i = 0; i < mine; ++i) {
    if (i + kStages - 1 < mine) copies.Start(to, a.T);
    attention::CommitCopies();
    attention::WaitCopies<kStages - 1>();
    __syncwarp();  // a lane reads what others have copied
    uint32_t y[2][4];
    const int row = (lane & 7) + 8 * (lane >> 4), chunk = (lane >> 3) & 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      attention::LoadMatrix4Transposed(
          y[half], from + row * 64 + (((chunk + 2 * half) ^ ((row >> 1) & 3)) << 4));
    }
    if (kNormed) {
      const uint32_t rstd = from + Shape::kYBytes + Shape::kUBytes + 8 * q;
      const float2 low = attention::LoadSharedFloat2(rstd);
      const float2 high = attention::LoadSharedFloat2(rstd + 32);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          y[half][i] = NormPair(y[half][i], i < 2 ? low : high, weight[half][i & 1]);
        }
    }
#pragma unroll
    for (int n = 0; n < N8; ++n) {
      uint32_t u[2];
      LoadMatrix2Transposed(u, from + u_from + 16 * n);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        Mma16(c[half][n], y[half][0], y[half][1], y[half][2], y[half][3], u[0], u[1]);
    }
    __syncwarp();  // everyone is done with the run that the next copy replaces
    to = from;
    from = from + Shape::kRunBytes == ring + Shape::kRingBytes ? ring : from + Shape::kRunBytes;
  }
  attention::WaitCopies<0>();
  __syncthreads();
  float* parts = reinterpret_cast<float*>(shared);  // [warp][32 columns][kPartRow]
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < N8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 16 * half + g + 8 * (i >> 1), rank = 8 * n + 2 * q + (i & 1);
        parts[(warp * kGradColumns + column) * Shape::kPartRow + rank] = c[half][n][i];
      }
  __syncthreads();
  // Neighbouring threads write neighbouring elements in both layouts.
  for (int x = threadIdx.x; x < kGradColumns * 8 * N8; x += 32 * kGradWarps) {
    const int rank = kTransposed ? x / kGradColumns : x % (8 * N8);
    const int column = kTransposed ? x % kGradColumns : x / (8 * N8);
    float sum = 0.f;
#pragma unroll
    for (int v = 0; v < kGradWarps; ++v)
      sum += parts[(v * kGradColumns + column) * Shape::kPartRow + rank];
    float* grad = kTransposed ? a.grad + static_cast<int64_t>(rank) * a.ldg + place.row + column
                              : a.grad + static_cast<int64_t>(place.row + column) * a.ldg + rank;
    *grad = fmaf(a.scale, sum, *grad);
  }
}

}  // namespace soup::kernels::cuda::lora

#endif  // SOUP_KERNELS_CUDA_LORA_GRAD_CUH_
