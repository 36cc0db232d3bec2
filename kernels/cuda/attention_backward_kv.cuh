// Backward attention, second kernel: dK and dV. One CTA makes BN keys of one kv head (and of a
// share of its query heads, when the machine needs more CTAs: `split`), walking the queries that
// see them.
//
// Warps come in pairs over the same WK keys. The first makes S^T = K Q^T, P^T and dV += P^T dO; the
// second dP^T = V dO^T, dS^T and dK += dS^T Q. P^T passes between them through shared memory,
// double-buffered. Q and dO come in three stages. Hand-over is by mbarriers only, so the warps of a
// CTA drift apart and hide each other's latencies:
//   full[stage]   all threads' copies of the stage have landed
//   empty[stage]  every warp is done with the stage
//   p_full[pair][half], p_empty[pair][half]  all 32 lanes of the writer (reader) arrive, so that
//   each lane's own accesses are
//                 ordered by its own arrival: one lane arriving for the warp after __syncwarp is as
//                 correct, but racecheck cannot follow it.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_BACKWARD_KV_CUH_
#define SOUP_KERNELS_CUDA_ATTENTION_BACKWARD_KV_CUH_

#include <cmath>

#include "kernels/cuda/attention_tiles.cuh"

namespace soup::kernels::cuda::attention {

template <int D_, int BN_, int BM_, int WK_, int REVERSE_, int MIN_BLOCKS_>
struct BackwardKvConfig {
  static constexpr int D = D_, BN = BN_, BM = BM_, WK = WK_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool REVERSE =
      REVERSE_ != 0;  // which warp of the second half is a pair's partner
  static constexpr int BLOCK_ROWS = BN, PAIRS = BN / WK, THREADS = 2 * PAIRS * 32,
                       ROW_BYTES = TileShape<D>::kRowBytes;
  static constexpr int STAGES = 3, P_BYTES = WK * BM * 2;
  static constexpr int BARRIERS = 2 * STAGES + 4 * PAIRS;
  static constexpr int SHARED_BYTES = 2 * BN * ROW_BYTES + 2 * STAGES * BM * ROW_BYTES +
                                      2 * PAIRS * P_BYTES + STAGES * 2 * BM * 4 + BARRIERS * 8;
  static_assert(BN % WK == 0 && WK % 16 == 0 && BM % 16 == 0 && BN % BM == 0 && THREADS >= 2 * BM,
                "tile");
};

template <class C, bool CAP>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) BackwardKvKernel(const Params p) {
  constexpr int D = C::D, BM = C::BM, BN = C::BN, WK = C::WK, THREADS = C::THREADS,
                RB = C::ROW_BYTES;
  constexpr int PAIRS = C::PAIRS, PB = C::P_BYTES, STAGES = C::STAGES, M = WK / 16, N = BM / 8;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const bool makes_dv = warp < PAIRS;
  const int pair = makes_dv ? warp : C::REVERSE ? 2 * PAIRS - 1 - warp : warp - PAIRS;
  const int part = blockIdx.x % p.split, kh = (blockIdx.x / p.split) % p.Hkv;
  const int4 t = p.tiles[blockIdx.x / (p.split * p.Hkv)];
  const int len = t.y, n0 = t.z, w = p.window;
  const int heads_a_part = (p.group + p.split - 1) / p.split;
  const int g0 = part * heads_a_part, g1 = min(p.group, g0 + heads_a_part);

  const uint32_t sk = SharedAddress(shared), sv = sk + BN * RB, sq = sv + BN * RB,
                 so = sq + STAGES * BM * RB, sp = so + STAGES * BM * RB,
                 sstat = sp + 2 * PAIRS * PB;
  const uint32_t full = sstat + STAGES * 2 * BM * 4, empty = full + STAGES * 8,
                 p_full = empty + STAGES * 8, p_empty = p_full + PAIRS * 16;
  const bf16* gq =
      p.q + static_cast<size_t>(t.x) * p.qkv_stride + static_cast<int64_t>(kh) * p.group * D;
  const bf16* go =
      p.dout + static_cast<size_t>(t.x) * p.out_stride + static_cast<int64_t>(kh) * p.group * D;
  const float* glse = p.lse + static_cast<int64_t>(kh) * p.group * p.T + t.x;
  const float* gdelta = p.delta + static_cast<int64_t>(kh) * p.group * p.T + t.x;
  const int q_end = w > 0 ? min(len, n0 + BN - 1 + w) : len;
  const int qb0 = n0 / BM, qb1 = (q_end + BM - 1) / BM;
  const int total = max(0, g1 - g0) * (qb1 - qb0);

  auto load_stage = [&](int g, int qb, int stage) {
    const int r = qb * BM;
    LoadTile<BM, D, THREADS>(sq + stage * BM * RB, gq + r * p.qkv_stride + g * D, p.qkv_stride,
                             len - r, tid);
    LoadTile<BM, D, THREADS>(so + stage * BM * RB, go + r * p.out_stride + g * D, p.out_stride,
                             len - r, tid);
    if (tid < 2 * BM) {
      const int i = tid % BM;
      const bool valid = r + i < len;
      const float* stat = (tid < BM ? glse : gdelta) + static_cast<int64_t>(g) * p.T;
      CopyAsync4(sstat + (stage * 2 * BM + tid) * 4, stat + (valid ? r + i : 0), valid);
    }
  };
  if (tid == 0) {
    for (int i = 0; i < STAGES; ++i) {
      BarrierInit(full + i * 8, THREADS);
      BarrierInit(empty + i * 8, THREADS);
    }
    for (int i = 0; i < 4 * PAIRS; ++i) BarrierInit(p_full + i * 8, 32);
  }
  __syncthreads();
  LoadTile<BN, D, THREADS>(sk, p.k + static_cast<size_t>(t.x + n0) * p.qkv_stride + kh * D,
                           p.qkv_stride, len - n0, tid);
  LoadTile<BN, D, THREADS>(sv, p.v + static_cast<size_t>(t.x + n0) * p.qkv_stride + kh * D,
                           p.qkv_stride, len - n0, tid);
  int load_head = g0, load_block = qb0;
  if (total > 0) {
    load_stage(load_head, load_block, 0);
    BarrierArriveOnCopies(full);
  }

  const int k0 = n0 + pair * WK, l7 = lane & 7;
  const uint32_t lane_b = (l7 + ((lane >> 4) << 3)) * RB + ((((lane >> 3) & 1) ^ l7) << 4);
  const uint32_t lane_t = (lane & 15) * RB + (((lane >> 4) ^ l7) << 4);
  const uint32_t a1 = (makes_dv ? sk : sv) + pair * WK * RB + lane_t;
  const uint32_t b1 = (makes_dv ? sq : so) + lane_b, b2 = (makes_dv ? so : sq) + lane_t;
  const uint32_t p_buffer = sp + pair * PB + lane * 16, stat_lane = sstat + (lane & 3) * 8;
  float acc[M][D / 8][4];
  Zero(acc);
  uint32_t pf[M][BM / 16][4];

  auto is_active = [&](int r0) {
    return r0 + BM - 1 >= k0 && k0 < len && (w == 0 || r0 < k0 + WK - 1 + w);
  };
  auto mask = [&](float(&x)[M][N][4], int r0) {
    if (!(r0 < k0 + WK - 1 || (w > 0 && r0 + BM - 1 >= k0 + w))) return;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int kj = k0 + m * 16 + (lane >> 2) + (i >> 1) * 8,
                    qi = r0 + n * 8 + (lane & 3) * 2 + (i & 1);
          if (Hidden(qi, kj, w)) x[m][n][i] = -INFINITY;
        }
  };
  // S^T -> P^T in pf; P^T times the soft cap's slope to the partner.
  auto make_p = [&](float(&x)[M][N][4], uint32_t to, uint32_t stat) {
#pragma unroll
    for (int k = 0; k < BM / 16; ++k) {
      float2 l0 = LoadSharedFloat2(stat + k * 64), l1 = LoadSharedFloat2(stat + k * 64 + 32);
      l0.x *= kLog2E;
      l0.y *= kLog2E;
      l1.x *= kLog2E;
      l1.y *= kLog2E;
#pragma unroll
      for (int m = 0; m < M; ++m) {
        uint32_t sloped[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int n = 2 * k + (r >> 1), half = r & 1;
          const float2 l = r >> 1 ? l1 : l0;
          const float y0 = x[m][n][2 * half], y1 = x[m][n][2 * half + 1];
          if (!CAP) {
            pf[m][k][r] = PackPair(Exp2(fmaf(y0, p.c2, -l.x)), Exp2(fmaf(y1, p.c2, -l.y)));
            sloped[r] = pf[m][k][r];
          } else {
            const float u0 = TanhOfScaled(y0 * p.cap_in), u1 = TanhOfScaled(y1 * p.cap_in);
            const float e0 = y0 == -INFINITY ? 0.f : Exp2(fmaf(p.cap_out * u0, p.c2, -l.x));
            const float e1 = y1 == -INFINITY ? 0.f : Exp2(fmaf(p.cap_out * u1, p.c2, -l.y));
            pf[m][k][r] = PackPair(e0, e1);
            sloped[r] = PackPair(e0 * (1.f - u0 * u0), e1 * (1.f - u1 * u1));
          }
        }
        StoreShared16(to + (m * (BM / 16) + k) * 512,
                      make_uint4(sloped[0], sloped[1], sloped[2], sloped[3]));
      }
    }
  };
  // dS^T = P^T o (dP^T - delta) in pf.
  auto make_ds = [&](float(&x)[M][N][4], uint32_t from, uint32_t stat) {
#pragma unroll
    for (int k = 0; k < BM / 16; ++k) {
      const float2 d0 = LoadSharedFloat2(stat + k * 64), d1 = LoadSharedFloat2(stat + k * 64 + 32);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const uint4 v = LoadShared16(from + (m * (BM / 16) + k) * 512);
        pf[m][k][0] =
            PackPair(Low(v.x) * (x[m][2 * k][0] - d0.x), High(v.x) * (x[m][2 * k][1] - d0.y));
        pf[m][k][1] =
            PackPair(Low(v.y) * (x[m][2 * k][2] - d0.x), High(v.y) * (x[m][2 * k][3] - d0.y));
        pf[m][k][2] = PackPair(Low(v.z) * (x[m][2 * k + 1][0] - d1.x),
                               High(v.z) * (x[m][2 * k + 1][1] - d1.y));
        pf[m][k][3] = PackPair(Low(v.w) * (x[m][2 * k + 1][2] - d1.x),
                               High(v.w) * (x[m][2 * k + 1][3] - d1.y));
      }
    }
  };

  int block = qb0, stage = 0, made = 0;  // made: products of this pair so far
  for (int step = 0; step < total; ++step) {
    const int next = stage == STAGES - 1 ? 0 : stage + 1;
    if (step + 1 < total) {
      if (++load_block == qb1) {
        load_block = qb0;
        ++load_head;
      }
      // Stage `next` was last used in step - 2.
      if (step >= STAGES - 1) BarrierWait(empty + next * 8, ((step + 1) / STAGES - 1) & 1);
      load_stage(load_head, load_block, next);
      BarrierArriveOnCopies(full + next * 8);
    }
    BarrierWait(full + stage * 8, (step / STAGES) & 1);
    const int r0 = block * BM;
    if (is_active(r0)) {
      float x[M][N][4];
      Zero(x);
      ProductShared<M, N, D / 16, RB>(x, a1, b1 + stage * BM * RB);
      const int half = made & 1;
      const uint32_t buffer = p_buffer + half * PAIRS * PB;
      const uint32_t bar_full = p_full + pair * 16 + half * 8,
                     bar_empty = p_empty + pair * 16 + half * 8;
      if (makes_dv) {
        mask(x, r0);
        if (made >= 2) BarrierWait(bar_empty, ((made >> 1) - 1) & 1);
        make_p(x, buffer, stat_lane + stage * 2 * BM * 4);
        BarrierArrive(bar_full);
      } else {
        BarrierWait(bar_full, (made >> 1) & 1);
        make_ds(x, buffer, stat_lane + (stage * 2 * BM + BM) * 4);
        BarrierArrive(bar_empty);
      }
      ProductRegisters<M, BM / 16, D / 8, RB>(acc, b2 + stage * BM * RB, pf);
      ++made;
    }
    BarrierArrive(empty + stage * 8);
    if (++block == qb1) block = qb0;
    stage = next;
  }
  WaitCopies<0>();  // in flight only when there was no work at all
  __syncthreads();
  if (k0 >= len) return;
  const float factor = makes_dv ? 1.f : p.scale;
  if (p.split == 1) {
    float f[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) f[m][0] = f[m][1] = factor;
    StoreRows<M, D>(
        acc, f, (makes_dv ? sv : sk) + pair * WK * RB,
        (makes_dv ? p.dv : p.dk) + static_cast<size_t>(t.x + k0) * p.grad_stride + kh * D,
        p.grad_stride, len - k0, lane);
    return;
  }
  const int row = p.Hkv * D;
  float* to = p.partials +
              (static_cast<int64_t>(part * 2 + (makes_dv ? 1 : 0)) * p.T + t.x + k0) * row + kh * D;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int x = m * 16 + (lane >> 2) + r * 8;
        if (k0 + x < len) {
          *reinterpret_cast<float2*>(to + static_cast<int64_t>(x) * row + n * 8 + (lane & 3) * 2) =
              make_float2(acc[m][n][2 * r] * factor, acc[m][n][2 * r + 1] * factor);
        }
      }
}

// Sums the parts in order; 4 columns a thread; rows [0, tokens).
__global__ void SumPartsKernel(const Params p, int64_t tokens, int row) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * 4;
  if (i >= tokens * row) return;
  const int64_t t = i / row, plane = static_cast<int64_t>(p.T) * row;
  const int c = static_cast<int>(i - t * row);
#pragma unroll
  for (int z = 0; z < 2; ++z) {
    float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int k = 0; k < p.split; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(p.partials + (k * 2 + z) * plane + i);
      s.x += x.x;
      s.y += x.y;
      s.z += x.z;
      s.w += x.w;
    }
    *reinterpret_cast<uint2*>((z ? p.dv : p.dk) + t * p.grad_stride + c) =
        make_uint2(PackPair(s.x, s.y), PackPair(s.z, s.w));
  }
}

}  // namespace soup::kernels::cuda::attention

#endif  // SOUP_KERNELS_CUDA_ATTENTION_BACKWARD_KV_CUH_
