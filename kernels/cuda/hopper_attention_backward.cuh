// Device code of hopper_attention.cu; included there alone; C++17.
#ifndef SOUP_KERNELS_CUDA_HOPPER_ATTENTION_BACKWARD_CUH_
#define SOUP_KERNELS_CUDA_HOPPER_ATTENTION_BACKWARD_CUH_

#include "kernels/cuda/hopper_attention_tiles.cuh"

namespace soup::kernels::cuda::hopper_attention {

struct BackwardParams {
  CUtensorMap q, k, v, dout, dq, dk, dv;  // [sequences, length, heads * 128]
  CUtensorMap ds;                         // [sequences * heads of the call * padded keys, padded]
  const float* lse;                       // [Hq, T]
  const float* delta;
  int64_t T;
  int first, length, padded;  // of the first sequence; padded: to whole blocks
  int sequences;
  int kv0, groups, group;  // first kv head, kv heads of the call, query heads of each
  float c2, scale;         // of scores in powers of two, of gradients
  Turning turning;
};

inline constexpr int kStages = 3;

// Where tiles lie in shared memory, in bytes. Of keys: K and V by columns then rows of boxes; a
// ring of Q and dout; of each warpgroup, twice, dS, and lse and delta of a step's queries.
struct KeyShared {
  static constexpr int kThreads = 384;
  static constexpr int kK = 0, kV = 4 * kBoxBytes, kRing = 8 * kBoxBytes;
  static constexpr int kStageBytes = 4 * kBoxBytes;
  static constexpr int kDs = kRing + kStages * kStageBytes;
  static constexpr int kStatistics = kDs + 4 * kBoxBytes;
  static constexpr int kBarriers = kStatistics + 4 * kBox * 8;
  static constexpr int kBytes = kBarriers + kBarrierBytes + kAlignment;
};
// Of queries: a ring of dS of either warpgroup, and K.
struct QueryShared {
  static constexpr int kThreads = 288;
  static constexpr int kStageBytes = 4 * kBoxBytes;
  static constexpr int kBarriers = kStages * kStageBytes;
  static constexpr int kBytes = kBarriers + kBarrierBytes + kAlignment;
};

// delta [Hq, T]: sums of dout * out along heads. A warp has 8 rows of a head, a half of it a row at
// a time. Grid: 64 rows, Hq.
inline constexpr int kDeltaRows = 8, kDeltaWarps = 8;
__global__ void __launch_bounds__(32 * kDeltaWarps)
    DeltaKernel(const uint4* dout, const uint4* out, float* delta, int first, int rows, int64_t T) {
  BeginBehind();
  constexpr int kLanes = kHeadDim / kVector, kTimes = kDeltaRows / 2;
  const int lane = threadIdx.x & 31, head = blockIdx.y, heads = gridDim.y;
  const int r0 = (static_cast<int>(blockIdx.x) * kDeltaWarps + threadIdx.x / 32) * kDeltaRows;
  uint4 x[kTimes] = {}, y[kTimes] = {};
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int r = r0 + 2 * i + lane / kLanes;
    if (r >= rows) continue;
    const int64_t at = (static_cast<int64_t>(first + r) * heads + head) * kLanes + lane % kLanes;
    x[i] = __ldg(dout + at);
    y[i] = __ldg(out + at);
  }
  float mine = 0.f;
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    float f[8], g[8], sum = 0.f;
    Unpack8(x[i], f);
    Unpack8(y[i], g);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = fmaf(f[k], g[k], sum);
#pragma unroll
    for (int o = kLanes / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    const float low = __shfl_sync(0xffffffffu, sum, 0);
    const float high = __shfl_sync(0xffffffffu, sum, kLanes);
    if (lane == 2 * i) mine = low;
    if (lane == 2 * i + 1) mine = high;
  }
  if (lane < kDeltaRows && r0 + lane < rows) delta[head * T + first + r0 + lane] = mine;
}

#if SOUP_ON_HOPPER

__device__ __forceinline__ Turning OfSequence(const BackwardParams& p, int sequence) {
  Turning turning = p.turning;
  turning.positions += sequence * p.length;
  return turning;
}

// Two blocks of keys of a key-value head, one after another, in a CTA of three warpgroups: one
// brings what the other two multiply, which have 64 keys each. The first block and the last, the
// second and the last but one: all CTAs have as much to do. Scores lie with keys along rows, so
// that P and dS are operands as they come out of the products before.
struct KeyPass {
  const BackwardParams& p;
  uint32_t base;
  float2* statistics;  // lse in powers of two, delta; [warpgroups, 2, 64]
  int pair, blocks, sequence, kv_in_call, kv, steps;

  __device__ KeyPass(const BackwardParams& params, unsigned char* shared) : p(params) {
    const uint32_t at = SharedAddress(shared);
    base = (at + kAlignment - 1) & ~static_cast<uint32_t>(kAlignment - 1);
    statistics = reinterpret_cast<float2*>(shared + (base - at) + KeyShared::kStatistics);
    const int others = p.sequences * p.groups;
    pair = static_cast<int>(blockIdx.x) / others;
    blocks = p.padded / kBlock;
    sequence = static_cast<int>(blockIdx.x) % others / p.groups;
    kv_in_call = static_cast<int>(blockIdx.x) % p.groups;
    kv = p.kv0 + kv_in_call;
    steps = (p.length + kBox - 1) / kBox;
  }

  __device__ uint32_t Full(int s) const { return base + KeyShared::kBarriers + 8 * s; }
  __device__ uint32_t Empty(int s) const { return Full(kStages + s); }
  __device__ uint32_t KeysThere() const { return Full(2 * kStages); }
  __device__ uint32_t KeysFree() const { return Full(2 * kStages + 1); }
  __device__ int parts() const { return 2 * pair + 1 == blocks ? 1 : 2; }
  __device__ int BlockOf(int part) const { return part == 0 ? pair : blocks - 1 - pair; }
  __device__ static int FirstStep(int block) { return block * (kBlock / kBox); }

  __device__ void InitBarriers() const {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(Full(s), 1);
      BarrierInit(Empty(s), 2);
    }
    BarrierInit(KeysThere(), 1);
    BarrierInit(KeysFree(), 2);
    BarrierInitDone();
  }

  // By one thread.
  __device__ void BringTiles() const {
    Turn<kStages> turn;
    for (int part = 0; part < parts(); ++part) {
      const int block = BlockOf(part);
      if (part > 0) BarrierWait(KeysFree(), 0);
      BringKeys(block);
      for (int g = 0; g < p.group; ++g) {
        for (int i = FirstStep(block); i < steps; ++i, turn.Next()) BringQueries(g, i, turn);
      }
    }
  }
  __device__ void BringKeys(int block) const {
    BarrierExpect(KeysThere(), 8 * kBoxBytes);
    for (int b = 0; b < 4; ++b) {
      const int column = kv * kHeadDim + b / 2 * kBox, row = block * kBlock + b % 2 * kBox;
      CopyBox(base + KeyShared::kK + b * kBoxBytes, &p.k, column, row, sequence, KeysThere());
      CopyBox(base + KeyShared::kV + b * kBoxBytes, &p.v, column, row, sequence, KeysThere());
    }
  }
  __device__ void BringQueries(int g, int step, const Turn<kStages>& turn) const {
    const uint32_t full = Full(turn.stage);
    const uint32_t to = base + KeyShared::kRing + turn.stage * KeyShared::kStageBytes;
    BarrierWait(Empty(turn.stage), turn.parity ^ 1);
    BarrierExpect(full, KeyShared::kStageBytes);
    for (int b = 0; b < 2; ++b) {
      const int column = (kv * p.group + g) * kHeadDim + b * kBox;
      CopyBox(to + b * kBoxBytes, &p.q, column, step * kBox, sequence, full);
      CopyBox(to + (2 + b) * kBoxBytes, &p.dout, column, step * kBox, sequence, full);
    }
  }

  // lse and delta of a query of step i of query head g: `thread` of 64. One behind the sequence has
  // no probabilities. On their way until they are looked at.
  __device__ __forceinline__ float2 StatisticsOf(int g, int i, int thread) const {
    const int t = i * kBox + thread;
    float2 of = make_float2(__int_as_float(0x7f800000), 0.f);
    if (thread < kBox && g < p.group && t < p.length) {
      const int64_t at = (kv * p.group + g) * p.T + p.first + sequence * p.length + t;
      of = make_float2(p.lse[at], p.delta[at]);
    }
    return of;
  }

  // P^T of 64 keys and 64 queries, and as an operand. `diagonal`: the queries are those keys' own.
  __device__ __forceinline__ void Probabilities(const float (&s)[32], const float2* of,
                                                bool diagonal, int thread, float (&probability)[32],
                                                uint32_t (&operand)[16]) const {
    const int lane = thread & 31, key = thread / 32 * 16 + lane / 4, query = 2 * (lane & 3);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float4 two = *reinterpret_cast<const float4*>(of + 8 * c + query);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = Exp2(fmaf(s[4 * c + e], p.c2, -(e % 2 == 0 ? two.x : two.z)));
        if (diagonal && key + 8 * (e / 2) > 8 * c + query + e % 2) x = 0.f;
        probability[4 * c + e] = x;
      }
      operand[2 * c] = PackPair(probability[4 * c], probability[4 * c + 1]);
      operand[2 * c + 1] = PackPair(probability[4 * c + 2], probability[4 * c + 3]);
    }
  }

  // dS^T / scale = P^T (dP^T - delta) as an operand.
  __device__ __forceinline__ void ScoreGradients(const float (&probability)[32],
                                                 const float (&dp)[32], const float2* of,
                                                 int thread, uint32_t (&operand)[16]) const {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float4 two = *reinterpret_cast<const float4*>(of + 8 * c + 2 * (thread & 3));
      float x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] = probability[4 * c + e] * (dp[4 * c + e] - (e % 2 == 0 ? two.y : two.w));
      }
      operand[2 * c] = PackPair(x[0], x[1]);
      operand[2 * c + 1] = PackPair(x[2], x[3]);
    }
  }

  // dS^T of a warpgroup on its way out by one of its two buffers, and the next step's statistics
  // into place: everybody is through with those of the step before, and at most the store before
  // this one's still reads the other buffer.
  __device__ __forceinline__ void StoreScoreGradients(const uint32_t (&operand)[16], uint32_t box,
                                                      int column, int row, float2 next, float2* to,
                                                      int w, int thread) const {
    if (thread == 0) WaitStoresRead<1>();
    WarpgroupSync(1 + w);
    const StorePlace place(thread);
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
      StoreMatrices(place.In(box, c), operand[2 * c], operand[2 * c + 1], operand[2 * c + 2],
                    operand[2 * c + 3]);
    }
    if (thread < kBox) to[thread] = make_float2(next.x * kLog2E, next.y);
    SharedWritten();
    WarpgroupSync(1 + w);
    if (thread == 0) StoreBox(&p.ds, column, row, 0, box);
  }

  __device__ __forceinline__ void StoreGradients(float (&dk)[64], const float (&dv)[64], int block,
                                                 int w, int thread) const {
    if (p.turning.positions != nullptr) {
      const int lane = thread & 31, row = block * kBlock + w * kBox + thread / 32 * 16 + lane / 4;
      TurnBack(OfSequence(p, sequence), row, p.length, lane, dk);
    }
    // Where the warpgroup's own keys were, which nobody else reads.
    const uint32_t k = base + KeyShared::kK + w * kBoxBytes;
    const uint32_t v = base + KeyShared::kV + w * kBoxBytes;
    StoreSums(dk, p.scale, k, k + 2 * kBoxBytes, thread);
    StoreSums(dv, 1.f, v, v + 2 * kBoxBytes, thread);
    SharedWritten();
    WarpgroupSync(1 + w);
    if (thread != 0) return;
    for (int b = 0; b < 2; ++b) {
      const int column = kv * kHeadDim + b * kBox, row = block * kBlock + w * kBox;
      StoreBox(&p.dk, column, row, sequence, k + b * 2 * kBoxBytes);
      StoreBox(&p.dv, column, row, sequence, v + b * 2 * kBoxBytes);
    }
    WaitStoresRead<0>();
    BarrierArrive(KeysFree());
  }

  // Where a warpgroup's operands lie, as descriptors: its keys and values, and of a stage of the
  // ring Q and dout, by columns and by rows.
  struct Operands {
    uint64_t keys, values, q, q_rows;
  };

  // S^T = K Q^T and dP^T = V dout^T of 64 keys and 64 queries, under way, a group each.
  __device__ __forceinline__ static void BeginScores(const Operands& of, float (&s)[32],
                                                     float (&dp)[32]) {
    WarpgroupFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      WarpgroupProduct(s, of.keys + k / 4 * 2 * kPanel + k % 4 * 2,
                       of.q + k / 4 * kPanel + k % 4 * 2, k != 0);
    }
    WarpgroupCommit();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      WarpgroupProduct(dp, of.values + k / 4 * 2 * kPanel + k % 4 * 2,
                       of.q + (2 + k / 4) * kPanel + k % 4 * 2, k != 0);
    }
    WarpgroupCommit();
  }
  // sums += operand (64 keys, 64 queries) times rows of Q or dout: dK or dV, under way.
  __device__ __forceinline__ static void AddGradients(float (&sums)[64],
                                                      const uint32_t (&operand)[16],
                                                      uint64_t rows) {
    WarpgroupFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) WarpgroupProduct(sums, operand + 4 * k, rows + k * kNextRows);
    WarpgroupCommit();
  }

  // By warpgroup w of two. Products are under way while others of the same step are made ready:
  // their groups end in the order of their commits.
  __device__ __forceinline__ void Multiply(int w, int thread) const {
    constexpr int kStage = KeyShared::kStageBytes / 16;
    uint64_t keys = MatrixDescriptor(base + KeyShared::kK + w * kBoxBytes, 16, 1024);
    uint64_t values = MatrixDescriptor(base + KeyShared::kV + w * kBoxBytes, 16, 1024);
    const uint64_t ring = MatrixDescriptor(base + KeyShared::kRing, 16, 1024);
    const uint64_t ring_rows = MatrixDescriptor(base + KeyShared::kRing, kBoxBytes, 1024);
    const uint32_t ds = base + KeyShared::kDs + w * 2 * kBoxBytes;
    float s[32] = {}, dp[32] = {}, dk[64] = {}, dv[64] = {};
    Turn<kStages> turn;
    int buffer = 0;
    float2* const of_step = statistics + w * 2 * kBox;
    for (int part = 0; part < parts(); ++part) {
      const int block = BlockOf(part), first = FirstStep(block) + w;
#pragma unroll
      for (int i = 0; i < 64; ++i) dk[i] = dv[i] = 0.f;
      const float2 begin = StatisticsOf(0, first, thread);
      if (thread < kBox) of_step[buffer * kBox + thread] = make_float2(begin.x * kLog2E, begin.y);
      WarpgroupSync(1 + w);
      BarrierWait(KeysThere(), part);
      for (int g = 0; g < p.group; ++g) {
        const int head = (sequence * p.groups + kv_in_call) * p.group + g;
        const int ds_row = head * p.padded + block * kBlock + w * kBox;
        if (w == 1) {  // no query of the first step sees its keys
          if (thread == 0) {
            BarrierWait(Full(turn.stage), turn.parity);
            BarrierArrive(Empty(turn.stage));
          }
          turn.Next();
        }
#pragma unroll 1
        for (int i = first; i < steps; ++i, turn.Next()) {
          const uint64_t at = static_cast<uint64_t>(turn.stage) * kStage;
          // Made anew each time, not sixteen of them kept.
          asm volatile("" : "+l"(keys), "+l"(values));
          const Operands operands = {keys, values, ring + at, ring_rows + at};
          const float2* const of = of_step + buffer * kBox;
          const bool last = i + 1 == steps;
          const float2 next = StatisticsOf(last ? g + 1 : g, last ? first : i + 1, thread);
          BarrierWait(Full(turn.stage), turn.parity);
          BeginScores(operands, s, dp);
          WarpgroupWait<1>();
          float probability[32];
          uint32_t operand[16];
          Probabilities(s, of, i == first, thread, probability, operand);
          AddGradients(dv, operand, operands.q_rows + 2 * kPanel);
          WarpgroupWait<1>();
          uint32_t gradient[16];
          ScoreGradients(probability, dp, of, thread, gradient);
          AddGradients(dk, gradient, operands.q_rows);
          StoreScoreGradients(gradient, ds + buffer * kBoxBytes, i * kBox, ds_row, next,
                              of_step + (buffer ^ 1) * kBox, w, thread);
          buffer ^= 1;
          WarpgroupWait<0>();
          if (thread == 0) BarrierArrive(Empty(turn.stage));
        }
      }
      Pin(dk);
      Pin(dv);
      StoreGradients(dk, dv, block, w, thread);
    }
  }
};

// dq of one block of queries of a head: dS K over the keys that they see. Two warpgroups multiply,
// a thread of a further warp brings.
struct QueryPass {
  const BackwardParams& p;
  uint32_t base;
  int block, sequence, head, slices;

  __device__ QueryPass(const BackwardParams& params, unsigned char* shared) : p(params) {
    base = (SharedAddress(shared) + kAlignment - 1) & ~static_cast<uint32_t>(kAlignment - 1);
    const int heads = p.groups * p.group, others = p.sequences * heads;
    block = p.padded / kBlock - 1 - static_cast<int>(blockIdx.x) / others;
    sequence = static_cast<int>(blockIdx.x) % others / heads;
    head = static_cast<int>(blockIdx.x) % heads;
    slices = min(2 * block + 2, (p.length + kBox - 1) / kBox);
  }

  __device__ uint32_t Full(int s) const { return base + QueryShared::kBarriers + 8 * s; }
  __device__ uint32_t Empty(int s) const { return Full(kStages + s); }

  __device__ void InitBarriers() const {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(Full(s), 1);
      BarrierInit(Empty(s), 2);
    }
    BarrierInitDone();
  }

  __device__ void BringTiles() const {
    const int ds_row = (sequence * p.groups * p.group + head) * p.padded;
    const int column = (p.kv0 + head / p.group) * kHeadDim;
    Turn<kStages> turn;
    for (int s = 0; s < slices; ++s, turn.Next()) {
      const uint32_t to = base + turn.stage * QueryShared::kStageBytes, full = Full(turn.stage);
      BarrierWait(Empty(turn.stage), turn.parity ^ 1);
      BarrierExpect(full, QueryShared::kStageBytes);
      for (int b = 0; b < 2; ++b) {
        CopyBox(to + b * kBoxBytes, &p.ds, block * kBlock + b * kBox, ds_row + s * kBox, 0, full);
        CopyBox(to + (2 + b) * kBoxBytes, &p.k, column + b * kBox, s * kBox, sequence, full);
      }
    }
  }

  __device__ __forceinline__ void Multiply(int w, int thread) const {
    constexpr int kStage = QueryShared::kStageBytes / 16;
    const uint64_t a = MatrixDescriptor(base + w * kBoxBytes, kBoxBytes, 1024);
    const uint64_t b = MatrixDescriptor(base + 2 * kBoxBytes, kBoxBytes, 1024);
    float dq[64] = {};
    Turn<kStages> turn;
    for (int s = 0; s < slices; ++s, turn.Next()) {
      BarrierWait(Full(turn.stage), turn.parity);
      if (s <= 2 * block + w) {  // keys that a query of this warpgroup sees
        const uint64_t at = static_cast<uint64_t>(turn.stage) * kStage;
        Pin(dq);
        WarpgroupFence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          WarpgroupProduct<true>(dq, a + at + k * kNextRows, b + at + k * kNextRows, (s | k) != 0);
        }
        WarpgroupCommit();
        WarpgroupWait<0>();
      }
      if (thread == 0) BarrierArrive(Empty(turn.stage));
    }
    Pin(dq);
    if (p.turning.positions != nullptr) {
      const int lane = thread & 31, row = block * kBlock + w * kBox + thread / 32 * 16 + lane / 4;
      TurnBack(OfSequence(p, sequence), row, p.length, lane, dq);
    }
    // Where this warpgroup's dS has been, in two stages: nobody else reads it.
    const uint32_t low = base + w * kBoxBytes, high = low + QueryShared::kStageBytes;
    WarpgroupSync(1 + w);
    StoreSums(dq, p.scale, low, high, thread);
    SharedWritten();
    WarpgroupSync(1 + w);
    if (thread != 0) return;
    const int column = (p.kv0 * p.group + head) * kHeadDim, row = block * kBlock + w * kBox;
    StoreBox(&p.dq, column, row, sequence, low);
    StoreBox(&p.dq, column + kBox, row, sequence, high);
    WaitStoresRead<0>();
  }
};

#endif  // SOUP_ON_HOPPER

// Grid: pairs of blocks of keys x sequences x kv heads of the call.
__global__ void __launch_bounds__(KeyShared::kThreads, 1)
    KeyKernel(const __grid_constant__ BackwardParams p) {
#if SOUP_ON_HOPPER
  BringAndMultiply<KeyPass>(p);
#endif
}

// Grid: blocks of queries x sequences x query heads of the call.
__global__ void __launch_bounds__(QueryShared::kThreads, 2)
    QueryKernel(const __grid_constant__ BackwardParams p) {
#if SOUP_ON_HOPPER
  extern __shared__ unsigned char shared[];
  const QueryPass pass(p, shared);
  if (threadIdx.x == 0) pass.InitBarriers();
  __syncthreads();
  BeginBehind();
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x & 127;
  if (warpgroup < 2) {
    pass.Multiply(warpgroup, thread);
  } else if (thread == 0) {
    pass.BringTiles();
  }
#endif
}

}  // namespace soup::kernels::cuda::hopper_attention

#endif  // SOUP_KERNELS_CUDA_HOPPER_ATTENTION_BACKWARD_CUH_
