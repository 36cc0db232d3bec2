// Device code of hopper_attention.cu; included there alone; C++17.
#ifndef SOUP_KERNELS_CUDA_HOPPER_ATTENTION_FORWARD_CUH_
#define SOUP_KERNELS_CUDA_HOPPER_ATTENTION_FORWARD_CUH_

#include "kernels/cuda/hopper_attention_tiles.cuh"

namespace soup::kernels::cuda::hopper_attention {

struct ForwardParams {
  CUtensorMap q, k, v, out;  // [sequences, length, heads * 128]
  float* lse;                // [Hq, T]
  int64_t T;
  int first, length, blocks;  // of the first sequence; blocks of 128 of each
  int sequences;
  int heads, group;  // query heads, and of each kv head
  float c2;          // of scores in powers of two
};

// Shared memory, in bytes: rings of Q, K and V of 128 rows each, by columns then rows of boxes.
struct ForwardShared {
  static constexpr int kThreads = 384;
  static constexpr int kRing = 2;
  static constexpr int kTileBytes = 4 * kBoxBytes;
  static constexpr int kBarriers = 3 * kRing * kTileBytes;
  static constexpr int kBytes = kBarriers + kBarrierBytes + kAlignment;
};

#if SOUP_ON_HOPPER

// Blocks of 128 queries of a head, one after another, in a CTA of three warpgroups: one brings, two
// multiply, 64 queries each. Keys from the diagonal down; the products of one block of keys are
// under way while probabilities of the next are made.
struct ForwardPass {
  static constexpr int kRing = ForwardShared::kRing;
  const ForwardParams& p;
  uint32_t base;

  __device__ ForwardPass(const ForwardParams& params, unsigned char* shared) : p(params) {
    base = (SharedAddress(shared) + kAlignment - 1) & ~static_cast<uint32_t>(kAlignment - 1);
  }

  // Barriers of a ring (0: Q, 1: K, 2: V).
  __device__ uint32_t Full(int ring, int s) const {
    return base + ForwardShared::kBarriers + 8 * (2 * ring * kRing + s);
  }
  __device__ uint32_t Empty(int ring, int s) const { return Full(ring, kRing + s); }
  __device__ uint32_t Tile(int ring, int s) const {
    return base + (ring * kRing + s) * ForwardShared::kTileBytes;
  }

  __device__ void InitBarriers() const {
    for (int ring = 0; ring < 3; ++ring) {
      for (int s = 0; s < kRing; ++s) {
        BarrierInit(Full(ring, s), 1);
        BarrierInit(Empty(ring, s), 2);
      }
    }
    BarrierInitDone();
  }

  // A tile of work: those with the most keys first, neighbours share keys.
  struct Work {
    int block, sequence, head;
  };
  __device__ int works() const { return p.blocks * p.sequences * p.heads; }
  __device__ Work WorkOf(int t) const {
    const int others = p.sequences * p.heads;
    return {p.blocks - 1 - t / others, t % others / p.heads, t % p.heads};
  }

  __device__ void Bring(int ring, Turn<kRing>& turn, const CUtensorMap* map, int head, int block,
                        int sequence) const {
    const uint32_t full = Full(ring, turn.stage), to = Tile(ring, turn.stage);
    BarrierWait(Empty(ring, turn.stage), turn.parity ^ 1);
    BarrierExpect(full, ForwardShared::kTileBytes);
    for (int b = 0; b < 4; ++b) {
      CopyBox(to + b * kBoxBytes, map, head * kHeadDim + b / 2 * kBox,
              block * kBlock + b % 2 * kBox, sequence, full);
    }
    turn.Next();
  }
  __device__ void BringTiles() const {
    Turn<kRing> q, k, v;
    for (int t = blockIdx.x; t < works(); t += gridDim.x) {
      const Work work = WorkOf(t);
      const int kv = work.head / p.group;
      Bring(0, q, &p.q, work.head, work.block, work.sequence);
      for (int n = work.block; n >= 0; --n) {
        Bring(1, k, &p.k, kv, n, work.sequence);
        Bring(2, v, &p.v, kv, n, work.sequence);
      }
    }
  }

  // Of a lane's two rows: the largest score so far, and its share of the sum of exponentials.
  struct Softmax {
    float most[2], sum[2];
  };

  // Scores to exponentials in place; `fall`: what earlier sums shrink by.
  __device__ __forceinline__ void Exponentials(float (&s)[64], Softmax& softmax,
                                               float (&fall)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = softmax.most[r];
#pragma unroll
      for (int c = 0; c < 16; ++c)
        most = fmaxf(most, fmaxf(s[4 * c + 2 * r], s[4 * c + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      fall[r] = Exp2((softmax.most[r] - most) * p.c2);
      softmax.most[r] = most;
      const float shift = most * p.c2;
      float sum = 0.f;
#pragma unroll
      for (int c = 0; c < 16; ++c) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = Exp2(fmaf(s[4 * c + 2 * r + e], p.c2, -shift));
          s[4 * c + 2 * r + e] = x;
          sum += x;
        }
      }
      softmax.sum[r] = fmaf(softmax.sum[r], fall[r], sum);
    }
  }
  // Keys behind their query, of the block of the queries' own.
  __device__ __forceinline__ static void Mask(float (&s)[64], int w, int thread) {
    const int lane = thread & 31, query = w * kBox + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int key = i / 4 * 8 + 2 * (lane & 3) + i % 2;
      if (key > query + 8 * (i / 2 % 2)) s[i] = __int_as_float(0xff800000);
    }
  }
  __device__ __forceinline__ static void Operand(const float (&s)[64], uint32_t (&operand)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) operand[i] = PackPair(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void Scores(float (&s)[64], int q_stage, int k_stage, int w) const {
    const uint64_t q = MatrixDescriptor(Tile(0, q_stage) + w * kBoxBytes, 16, 1024);
    const uint64_t k = MatrixDescriptor(Tile(1, k_stage), 16, 1024);
    WarpgroupFence();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      WarpgroupProduct<false>(s, q + i / 4 * 2 * kPanel + i % 4 * 2,
                              k + i / 4 * 2 * kPanel + i % 4 * 2, i != 0);
    }
    WarpgroupCommit();
  }
  __device__ __forceinline__ void AddValues(float (&out)[64], const uint32_t (&operand)[32],
                                            int v_stage) const {
    const uint64_t v = MatrixDescriptor(Tile(2, v_stage), 2 * kBoxBytes, 1024);
    WarpgroupFence();
#pragma unroll
    for (int i = 0; i < 8; ++i) WarpgroupProduct(out, operand + 4 * i, v + i * kNextRows);
    WarpgroupCommit();
  }

  // out / sum by the place of the warpgroup's own queries, and lse.
  __device__ __forceinline__ void Store(float (&out)[64], Softmax& softmax, const Work& work,
                                        int q_stage, int w, int thread) const {
    const int lane = thread & 31;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = softmax.sum[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float each = 1.f / sum;
#pragma unroll
      for (int c = 0; c < 16; ++c) {
        out[4 * c + 2 * r] *= each;
        out[4 * c + 2 * r + 1] *= each;
      }
      const int row = work.block * kBlock + w * kBox + thread / 32 * 16 + lane / 4 + 8 * r;
      if (lane % 4 == 0 && row < p.length) {
        p.lse[work.head * p.T + p.first + work.sequence * p.length + row] =
            fmaf(softmax.most[r], p.c2, __log2f(sum)) * (1.f / kLog2E);
      }
    }
    const uint32_t low = Tile(0, q_stage) + w * kBoxBytes, high = low + 2 * kBoxBytes;
    StoreSums(out, 1.f, low, high, thread);
    SharedWritten();
    WarpgroupSync(1 + w);
    if (thread != 0) return;
    const int column = work.head * kHeadDim, row = work.block * kBlock + w * kBox;
    StoreBox(&p.out, column, row, work.sequence, low);
    StoreBox(&p.out, column + kBox, row, work.sequence, high);
    WaitStoresRead<0>();
    BarrierArrive(Empty(0, q_stage));
  }

  __device__ __forceinline__ void Multiply(int w, int thread) const {
    float s[64] = {}, out[64] = {};
    Turn<kRing> q, k, v;
    for (int t = blockIdx.x; t < works(); t += gridDim.x, q.Next()) {
      const Work work = WorkOf(t);
      Softmax softmax = {{__int_as_float(0xff800000), __int_as_float(0xff800000)}, {0.f, 0.f}};
      float fall[2];
      uint32_t operand[32];
      BarrierWait(Full(0, q.stage), q.parity);
      BarrierWait(Full(1, k.stage), k.parity);
      Scores(s, q.stage, k.stage, w);
      WarpgroupWait<0>();
      if (thread == 0) BarrierArrive(Empty(1, k.stage));
      k.Next();
      Pin(s);
      Mask(s, w, thread);
      Exponentials(s, softmax, fall);
      Operand(s, operand);
#pragma unroll
      for (int i = 0; i < 64; ++i) out[i] = 0.f;
#pragma unroll 1
      for (int n = work.block - 1; n >= 0; --n) {
        BarrierWait(Full(1, k.stage), k.parity);
        Scores(s, q.stage, k.stage, w);
        BarrierWait(Full(2, v.stage), v.parity);
        AddValues(out, operand, v.stage);
        WarpgroupWait<1>();
        if (thread == 0) BarrierArrive(Empty(1, k.stage));
        k.Next();
        Exponentials(s, softmax, fall);
        WarpgroupWait<0>();
        if (thread == 0) BarrierArrive(Empty(2, v.stage));
        v.Next();
#pragma unroll
        for (int i = 0; i < 64; ++i) out[i] *= fall[i / 2 % 2];
        Operand(s, operand);
      }
      BarrierWait(Full(2, v.stage), v.parity);
      AddValues(out, operand, v.stage);
      WarpgroupWait<0>();
      if (thread == 0) BarrierArrive(Empty(2, v.stage));
      v.Next();
      Pin(out);
      Store(out, softmax, work, q.stage, w, thread);
    }
  }
};

#endif  // SOUP_ON_HOPPER

// Grid: as many CTAs as run at a time.
__global__ void __launch_bounds__(ForwardShared::kThreads, 1)
    ForwardKernel(const __grid_constant__ ForwardParams p) {
#if SOUP_ON_HOPPER
  BringAndMultiply<ForwardPass>(p);
#endif
}

}  // namespace soup::kernels::cuda::hopper_attention

#endif  // SOUP_KERNELS_CUDA_HOPPER_ATTENTION_FORWARD_CUH_
