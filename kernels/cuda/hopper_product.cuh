// A matrix product of sm_90a whose output is finished on its way to memory: C = A op(B), rounded to
// bf16, goes by way of shared memory to a finisher, which does with it what another kernel would
// read it again for. A is [M, K], op(B) [K, N], bf16, sums in fp32 along K in one order: the bits
// of an element do not depend on M, N or the finisher.
//
// A block makes tiles of 128 x 256: one thread feeds a ring of K slices through the copy engine,
// two warpgroups multiply 64 rows each, and three warps finish the tile before while they do, which
// is what keeps the tensor cores busy: a card at its power limit pays for every pause with a higher
// clock. Two blocks of a cluster make 256 x 256 and send each other half of B. Blocks stay and take
// tile after tile, eight of M's before the next of N's: as many as run at a time share A and B in
// the cache.
//
// Device code only; C++17.
#ifndef SOUP_KERNELS_CUDA_HOPPER_PRODUCT_CUH_
#define SOUP_KERNELS_CUDA_HOPPER_PRODUCT_CUH_

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/hopper.cuh"

namespace soup::kernels::cuda::hopper {

inline constexpr int kTileM = 128, kTileN = 256, kTileK = 64;
inline constexpr int kClusterM = 2 * kTileM;
inline constexpr int kRowsOfA = kTileM;      // of one copy
inline constexpr int kRowsOfB = kTileN / 2;  // of one copy where K lies along B's rows; else kTileK
inline constexpr int kStages = 3;
inline constexpr int kBytesOfA = kTileM * kTileK * 2, kBytesOfB = kTileN * kTileK * 2;
inline constexpr int kStageBytes = kBytesOfA + kBytesOfB;
inline constexpr int kHalfRows = kTileM / 2;  // of a finished tile: one warpgroup's rows
inline constexpr int kHalfBytes = kHalfRows * kTileN * 2;
inline constexpr int kAlignment = 1024;  // of the 128-byte swizzle's pattern
inline constexpr int kSharedBytes = kStages * kStageBytes + 2 * kHalfBytes + kAlignment + 128;
inline constexpr int kThreads = 384, kFinishers = 96;
inline constexpr int kGroup = 8;  // tiles of M before the next of N

struct Shape {
  int M, N, K;
  // A, where its rows of a group are to stay in the L2 cache; else null.
  const uint8_t* kept;
  int clusters = 0;  // of the grid
};
// What of A may stay there, and the part of the cache that is set aside for it: by measurement, of
// 60 MB (docs/BENCHMARKS.md). More would take what kernels before and behind leave for one another.
inline constexpr int64_t kKeptBytes = int64_t{18} << 20;
inline constexpr size_t kSetAsideBytes = size_t{15} << 20;

#if SOUP_ON_HOPPER

// Where the 8 columns of chunk c of row r lie in a half: panels of 64 columns, rows of 128 bytes,
// turned so that neither side meets itself in a bank.
__device__ __forceinline__ uint32_t InHalf(int r, int c) {
  return (c / 8) * (kHalfRows * 128) + r * 128 + ((c ^ r) & 7) * 16;
}

// This block's share of A's lines are as any other's again. By the warpgroups that multiply.
__device__ __forceinline__ void LetGo(const Shape& shape) {
  constexpr int kLine = 128, kBy = kThreads - 128;
  const int64_t bytes = static_cast<int64_t>(shape.M) * shape.K * 2 / kLine * kLine;
  const int64_t first = (blockIdx.x * kBy + threadIdx.x - 128) * int64_t{kLine};
  for (int64_t at = first; at < bytes; at += static_cast<int64_t>(gridDim.x) * kBy * kLine) {
    LetGo128(shape.kept + at);
  }
}

// First row and column of tile t of this block.
__device__ __forceinline__ void TileOf(const Shape& shape, int t, int rank, int* m, int* n) {
  const int m_tiles = (shape.M + kClusterM - 1) / kClusterM;
  const int n_tiles = (shape.N + kTileN - 1) / kTileN;
  const int group = t / (kGroup * n_tiles), first = group * kGroup;
  const int rows = min(kGroup, m_tiles - first), in = t - group * kGroup * n_tiles;
  *m = (first + in % rows) * kClusterM + rank * kTileM;
  *n = in / rows * kTileN;
}

// Adapters have
//   const CUtensorMap *u, *v;
//   float scale;
//   int Slices(int n)             of tile n: none, or as many as hold their columns of U
//   int ColumnOfU(int n)          first of them
//   int RowOfV(int n, int half)   as a finisher's RowOfB
struct NoAdapters {
  const CUtensorMap* u = nullptr;
  const CUtensorMap* v = nullptr;
  float scale = 1.f;
  __device__ static constexpr int Slices(int) { return 0; }
  __device__ static constexpr int ColumnOfU(int) { return 0; }
  __device__ static constexpr int RowOfV(int, int) { return 0; }
};

// A Finisher has
//   static constexpr bool kColumnsFirst   B lies as [K, N]; else as [N, K]
//   int RowOfB(int n, int half)           else: first of the 128 rows that are that half of tile n
//   void Fetch(int row, int n)            what it reads beside: 64 rows from `row`, tile n
//   void Finish(uint32_t half, int row, int n)   the same rows of C, in shared memory by InHalf
// Fetch and Finish are called in turns by kFinishers threads, `thread` of them in its constructor.
//
// With adapters C = A op(B) + scale U op(V): the slices of U and V come first, by boxes as A and B.
template <typename Finisher, typename Adapters>
__device__ __forceinline__ void Product(const CUtensorMap& map_a, const CUtensorMap& map_b,
                                        const Shape& shape, Finisher finisher,
                                        const Adapters adapters) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (SharedAddress(shared) + kAlignment - 1) & ~(kAlignment - 1);
  const uint32_t halves = base + kStages * kStageBytes, barriers = halves + 2 * kHalfBytes;
  const auto full = [&](int stage) { return barriers + 8 * stage; };
  const auto empty = [&](int stage) { return barriers + 8 * (kStages + stage); };
  const auto made = [&](int half) { return barriers + 8 * (2 * kStages + half); };
  const auto taken = [&](int half) { return barriers + 8 * (2 * kStages + 2 + half); };
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const int rank = static_cast<int>(ClusterRank());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      BarrierInit(full(stage), 1);
      BarrierInit(empty(stage), 4);  // both warpgroups of both blocks
    }
    for (int half = 0; half < 2; ++half) {
      BarrierInit(made(half), 128);
      BarrierInit(taken(half), kFinishers);
    }
    BarrierInitDone();
  }
  ClusterSync();
  const int tiles = (shape.M + kClusterM - 1) / kClusterM * ((shape.N + kTileN - 1) / kTileN);
  const int slices = (shape.K + kTileK - 1) / kTileK;
  const int first_tile = static_cast<int>(blockIdx.x / 2);

  if (warpgroup == 0) {
    GiveRegisters<136>();
    if (threadIdx.x == 0) {
      int stage = 0;
      uint32_t turn = 0;
      const auto next = [&] {
        if (++stage == kStages) {
          stage = 0;
          turn ^= 1;
        }
      };
      for (int t = first_tile; t < tiles; t += shape.clusters) {
        int m, n;
        TileOf(shape, t, rank, &m, &n);
        for (int k = -adapters.Slices(n); k < slices; ++k, next()) {
          BarrierWait(empty(stage), turn ^ 1);
          BarrierExpect(full(stage), kStageBytes);
          const uint32_t a = base + stage * kStageBytes;
          const uint32_t b = a + kBytesOfA + rank * (kBytesOfB / 2);
          const bool adapter = k < 0;
          const int at = (adapter ? k + adapters.Slices(n) : k) * kTileK;
          CopyTile(a, adapter ? adapters.u : &map_a, adapter ? adapters.ColumnOfU(n) + at : at, m,
                   full(stage), shape.kept != nullptr && !adapter ? kCacheLongest : kCacheNormally);
          const CUtensorMap* const right = adapter ? adapters.v : &map_b;
          if constexpr (Finisher::kColumnsFirst) {
            const int column = n + rank * kRowsOfB;
            CopyTileToBoth(b, right, column, at, full(stage), kCacheNormally);
            CopyTileToBoth(b + kBytesOfB / 4, right, column + 64, at, full(stage), kCacheNormally);
          } else {
            const int row = adapter ? adapters.RowOfV(n, rank) : finisher.RowOfB(n, rank);
            CopyTileToBoth(b, right, at, row, full(stage), kCacheNormally);
          }
        }
      }
      // The other block may still tell this one that a slice is free.
      for (int i = 0; i < kStages; ++i, next()) BarrierWait(empty(stage), turn ^ 1);
    } else if (threadIdx.x >= 128 - kFinishers) {
      uint32_t turn = 0;
      for (int t = first_tile; t < tiles; t += shape.clusters, turn ^= 1) {
        int m, n;
        TileOf(shape, t, rank, &m, &n);
        for (int half = 0; half < 2; ++half) {
          finisher.Fetch(m + half * kHalfRows, n);
          BarrierWait(made(half), turn);
          finisher.Finish(halves + half * kHalfBytes, m + half * kHalfRows, n);
          BarrierArrive(taken(half));
        }
      }
    }
  } else {
    TakeRegisters<184>();
    const int half = warpgroup - 1, thread = threadIdx.x & 127, lane = thread & 31;
    const uint64_t a = MatrixDescriptor(base + half * kHalfRows * 128, 16, 1024);
    const uint64_t b = Finisher::kColumnsFirst ? MatrixDescriptor(base + kBytesOfA, 8192, 1024)
                                               : MatrixDescriptor(base + kBytesOfA, 16, 1024);
    constexpr int kNextOfA = 32 / 16, kNextOfB = (Finisher::kColumnsFirst ? 2048 : 32) / 16;
    // Matrices of a store: 8 upper and 8 lower rows of two neighbouring chunks.
    const uint32_t out = halves + half * kHalfBytes;
    const int row = thread / 32 * 16 + (lane & 15), right = lane / 16;
    float sums[128];
    int stage = 0;
    uint32_t turn = 0, tile_turn = 0;
    for (int t = first_tile; t < tiles; t += shape.clusters, tile_turn ^= 1) {
      int before = -1;
      const auto release = [&] {
        if (before >= 0 && thread < 2) BarrierArriveAt(empty(before), thread);
      };
      int m, n;
      TileOf(shape, t, rank, &m, &n);
      const int extra = adapters.Slices(n);
      for (int k = 0; k < extra + slices; ++k) {
        BarrierWait(full(stage), turn);
        const uint64_t at = static_cast<uint64_t>(stage) * (kStageBytes / 16);
        Pin(sums);
        WarpgroupFence();
#pragma unroll
        for (int i = 0; i < kTileK / 16; ++i) {
          WarpgroupProduct<Finisher::kColumnsFirst>(sums, a + at + kNextOfA * i,
                                                    b + at + kNextOfB * i, (k | i) != 0);
        }
        WarpgroupCommit();
        WarpgroupWait<1>();
        release();
        before = stage;
        if (++stage == kStages) {
          stage = 0;
          turn ^= 1;
        }
        if (k + 1 == extra && adapters.scale != 1.f) {
          WarpgroupWait<0>();
          Pin(sums);
#pragma unroll
          for (int i = 0; i < 128; ++i) sums[i] *= adapters.scale;
        }
      }
      WarpgroupWait<0>();
      Pin(sums);
      release();
      BarrierWait(taken(half), tile_turn ^ 1);
#pragma unroll
      for (int c = 0; c < kTileN / 8; c += 2) {
        const auto pair = [&](int i) { return PackPair(sums[4 * c + i], sums[4 * c + i + 1]); };
        StoreMatrices(out + InHalf(row, c + right), pair(0), pair(2), pair(4), pair(6));
      }
      BarrierArrive(made(half));
    }
    if (shape.kept != nullptr) LetGo(shape);
  }
  ClusterSync();  // a block's shared memory is written by the other
}

#endif  // SOUP_ON_HOPPER

}  // namespace soup::kernels::cuda::hopper

#endif  // SOUP_KERNELS_CUDA_HOPPER_PRODUCT_CUH_
