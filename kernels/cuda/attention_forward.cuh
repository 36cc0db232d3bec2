// Forward attention: one CTA makes BM query rows of one head, walking the keys from the diagonal
// down.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_FORWARD_CUH_
#define SOUP_KERNELS_CUDA_ATTENTION_FORWARD_CUH_

#include <cmath>

#include "kernels/cuda/attention_tiles.cuh"

namespace soup::kernels::cuda::attention {

// BM query rows a CTA, BN keys a step, WM query rows a warp, STAGES of K and V, at least MIN_BLOCKS
// CTAs a multiprocessor.
template <int D_, int BM_, int BN_, int WM_, int STAGES_, int MIN_BLOCKS_>
struct ForwardConfig {
  static constexpr int D = D_, BM = BM_, BN = BN_, WM = WM_, STAGES = STAGES_,
                       MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int BLOCK_ROWS = BM, THREADS = BM / WM * 32, ROW_BYTES = TileShape<D>::kRowBytes;
  static constexpr int SHARED_BYTES = BM * ROW_BYTES + STAGES * 2 * BN * ROW_BYTES;
  static_assert(BM % WM == 0 && WM % 16 == 0 && BN % 16 == 0, "tile");
  static_assert(BN % WM == 0, "a warp's first block must hold all its diagonals");
};

template <class C, bool CAP>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) ForwardKernel(const Params p) {
  constexpr int D = C::D, BM = C::BM, BN = C::BN, WM = C::WM, STAGES = C::STAGES,
                THREADS = C::THREADS;
  constexpr int RB = C::ROW_BYTES, M = WM / 16, N = BN / 8;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = WarpOrder(tid, THREADS, p.sms);
  const int h = blockIdx.x % p.Hq;
  const int4 t = p.tiles[blockIdx.x / p.Hq];
  const int kh = h / p.group, len = t.y, q0 = t.z, w = p.window;
  const uint32_t sq = SharedAddress(shared), sk = sq + BM * RB, sv = sk + STAGES * BN * RB;
  const bf16* gq = p.q + static_cast<size_t>(t.x + q0) * p.qkv_stride + h * D;
  const bf16* gk = p.k + static_cast<size_t>(t.x) * p.qkv_stride + kh * D;
  const bf16* gv = p.v + static_cast<size_t>(t.x) * p.qkv_stride + kh * D;
  const int last = (min(len, q0 + BM) - 1) / BN, first = w > 0 ? max(0, q0 - w + 1) / BN : 0;
  auto load_k = [&](int block, int stage) {
    LoadTile<BN, D, THREADS>(sk + stage * BN * RB, gk + block * BN * p.qkv_stride, p.qkv_stride,
                             len - block * BN, tid);
  };
  auto load_v = [&](int block, int stage) {
    LoadTile<BN, D, THREADS>(sv + stage * BN * RB, gv + block * BN * p.qkv_stride, p.qkv_stride,
                             len - block * BN, tid);
  };
  LoadTile<BM, D, THREADS>(sq, gq, p.qkv_stride, len - q0, tid);
  load_k(last, 0);
  if (STAGES == 2) load_v(last, 0);
  CommitCopies();

  const int r0 = q0 + warp * WM, l7 = lane & 7;
  const uint32_t a_q = sq + (warp * WM + (lane & 15)) * RB + (((lane >> 4) ^ l7) << 4);
  const uint32_t b_k = sk + (l7 + ((lane >> 4) << 3)) * RB + ((((lane >> 3) & 1) ^ l7) << 4);
  const uint32_t b_v = sv + (lane & 15) * RB + (((lane >> 4) ^ l7) << 4);
  float acc[M][D / 8][4];
  Zero(acc);
  // reference: a row's P, sum and output scale together by 2^-reference (log2 units). It starts as
  // the first block's maximum and need not follow the running maximum: it moves only when a row's
  // sum in a block leaves [0, 2^64); then the block is redone.
  float reference[M][2], sums[M][2];
  bool first_block = true;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    reference[m][0] = reference[m][1] = -INFINITY;
    sums[m][0] = sums[m][1] = 0.f;
  }
  int stage = 0;
  for (int block = last; block >= first; --block, stage = STAGES == 2 ? stage ^ 1 : 0) {
    WaitCopies<0>();
    __syncthreads();
    if (STAGES == 2) {
      if (block > first) {
        load_k(block - 1, stage ^ 1);
        load_v(block - 1, stage ^ 1);
        CommitCopies();
      }
    } else {
      load_v(block, 0);
      CommitCopies();
    }
    const int k0 = block * BN;
    const bool active = k0 <= r0 + WM - 1 && r0 < len && (w == 0 || k0 + BN - 1 > r0 - w);
    uint32_t pf[M][BN / 16][4];
    if (active) {
      float block_sums[M][2];
      bool rescale = first_block;
      first_block = false;
      while (true) {
        float s[M][N][4];
        Zero(s);
        ProductShared<M, N, D / 16, RB>(s, a_q, b_k + stage * BN * RB);
        if (CAP) {
#pragma unroll
          for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i)
                s[m][n][i] = p.cap_out * TanhOfScaled(s[m][n][i] * p.cap_in);
        }
        if (k0 + BN - 1 > r0 || (w > 0 && k0 <= r0 + WM - 1 - w)) {
#pragma unroll
          for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int qi = r0 + m * 16 + (lane >> 2) + (i >> 1) * 8,
                          kj = k0 + n * 8 + (lane & 3) * 2 + (i & 1);
                if (Hidden(qi, kj, w)) s[m][n][i] = -INFINITY;
              }
        }
        if (rescale) {
#pragma unroll
          for (int m = 0; m < M; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              float v = fmaxf(s[m][0][2 * r], s[m][0][2 * r + 1]);
#pragma unroll
              for (int n = 1; n < N; ++n) v = fmaxf(v, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
              v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
              v = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
              float next = fmaxf(reference[m][r], v * p.c2);
              if (next == -INFINITY) next = 0.f;
              const float factor = Exp2(reference[m][r] - next);
              reference[m][r] = next;
              sums[m][r] *= factor;
#pragma unroll
              for (int n = 0; n < D / 8; ++n) {
                acc[m][n][2 * r] *= factor;
                acc[m][n][2 * r + 1] *= factor;
              }
            }
        }
        bool overflow = false;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            block_sums[m][r] = 0.f;
#pragma unroll
            for (int n = 0; n < N; ++n) {
              const float e0 = Exp2(fmaf(s[m][n][2 * r], p.c2, -reference[m][r]));
              const float e1 = Exp2(fmaf(s[m][n][2 * r + 1], p.c2, -reference[m][r]));
              block_sums[m][r] += e0 + e1;
              pf[m][n >> 1][(n & 1) * 2 + r] = PackPair(e0, e1);
            }
            overflow = overflow || !(block_sums[m][r] < 1.8446744e19f);
          }
        // A NaN score overflows for ever: one rescale, then it stands and poisons its own row only.
        if (rescale || !__any_sync(~0u, overflow)) break;
        rescale = true;
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
        sums[m][0] += block_sums[m][0];
        sums[m][1] += block_sums[m][1];
      }
    }
    if (STAGES == 1) {
      WaitCopies<0>();
      __syncthreads();
      if (block > first) load_k(block - 1, 0);
      CommitCopies();
    }
    if (active) ProductRegisters<M, BN / 16, D / 8, RB>(acc, b_v + stage * BN * RB, pf);
  }
  float inverse[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float l = sums[m][r];
      l += __shfl_xor_sync(~0u, l, 1);
      l += __shfl_xor_sync(~0u, l, 2);
      inverse[m][r] = 1.f / l;
      const int qi = r0 + m * 16 + (lane >> 2) + r * 8;
      if ((lane & 3) == 0 && qi < len) {
        p.lse[static_cast<int64_t>(h) * p.T + t.x + qi] = fmaf(reference[m][r], kLn2, logf(l));
      }
    }
  // A warp stages in its own Q rows, which nobody else reads.
  if (r0 < len) {
    StoreRows<M, D>(acc, inverse, sq + warp * WM * RB,
                    p.out + static_cast<size_t>(t.x + r0) * p.out_stride + h * D, p.out_stride,
                    len - r0, lane);
  }
}

}  // namespace soup::kernels::cuda::attention

#endif  // SOUP_KERNELS_CUDA_ATTENTION_FORWARD_CUH_
