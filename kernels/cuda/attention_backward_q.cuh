// Backward attention, first kernel: delta = rowsum(dO * O), and dQ. One CTA makes BM query rows of
// one head.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_BACKWARD_Q_CUH_
#define SOUP_KERNELS_CUDA_ATTENTION_BACKWARD_Q_CUH_

#include <cmath>

#include "kernels/cuda/attention_tiles.cuh"

namespace soup::kernels::cuda::attention {

// STAGES: of K and V. With 1 stage P is kept as bf16 while dP is made (fewer registers).
template <int D_, int BM_, int BN_, int WM_, int STAGES_, int MIN_BLOCKS_>
struct BackwardQConfig {
  static constexpr int D = D_, BM = BM_, BN = BN_, WM = WM_, STAGES = STAGES_,
                       MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int BLOCK_ROWS = BM, THREADS = BM / WM * 32, ROW_BYTES = TileShape<D>::kRowBytes;
  static constexpr bool PACK_P = STAGES == 1;
  static constexpr int SHARED_BYTES = 2 * BM * ROW_BYTES + STAGES * 2 * BN * ROW_BYTES + BM * 4;
  static_assert(BM % WM == 0 && WM % 16 == 0 && BN % 16 == 0, "tile");
  static_assert(STAGES == 1 || STAGES == 2, "stages");
};

// Row sums of dO * O for the warp's own rows: dO from shared memory, O from `o` in registers; lane
// groups of kLanes hold one row. Halves the rows a lane holds at each butterfly step while there
// are several, so the order is fixed.
template <class C>
struct DeltaSums {
  static constexpr int kLanes =
      TileShape<C::D>::kPadded / 8 < 32 ? TileShape<C::D>::kPadded / 8 : 32;
  static constexpr int kRowsPerPass = 32 / kLanes;
  static constexpr int kPasses = C::WM / kRowsPerPass;
};

template <class C, bool CAP>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) BackwardQKernel(const Params p) {
  constexpr int D = C::D, BM = C::BM, BN = C::BN, WM = C::WM, STAGES = C::STAGES,
                THREADS = C::THREADS;
  constexpr int RB = C::ROW_BYTES, M = WM / 16, N = BN / 8;
  constexpr bool PACK = C::PACK_P;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = WarpOrder(tid, THREADS, p.sms);
  const int h = blockIdx.x % p.Hq;
  const int4 t = p.tiles[blockIdx.x / p.Hq];
  const int kh = h / p.group, len = t.y, q0 = t.z, w = p.window;
  const uint32_t sq = SharedAddress(shared), so = sq + BM * RB, sk = so + BM * RB,
                 sv = sk + STAGES * BN * RB, sdelta = sv + STAGES * BN * RB;
  const bf16* gk = p.k + static_cast<size_t>(t.x) * p.qkv_stride + kh * D;
  const bf16* gv = p.v + static_cast<size_t>(t.x) * p.qkv_stride + kh * D;
  const int last = (min(len, q0 + BM) - 1) / BN, first = w > 0 ? max(0, q0 - w + 1) / BN : 0;
  auto load = [&](uint32_t tile, const bf16* from, int block) {
    LoadTile<BN, D, THREADS>(tile, from + block * BN * p.qkv_stride, p.qkv_stride, len - block * BN,
                             tid);
  };
  LoadTile<BM, D, THREADS>(so, p.dout + static_cast<size_t>(t.x + q0) * p.out_stride + h * D,
                           p.out_stride, len - q0, tid);
  CommitCopies();
  LoadTile<BM, D, THREADS>(sq, p.q + static_cast<size_t>(t.x + q0) * p.qkv_stride + h * D,
                           p.qkv_stride, len - q0, tid);
  load(sk, gk, last);
  load(sv, gv, last);
  CommitCopies();

  const int r0 = q0 + warp * WM, l7 = lane & 7;
  float l2[M][2], delta[M][2];
  {
    using S = DeltaSums<C>;
    const int c = lane % S::kLanes, rr = lane / S::kLanes;
    uint4 o[S::kPasses];
#pragma unroll
    for (int i = 0; i < S::kPasses; ++i) {
      const int r = i * S::kRowsPerPass + rr;
      o[i] = make_uint4(0, 0, 0, 0);
      if (r0 + r < len && c < TileShape<D>::kChunks) {
        o[i] = *reinterpret_cast<const uint4*>(
            p.out_in + static_cast<size_t>(t.x + r0 + r) * p.out_stride + h * D + c * 8);
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int x = m * 16 + (lane >> 2) + r * 8;
        l2[m][r] =
            r0 + x < len ? p.lse[static_cast<int64_t>(h) * p.T + t.x + r0 + x] * kLog2E : 0.f;
      }
    WaitCopies<1>();
    __syncthreads();
    float sums[S::kPasses];
#pragma unroll
    for (int i = 0; i < S::kPasses; ++i) {
      const int r = i * S::kRowsPerPass + rr;
      float s = 0.f;
      if (c < TileShape<D>::kChunks) {
        const uint4 d = LoadShared16(so + (warp * WM + r) * RB + ((c ^ (r & 7)) << 4));
        s = Low(d.x) * Low(o[i].x) + High(d.x) * High(o[i].x) + Low(d.y) * Low(o[i].y) +
            High(d.y) * High(o[i].y) + Low(d.z) * Low(o[i].z) + High(d.z) * High(o[i].z) +
            Low(d.w) * Low(o[i].w) + High(d.w) * High(o[i].w);
      }
      sums[i] = s;
    }
    int selected = 0;
#pragma unroll
    for (int j = 1, n = S::kPasses; j < S::kLanes; j <<= 1) {
      if (n > 1) {
        n >>= 1;
        const bool upper = c & j;
        selected = selected * 2 + (upper ? 1 : 0);
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float keep = upper ? sums[i + n] : sums[i], give = upper ? sums[i] : sums[i + n];
          sums[i] = keep + __shfl_xor_sync(~0u, give, j);
        }
      } else {
        sums[0] += __shfl_xor_sync(~0u, sums[0], j);
      }
    }
    constexpr int kLeft =
        S::kPasses > S::kLanes ? S::kPasses / S::kLanes : 1;  // rows left in a lane
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      const int r = (selected * kLeft + i) * S::kRowsPerPass + rr;
      const bool writer = S::kPasses >= S::kLanes || c < S::kPasses;
      if (writer) StoreShared4(sdelta + (warp * WM + r) * 4, __float_as_uint(sums[i]));
      if (r0 + r < len && writer) p.delta[static_cast<int64_t>(h) * p.T + t.x + r0 + r] = sums[i];
    }
    __syncwarp();
  }
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      delta[m][r] = LoadSharedFloat(sdelta + (warp * WM + m * 16 + (lane >> 2) + r * 8) * 4);
    }
  const uint32_t a_q = sq + (warp * WM + (lane & 15)) * RB + (((lane >> 4) ^ l7) << 4),
                 a_o = a_q + BM * RB;
  const uint32_t b_k = sk + (l7 + ((lane >> 4) << 3)) * RB + ((((lane >> 3) & 1) ^ l7) << 4),
                 b_v = b_k + STAGES * BN * RB;
  const uint32_t t_k = sk + (lane & 15) * RB + (((lane >> 4) ^ l7) << 4);
  float acc[M][D / 8][4];
  Zero(acc);

  // P of one element, times the soft cap's slope.
  auto probability = [&](float y, float l) {
    if (!CAP) return Exp2(fmaf(y, p.c2, -l));
    const float u = TanhOfScaled(y * p.cap_in);
    return (y == -INFINITY ? 0.f : Exp2(fmaf(p.cap_out * u, p.c2, -l))) * (1.f - u * u);
  };
  int stage = 0;
  for (int block = last; block >= first; --block, stage = STAGES == 2 ? stage ^ 1 : 0) {
    WaitCopies<0>();
    __syncthreads();
    if (STAGES == 2 && block > first) {
      load(sk + (stage ^ 1) * BN * RB, gk, block - 1);
      load(sv + (stage ^ 1) * BN * RB, gv, block - 1);
      CommitCopies();
    }
    const int k0 = block * BN;
    const bool active = k0 <= r0 + WM - 1 && r0 < len && (w == 0 || k0 + BN - 1 > r0 - w);
    float s[M][N][4], dp[M][N][4];
    uint32_t packed[PACK ? M : 1][PACK ? N : 1][2];
    if (active) {
      Zero(dp);
      Zero(s);
      ProductShared<M, N, D / 16, RB>(s, a_q, b_k + stage * BN * RB);
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
      if (PACK) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int n = 0; n < N; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              packed[PACK ? m : 0][PACK ? n : 0][r] = PackPair(
                  probability(s[m][n][2 * r], l2[m][r]), probability(s[m][n][2 * r + 1], l2[m][r]));
            }
      }
      ProductShared<M, N, D / 16, RB>(dp, a_o, b_v + stage * BN * RB);
      // dS = P o (dP - delta), as the A operand.
      uint32_t ds[M][BN / 16][4];
#pragma unroll
      for (int k = 0; k < BN / 16; ++k)
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const int n = 2 * k + (r >> 1), half = r & 1;
            float e0, e1;
            if (PACK) {
              const uint32_t x = packed[PACK ? m : 0][PACK ? n : 0][half];
              e0 = Low(x);
              e1 = High(x);
            } else {
              e0 = probability(s[m][n][2 * half], l2[m][half]);
              e1 = probability(s[m][n][2 * half + 1], l2[m][half]);
            }
            ds[m][k][r] = PackPair(e0 * (dp[m][n][2 * half] - delta[m][half]),
                                   e1 * (dp[m][n][2 * half + 1] - delta[m][half]));
          }
      ProductRegisters<M, BN / 16, D / 8, RB>(acc, t_k + stage * BN * RB, ds);
    }
    if (STAGES == 1 && block > first) {
      __syncthreads();
      load(sk, gk, block - 1);
      load(sv, gv, block - 1);
      CommitCopies();
    }
  }
  float factor[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) factor[m][0] = factor[m][1] = p.scale;
  // Staged in the warp's own Q rows.
  if (r0 < len) {
    StoreRows<M, D>(acc, factor, sq + warp * WM * RB,
                    p.dq + static_cast<size_t>(t.x + r0) * p.grad_stride + h * D, p.grad_stride,
                    len - r0, lane);
  }
}

}  // namespace soup::kernels::cuda::attention

#endif  // SOUP_KERNELS_CUDA_ATTENTION_BACKWARD_Q_CUH_
