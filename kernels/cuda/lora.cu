#include "kernels/cuda/common.cuh"
#include "kernels/cuda/lora.h"
#include "kernels/lora_products.h"

namespace soup::kernels::cuda {
namespace {

// A column range of y and the rows of the weights that belong to it.
struct Strips {
  int count;
  int column[3], width[3];
};

// Where column `at` of all strips lies. False: beyond the last.
struct Place {
  int strip, column, row;  // of y; of the stacked weights
};
__device__ __forceinline__ bool Find(const Strips& s, int at, Place* out) {
  int row = 0;
  for (int m = 0; m < s.count; ++m) {
    if (at < s.width[m]) {
      *out = {m, s.column[m] + at, row + at};
      return true;
    }
    at -= s.width[m];
    row += s.width[m];
  }
  return false;
}

__device__ __forceinline__ uint32_t Load4(const bf16* p) {
  return __ldg(reinterpret_cast<const unsigned*>(p));
}
__device__ __forceinline__ uint32_t Pair(const bf16* low, const bf16* high) {
  const uint32_t l = __ldg(reinterpret_cast<const unsigned short*>(low));
  const uint32_t h = __ldg(reinterpret_cast<const unsigned short*>(high));
  return l | h << 16;
}
__device__ __forceinline__ void Mma16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                      uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void Mma8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// ---- y [T, columns] (+)= scale * u W^T: the rank is summed over ----
// W [row, k] lies at w[row * ldw + k], or transposed at w[k * ldw + row]. A warp makes 16 rows of
// 64 columns at a time and keeps its part of W in registers. The columns of its 8-wide mma tiles
// are permuted so that a lane owns 8 consecutive columns of each 32: one 16-byte access a row.
constexpr int kExpandBlock = 256;

struct ExpandArgs {
  Strips strips;
  const bf16* u;
  const bf16* w;
  bf16* y;
  int T, rank, ldu, ldw;
  int64_t ldy;
  float scale;
  bool accumulate;  // false: as if y were 0
};

template <int K8, bool kTransposed>
__global__ void __launch_bounds__(kExpandBlock) ExpandKernel(const __grid_constant__ ExpandArgs a) {
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2;
  Place place;
  const int group = blockIdx.x * (kExpandBlock / 32) + (threadIdx.x >> 5);
  if (!Find(a.strips, 64 * group, &place)) return;
  uint32_t w[2][4][K8];
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int k = 0; k < K8; ++k) {
        const int row = place.row + 32 * half + 8 * (g >> 1) + 2 * t + (g & 1);
        if (kTransposed) {
          const bf16* p = a.w + static_cast<int64_t>(8 * k + 2 * q) * a.ldw + row;
          w[half][t][k] = Pair(p, p + a.ldw);
        } else {
          w[half][t][k] = Load4(a.w + static_cast<int64_t>(row) * a.ldw + 8 * k + 2 * q);
        }
      }
  const bf16* u0 = a.u + place.strip * a.rank + 2 * q;
  bf16* y0 = a.y + place.column + 8 * q;
  const int tiles = (a.T + 15) / 16;
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int row[2] = {tile * 16 + g, tile * 16 + g + 8};
    uint4 v[2][2];
    uint32_t u[2][K8];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool valid = row[i] < a.T;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        v[i][half] = make_uint4(0, 0, 0, 0);
        if (valid && a.accumulate)
          v[i][half] = *reinterpret_cast<const uint4*>(y0 + row[i] * a.ldy + 32 * half);
      }
#pragma unroll
      for (int k = 0; k < K8; ++k) {
        u[i][k] = valid ? Load4(u0 + static_cast<int64_t>(row[i]) * a.ldu + 8 * k) : 0u;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float c[4][4] = {};
#pragma unroll
      for (int k = 0; k + 1 < K8; k += 2)
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          Mma16(c[t], u[0][k], u[1][k], u[0][k + 1], u[1][k + 1], w[half][t][k], w[half][t][k + 1]);
        }
      if (K8 % 2 == 1) {
#pragma unroll
        for (int t = 0; t < 4; ++t) Mma8(c[t], u[0][K8 - 1], u[1][K8 - 1], w[half][t][K8 - 1]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float f[8];
        Unpack8(v[i][half], f);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          f[2 * t] = fmaf(a.scale, c[t][2 * i], f[2 * t]);
          f[2 * t + 1] = fmaf(a.scale, c[t][2 * i + 1], f[2 * t + 1]);
        }
        if (row[i] < a.T) *reinterpret_cast<uint4*>(y0 + row[i] * a.ldy + 32 * half) = Pack8(f);
      }
    }
  }
}

// ---- u [T, rank] = scale * y W: the columns are summed over ----
// W [row, i] lies at w[row * ldw + i], or transposed at w[i * ldw + row]. A CTA makes 16 M rows of
// one strip; its warps take runs of 32 columns in turn and add up in warp order. Within a run the
// order of the summands is permuted so that a lane reads 16 bytes of a row.
constexpr int kReduceWarps = 16;

struct ReduceArgs {
  Strips strips;
  const bf16* y;
  const bf16* w;
  bf16* u;
  int T, rank, ldu, ldw;
  int64_t ldy;
  float scale;
};

template <int N8, int M, bool kTransposed>
__global__ void __launch_bounds__(32 * kReduceWarps)
    ReduceKernel(const __grid_constant__ ReduceArgs a) {
  constexpr int kWarps = kReduceWarps;
  __shared__ float parts[kWarps][16 * M][8 * N8];
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2, warp = threadIdx.x >> 5;
  const int strip = blockIdx.y, t0 = blockIdx.x * 16 * M;
  int first_row = 0;
  for (int m = 0; m < strip; ++m) first_row += a.strips.width[m];
  float c[M][N8][4] = {};
  const bf16* y0 = a.y + a.strips.column[strip] + 8 * q;
  const int runs = a.strips.width[strip] / 32;
#pragma unroll 2
  for (int run = warp; run < runs; run += kWarps) {
    uint32_t v[M][2][4];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = t0 + 16 * m + 8 * i + g;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (t < a.T) x = *reinterpret_cast<const uint4*>(y0 + t * a.ldy + 32 * run);
        v[m][i][0] = x.x;
        v[m][i][1] = x.y;
        v[m][i][2] = x.z;
        v[m][i][3] = x.w;
      }
    const int row = first_row + 32 * run + 8 * q;
#pragma unroll
    for (int n = 0; n < N8; ++n) {
      uint32_t w[4];
      if (kTransposed) {
        const uint4 x = __ldg(
            reinterpret_cast<const uint4*>(a.w + static_cast<int64_t>(8 * n + g) * a.ldw + row));
        w[0] = x.x;
        w[1] = x.y;
        w[2] = x.z;
        w[3] = x.w;
      } else {
        const bf16* p = a.w + static_cast<int64_t>(row) * a.ldw + 8 * n + g;
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = Pair(p + 2 * i * a.ldw, p + (2 * i + 1) * a.ldw);
      }
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
          Mma16(c[m][n], v[m][0][s], v[m][1][s], v[m][0][s + 1], v[m][1][s + 1], w[s], w[s + 1]);
        }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        parts[warp][16 * m + g + 8 * (i >> 1)][8 * n + 2 * q + (i & 1)] = c[m][n][i];
      }
  __syncthreads();
  for (int x = threadIdx.x; x < 16 * M * 8 * N8; x += 32 * kWarps) {
    const int t = x / (8 * N8), i = x % (8 * N8);
    if (t0 + t >= a.T) continue;
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[w][t][i];
    a.u[static_cast<int64_t>(t0 + t) * a.ldu + strip * a.rank + i] =
        __float2bfloat16_rn(a.scale * sum);
  }
}

// ---- grad [columns, rank] += scale * y^T u: the tokens are summed over ----
// grad (row, i) lies at grad[row * ldg + i], or transposed at grad[i * ldg + row]. A CTA makes 32
// columns by 16 M ranks; its warps take runs of 16 tokens in turn and add up pairwise, always the
// same pairs. Two rows of tokens are woven into the pairs that mma wants along its inner size.
constexpr int kGradBlock = 512;
constexpr int kGradWarps = kGradBlock / 32;
constexpr int kGradColumns = 32;

struct GradArgs {
  Strips strips;
  const bf16* y;
  const bf16* u;
  float* grad;
  int T, rank, ldu, ldg;
  int64_t ldy;
  float scale;
};

__device__ __forceinline__ uint32_t Weave(const uint2& low, const uint2& high, int i) {
  return __byte_perm(i < 2 ? low.x : low.y, i < 2 ? high.x : high.y,
                     (i & 1) != 0 ? 0x7632 : 0x5410);
}

template <int M, bool kTransposed>
__global__ void __launch_bounds__(kGradBlock, M == 1 ? 2 : 1)
    GradKernel(const __grid_constant__ GradArgs a) {
  __shared__ float parts[kGradWarps / 2][16][32];  // [warp][value][lane]
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2, warp = threadIdx.x >> 5;
  const int rank0 = blockIdx.y * 16 * M;
  Place place;
  if (!Find(a.strips, blockIdx.x * kGradColumns, &place)) return;
  float c[M][4][4] = {};
  const bf16* y0 = a.y + place.column + 4 * g;
  const bf16* u0 = a.u + place.strip * a.rank + rank0 + g;
  const int runs = (a.T + 15) / 16;
#pragma unroll 4
  for (int run = warp; run < runs; run += kGradWarps) {
    uint2 v[4];
    int t[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      t[i] = run * 16 + 2 * q + (i & 1) + 8 * (i >> 1);
      v[i] = make_uint2(0, 0);
      if (t[i] < a.T) v[i] = *reinterpret_cast<const uint2*>(y0 + t[i] * a.ldy);
      t[i] = min(t[i], a.T - 1);  // its y is zero
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      uint32_t w[4] = {};  // ranks g and g + 8, tokens 2q.. and 2q + 8..
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (rank0 + 16 * m + 8 * i >= a.rank) continue;
          const bf16* p = u0 + 16 * m + 8 * i;
          w[2 * k + i] = Pair(p + static_cast<int64_t>(t[2 * k]) * a.ldu,
                              p + static_cast<int64_t>(t[2 * k + 1]) * a.ldu);
        }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        Mma16(c[m][n], w[0], w[1], w[2], w[3], Weave(v[0], v[1], n), Weave(v[2], v[3], n));
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = kGradWarps / 2; half > 0; half /= 2) {
      __syncthreads();
      if (warp >= half && warp < 2 * half) {
#pragma unroll
        for (int i = 0; i < 16; ++i) parts[warp - half][i][lane] = c[m][i >> 2][i & 3];
      }
      __syncthreads();
      if (warp < half) {
#pragma unroll
        for (int i = 0; i < 16; ++i) c[m][i >> 2][i & 3] += parts[warp][i][lane];
      }
    }
    __syncthreads();
    float* sum = &parts[0][0][0];  // [16 ranks][32 columns]
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int rank = g + 8 * ((i & 3) >> 1), column = 4 * (2 * q + (i & 1)) + (i >> 2);
        sum[rank * kGradColumns + column] = c[m][i >> 2][i & 3];
      }
    }
    __syncthreads();
    // Neighbouring threads write neighbouring elements in both layouts.
    const int x = threadIdx.x;
    const int rank = kTransposed ? x / kGradColumns : x % 16;
    const int column = kTransposed ? x % kGradColumns : x / 16;
    const int i = rank0 + 16 * m + rank;
    if (i < a.rank) {
      float* to = kTransposed ? a.grad + static_cast<int64_t>(i) * a.ldg + place.row + column
                              : a.grad + static_cast<int64_t>(place.row + column) * a.ldg + i;
      *to = fmaf(a.scale, sum[rank * kGradColumns + column], *to);
    }
  }
}

// ---- launches ----
Strips StripsOf(const LoraLinears& linears) {
  Strips s{};
  s.count = linears.count;
  for (int m = 0; m < s.count; ++m) {
    s.column[m] = static_cast<int>(linears.column[m]);
    s.width[m] = static_cast<int>(linears.width[m]);
  }
  return s;
}
Strips OneStrip(int64_t width) {
  Strips s{};
  s.count = 1;
  s.width[0] = static_cast<int>(width);
  return s;
}
unsigned Groups(const Strips& s, int width) {
  int columns = 0;
  for (int m = 0; m < s.count; ++m) columns += s.width[m];
  return static_cast<unsigned>(columns / width);
}

template <int K8>
cudaError_t Expand(const ExpandArgs& a, bool transposed, cudaStream_t stream) {
  constexpr unsigned kWarps = kExpandBlock / 32;
  const unsigned x = (Groups(a.strips, 64) + kWarps - 1) / kWarps;
  const unsigned tiles = static_cast<unsigned>((a.T + 15) / 16);
  // Some waves of CTAs on any card; each keeps its weights over several tiles.
  const unsigned wanted = (1024 + x - 1) / x;
  const dim3 grid(x, wanted < tiles ? wanted : tiles);
  if (transposed) {
    ExpandKernel<K8, true><<<grid, kExpandBlock, 0, stream>>>(a);
  } else {
    ExpandKernel<K8, false><<<grid, kExpandBlock, 0, stream>>>(a);
  }
  return cudaGetLastError();
}

template <int N8, int M>
cudaError_t ReduceRows(const ReduceArgs& a, bool transposed, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.T + 16 * M - 1) / (16 * M)),
                  static_cast<unsigned>(a.strips.count));
  if (transposed) {
    ReduceKernel<N8, M, true><<<grid, 32 * kReduceWarps, 0, stream>>>(a);
  } else {
    ReduceKernel<N8, M, false><<<grid, 32 * kReduceWarps, 0, stream>>>(a);
  }
  return cudaGetLastError();
}

template <int N8>
cudaError_t Reduce(const ReduceArgs& a, bool transposed, cudaStream_t stream) {
  constexpr int kManyTokens = 2048;  // enough CTAs with rows in pairs
  if (a.T >= kManyTokens) return ReduceRows<N8, 2>(a, transposed, stream);
  return ReduceRows<N8, 1>(a, transposed, stream);
}

cudaError_t Grad(const GradArgs& a, bool transposed, cudaStream_t stream) {
  const unsigned halves = static_cast<unsigned>((a.rank + 15) / 16);
  const unsigned groups = Groups(a.strips, kGradColumns);
  if (halves == 1) {
    if (transposed) {
      GradKernel<1, true><<<dim3(groups, 1), kGradBlock, 0, stream>>>(a);
    } else {
      GradKernel<1, false><<<dim3(groups, 1), kGradBlock, 0, stream>>>(a);
    }
  } else if (transposed) {
    GradKernel<2, true><<<dim3(groups, (halves + 1) / 2), kGradBlock, 0, stream>>>(a);
  } else {
    GradKernel<2, false><<<dim3(groups, (halves + 1) / 2), kGradBlock, 0, stream>>>(a);
  }
  return cudaGetLastError();
}

cudaError_t ExpandAny(const ExpandArgs& a, int64_t rank, bool transposed, cudaStream_t stream) {
  switch (rank / 8) {
    case 1:
      return Expand<1>(a, transposed, stream);
    case 2:
      return Expand<2>(a, transposed, stream);
    case 3:
      return Expand<3>(a, transposed, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t ReduceAny(const ReduceArgs& a, int64_t rank, bool transposed, cudaStream_t stream) {
  switch (rank / 8) {
    case 1:
      return Reduce<1>(a, transposed, stream);
    case 2:
      return Reduce<2>(a, transposed, stream);
    case 3:
      return Reduce<3>(a, transposed, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

const bf16* In(const void* p) { return static_cast<const bf16*>(p); }

}  // namespace

cudaError_t LoraUp(const LoraUpArgs& a, cudaStream_t stream) {
  if (!LoraKernelsTake(a.linears, a.r, a.ldy) || !Aligned16(a.y)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return ExpandAny(
      {StripsOf(a.linears), In(a.u), In(a.b), static_cast<bf16*>(a.y), static_cast<int>(a.T),
       static_cast<int>(a.r), static_cast<int>(a.linears.count * a.r), static_cast<int>(a.r), a.ldy,
       a.scale, a.accumulate},
      a.r, false, stream);
}

cudaError_t LoraBack(const LoraBackArgs& a, cudaStream_t stream) {
  if (!LoraKernelsTake(a.linears, a.r, a.ldy) || !Aligned16(a.dy)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return ReduceAny({StripsOf(a.linears), In(a.dy), In(a.b), static_cast<bf16*>(a.du),
                    static_cast<int>(a.T), static_cast<int>(a.r),
                    static_cast<int>(a.linears.count * a.r), static_cast<int>(a.r), a.ldy, a.scale},
                   a.r, false, stream);
}

cudaError_t LoraGrad(const LoraGradArgs& a, cudaStream_t stream) {
  if (!LoraKernelsTake(a.linears, a.r, a.ldy) || !Aligned16(a.dy)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return Grad({StripsOf(a.linears), In(a.dy), In(a.u), a.grad_b, static_cast<int>(a.T),
               static_cast<int>(a.r), static_cast<int>(a.linears.count * a.r),
               static_cast<int>(a.r), a.ldy, a.scale},
              false, stream);
}

bool SkinnyTakes(const GemmArgs& a) {
  if (a.addend != nullptr || a.a_type != Operand::kAct || a.M == 0) return false;
  const bool f32 = a.c_type == Operand::kF32;
  const auto aligned = [](const void* p, int64_t ld) { return Aligned16(p) && ld % kVector == 0; };
  if (!a.transpose_a && a.transpose_b && a.beta == 0.f && !f32) {  // u = x A^T
    return LoraKernelRank(a.N) && a.K % 64 == 0 && aligned(a.A, a.lda) && aligned(a.B, a.ldb);
  }
  if (!a.transpose_a && !a.transpose_b && a.beta == 1.f && !f32) {  // dx += du A
    return LoraKernelRank(a.K) && a.N % 64 == 0 && aligned(a.C, a.ldc) && a.lda % 2 == 0 &&
           (reinterpret_cast<uintptr_t>(a.A) & 3) == 0;
  }
  if (a.transpose_a && !a.transpose_b && a.beta == 1.f && f32) {  // dA += du^T x
    return LoraKernelRank(a.M) && a.N % 64 == 0 && aligned(a.B, a.ldb);
  }
  return false;
}

cudaError_t SkinnyGemm(const GemmArgs& a, cudaStream_t stream) {
  if (!SkinnyTakes(a)) return cudaErrorInvalidValue;
  if (a.transpose_b) {
    return ReduceAny(
        {OneStrip(a.K), In(a.A), In(a.B), static_cast<bf16*>(a.C), static_cast<int>(a.M),
         static_cast<int>(a.N), static_cast<int>(a.ldc), static_cast<int>(a.ldb), a.lda, a.alpha},
        a.N, true, stream);
  }
  if (a.transpose_a) {
    return Grad(
        {OneStrip(a.N), In(a.B), In(a.A), static_cast<float*>(a.C), static_cast<int>(a.K),
         static_cast<int>(a.M), static_cast<int>(a.lda), static_cast<int>(a.ldc), a.ldb, a.alpha},
        true, stream);
  }
  return ExpandAny(
      {OneStrip(a.N), In(a.A), In(a.B), static_cast<bf16*>(a.C), static_cast<int>(a.M),
       static_cast<int>(a.K), static_cast<int>(a.lda), static_cast<int>(a.ldb), a.ldc, a.alpha,
       /*accumulate=*/true},
      a.K, true, stream);
}

}  // namespace soup::kernels::cuda
