// Forward attention: one CTA makes BM query rows of one head, walking the keys from the diagonal
// down.
//
// The tensor cores bound it, so exponentials run while they work: a block of keys is taken in two
// halves, near (first) and far, and the near half's exponentials are made within the product of the
// far half's scores, the far half's within P V of the near half. Blocks that some row sees in part
// (the diagonal, the window's end) go a plainer way, with masks; both ways compute the same
// function in the same order.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_FORWARD_CUH_
#define SOUP_KERNELS_CUDA_ATTENTION_FORWARD_CUH_

#include <cmath>
#include <type_traits>

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
  // Whether whole blocks go the overlapping way: with one stage and 32 rows a warp it would not fit
  // in the registers.
  static constexpr bool OVERLAP = STAGES == 2 || WM == 16;
  static_assert(BM % WM == 0 && WM % 16 == 0 && BN % 32 == 0, "tile");
  static_assert(BN % WM == 0, "a warp's first block must hold all its diagonals");
};

// Half a block of keys for a warp's rows.
template <int M, int N>
struct HalfBlock {
  static constexpr int kPairs = M * N * 2;  // neighbouring keys of a row that a lane holds

  float s[M][N][4];         // [16 M, 8 N] scores before scale and cap
  uint32_t p[M][N / 2][4];  // P as bf16 A fragments
};

// What of its rows' softmax a lane holds: P, a row's sum and the output scale together by
// 2^-reference (log2 units). `reference` is the maximum of the first block's scores and need not
// follow the running maximum.
template <int M>
struct RowState {
  float reference[M][2], sum[M][2];
};

// A row's sum beyond this asks for another reference.
inline constexpr float kMostSum = 1.8446744e19f;  // 2^64

template <bool CAP>
__device__ __forceinline__ float Capped(float s, const Params& p) {
  if (!CAP) return s;
  return s == -INFINITY ? s : p.cap_out * TanhOfScaled(s * p.cap_in);
}

// P of pairs [begin, end) of a half, added to their rows' sums. The compiler would put off all
// additions to the end of the loop, where they hold up everything; `zero` makes P of a 16-key step
// depend on them.
template <bool CAP, int M, int N>
__device__ __forceinline__ void Exponentiate(HalfBlock<M, N>& half, RowState<M>& rows,
                                             const Params& p, int begin, int end) {
#pragma unroll
  for (int pair = 0; pair < HalfBlock<M, N>::kPairs; ++pair) {
    if (pair < begin || pair >= end) continue;
    const int n = pair / (2 * M), m = pair / 2 % M, r = pair % 2;
    const float e0 = Exp2(fmaf(Capped<CAP>(half.s[m][n][2 * r], p), p.c2, -rows.reference[m][r]));
    const float e1 =
        Exp2(fmaf(Capped<CAP>(half.s[m][n][2 * r + 1], p), p.c2, -rows.reference[m][r]));
    rows.sum[m][r] += e0 + e1;
    uint32_t packed = PackPair(e0, e1);
    if (n & 1) packed |= __float_as_uint(rows.sum[m][r]) & p.zero;
    half.p[m][n >> 1][(n & 1) * 2 + r] = packed;
  }
}

// How many of `count` pairs are done before a slot of a product, when they begin `lag` slots in:
// then the scores they need have come out of the pipeline.
__device__ __forceinline__ constexpr int PairsBefore(int count, int slot, int slots, int lag) {
  return slot <= lag ? 0 : count * (slot - lag) / (slots - lag);
}

// Hides what rows from `row` on may not see of keys from `key` on.
template <int M, int N>
__device__ __forceinline__ void Mask(HalfBlock<M, N>& half, int row, int key, int window,
                                     int lane) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int qi = row + m * 16 + (lane >> 2) + (i >> 1) * 8,
                  kj = key + n * 8 + (lane & 3) * 2 + (i & 1);
        if (Hidden(qi, kj, window)) half.s[m][n][i] = -INFINITY;
      }
}

// Raises the references to the block's maxima and scales what was summed so far.
template <bool CAP, int M, int N, int DN>
__device__ __forceinline__ void Refer(const HalfBlock<M, N>& near, const HalfBlock<M, N>& far,
                                      RowState<M>& rows, float (&acc)[M][DN][4], const Params& p,
                                      bool yes) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!yes) continue;
      float v = -INFINITY;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        v = fmaxf(v, fmaxf(near.s[m][n][2 * r], near.s[m][n][2 * r + 1]));
        v = fmaxf(v, fmaxf(far.s[m][n][2 * r], far.s[m][n][2 * r + 1]));
      }
      v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
      v = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
      float next = fmaxf(rows.reference[m][r], Capped<CAP>(v, p) * p.c2);
      if (next == -INFINITY) next = 0.f;
      const float factor = Exp2(rows.reference[m][r] - next);
      rows.reference[m][r] = next;
      rows.sum[m][r] *= factor;
#pragma unroll
      for (int n = 0; n < DN; ++n) {
        acc[m][n][2 * r] *= factor;
        acc[m][n][2 * r + 1] *= factor;
      }
    }
}

template <class C, bool CAP>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) ForwardKernel(const Params p) {
  constexpr int D = C::D, BM = C::BM, BN = C::BN, WM = C::WM, STAGES = C::STAGES,
                THREADS = C::THREADS;
  constexpr int RB = C::ROW_BYTES, M = WM / 16, N = BN / 16, STEPS = D / 16;
  using Half = HalfBlock<M, N>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = Uniform(WarpOrder(tid, THREADS, p.sms));
  const int h = blockIdx.x % p.Hq;
  const int4 t = p.tiles[blockIdx.x / p.Hq];
  const int token = Uniform(t.x), len = Uniform(t.y), q0 = Uniform(t.z);
  const int kh = h / p.group, w = p.window;
  const uint32_t sq = SharedAddress(shared), sk = sq + BM * RB, sv = sk + STAGES * BN * RB;
  const bf16* gq = p.q + static_cast<size_t>(token + q0) * p.qkv_stride + h * D;
  const bf16* gk = p.k + static_cast<size_t>(token) * p.qkv_stride + kh * D;
  const int64_t v_offset = p.v - p.k;
  const int end = min(len, q0 + BM);
  const int last = (end - 1) / BN, first = w > 0 ? max(0, q0 - w + 1) / BN : 0;
  // Blocks [whole_first, whole_end) are seen whole by every row.
  const int whole_first = w > 0 ? max(0, end - w + BN - 1) / BN : 0, whole_end = (q0 + 1) / BN;
  const int r0 = q0 + warp * WM, l7 = lane & 7;
  const uint32_t a_q = sq + (warp * WM + (lane & 15)) * RB + (((lane >> 4) ^ l7) << 4);
  const uint32_t b_k = sk + (l7 + ((lane >> 4) << 3)) * RB + ((((lane >> 3) & 1) ^ l7) << 4);
  const uint32_t b_v = sv + (lane & 15) * RB + (((lane >> 4) ^ l7) << 4);
  // Only the last block may hold rows past the sequence's end.
  auto load = [&](auto whole, uint32_t tile, int64_t offset, int block) {
    LoadTile<BN, D, THREADS, decltype(whole)::value>(tile, gk + offset + block * BN * p.qkv_stride,
                                                     p.qkv_stride, len - block * BN, tid);
  };
  LoadTile<BM, D, THREADS>(sq, gq, p.qkv_stride, len - q0, tid);

  float acc[M][D / 8][4];
  RowState<M> rows;
  // A row whose sum leaves [0, 2^64) (its scores rise by more than 44 above its first block's) has
  // the CTA begin again, with new references at every block.
  bool careful = false;
  while (true) {
    load(std::false_type{}, sk, 0, last);
    if (STAGES == 2) load(std::false_type{}, sv, v_offset, last);
    CommitCopies();
    Zero(acc);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      // Warps past the end walk whole blocks of zeros along with the others.
      rows.reference[m][0] = rows.reference[m][1] = r0 < len ? -INFINITY : 0.f;
      rows.sum[m][0] = rows.sum[m][1] = 0.f;
    }
    bool first_block = true;
    int stage = 0, block = last;
    // K (with two stages also V) of this block are there; the next copies start.
    auto begin_step = [&](auto whole) {
      WaitCopies<0>();
      __syncthreads();
      if (STAGES == 1) {
        load(whole, sv, v_offset, block);
        CommitCopies();
      } else if (block > first) {
        load(std::true_type{}, sk + (stage ^ 1) * BN * RB, 0, block - 1);
        load(std::true_type{}, sv + (stage ^ 1) * BN * RB, v_offset, block - 1);
        CommitCopies();
      }
    };
    // With one stage: V is there, K is read and the next one starts.
    auto before_values = [&] {
      if (STAGES == 2) return;
      WaitCopies<0>();
      __syncthreads();
      if (block > first) load(std::true_type{}, sk, 0, block - 1);
      CommitCopies();
    };
    auto end_step = [&] {
      --block;
      if (STAGES == 2) stage ^= 1;
    };
    while (block >= first) {
      if (C::OVERLAP && !careful && block < whole_end && block >= whole_first) {
        do {
          begin_step(std::true_type{});
          Half near, far;
          const uint32_t k_near = b_k + stage * BN * RB, v_near = b_v + stage * BN * RB;
          Zero(near.s);
          ProductShared<M, N, STEPS, RB>(near.s, a_q, k_near);
          Zero(far.s);
          ProductShared<M, N, STEPS, RB>(
              far.s, a_q, k_near + BN / 2 * RB, [&](int slot, int slots) {
                Exponentiate<CAP>(near, rows, p, PairsBefore(Half::kPairs, slot, slots, slots / 2),
                                  PairsBefore(Half::kPairs, slot + 1, slots, slots / 2));
              });
          before_values();
          ProductRegisters<M, N / 2, D / 8, RB>(acc, v_near, near.p, [&](int slot, int slots) {
            Exponentiate<CAP>(far, rows, p, PairsBefore(Half::kPairs, slot, slots, slots / 4),
                              PairsBefore(Half::kPairs, slot + 1, slots, slots / 4));
          });
          ProductRegisters<M, N / 2, D / 8, RB>(acc, v_near + BN / 2 * RB, far.p);
          end_step();
        } while (block >= whole_first);
      } else {
        begin_step(std::false_type{});
        const int k0 = block * BN;
        const bool active = k0 <= r0 + WM - 1 && r0 < len && (w == 0 || k0 + BN - 1 > r0 - w);
        Half near, far;
        if (active) {
          const uint32_t k_near = b_k + stage * BN * RB;
          Zero(near.s);
          ProductShared<M, N, STEPS, RB>(near.s, a_q, k_near);
          Zero(far.s);
          ProductShared<M, N, STEPS, RB>(far.s, a_q, k_near + BN / 2 * RB);
          if (C::OVERLAP || k0 + BN - 1 > r0 || (w > 0 && k0 <= r0 + WM - 1 - w)) {
            Mask(near, r0, k0, w, lane);
            Mask(far, r0, k0 + BN / 2, w, lane);
          }
          Refer<CAP>(near, far, rows, acc, p, first_block || careful);
          first_block = false;
          Exponentiate<CAP>(near, rows, p, 0, Half::kPairs);
          Exponentiate<CAP>(far, rows, p, 0, Half::kPairs);
        }
        before_values();
        if (active) {
          const uint32_t v_near = b_v + stage * BN * RB;
          ProductRegisters<M, N / 2, D / 8, RB>(acc, v_near, near.p);
          ProductRegisters<M, N / 2, D / 8, RB>(acc, v_near + BN / 2 * RB, far.p);
        }
        end_step();
      }
    }
    bool overflow = false;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.sum[m][r] += __shfl_xor_sync(~0u, rows.sum[m][r], 1);
        rows.sum[m][r] += __shfl_xor_sync(~0u, rows.sum[m][r], 2);
        overflow = overflow || !(rows.sum[m][r] < kMostSum);
      }
    // A NaN score overflows for ever: begun anew once, it stands and poisons its own row only.
    if (careful || !__syncthreads_or(overflow)) break;
    careful = true;
  }

  float inverse[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      inverse[m][r] = 1.f / rows.sum[m][r];
      const int qi = r0 + m * 16 + (lane >> 2) + r * 8;
      if ((lane & 3) == 0 && qi < len) {
        p.lse[static_cast<int64_t>(h) * p.T + token + qi] =
            fmaf(rows.reference[m][r], kLn2, logf(rows.sum[m][r]));
      }
    }
  // A warp stages in its own Q rows, which nobody else reads.
  if (r0 < len) {
    StoreRows<M, D>(acc, inverse, sq + warp * WM * RB,
                    p.out + static_cast<size_t>(token + r0) * p.out_stride + h * D, p.out_stride,
                    len - r0, lane);
  }
}

}  // namespace soup::kernels::cuda::attention

#endif  // SOUP_KERNELS_CUDA_ATTENTION_FORWARD_CUH_
