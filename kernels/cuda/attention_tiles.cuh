// Building blocks of the attention kernels: PTX wrappers, tiles in shared memory, fragment
// products.
//
// A tile is ROWS rows of bf16, row length padded to 64, 128 or 256 elements; the 16-byte chunk c of
// row r lies at chunk c ^ (r & 7), so that ldmatrix reads without bank conflicts. Addresses of
// shared memory are 32-bit.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_TILES_CUH_
#define SOUP_KERNELS_CUDA_ATTENTION_TILES_CUH_

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace soup::kernels::cuda::attention {

inline constexpr float kLn2 = 0.6931471805599453f;

// ---- PTX ----
// Asynchronous copies; `valid` false writes zeros and reads nothing.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CopyAsync4(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
// c [16, 8] += a [16, 16] * b [16, 8]
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float Low(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float High(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
__device__ __forceinline__ uint4 LoadShared16(uint32_t a) {
  uint4 r;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(a)
               : "memory");
  return r;
}
__device__ __forceinline__ void StoreShared16(uint32_t a, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void StoreShared4(uint32_t a, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}
__device__ __forceinline__ float2 LoadSharedFloat2(uint32_t a) {
  float2 r;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(r.x), "=f"(r.y) : "r"(a) : "memory");
  return r;
}
__device__ __forceinline__ float LoadSharedFloat(uint32_t a) {
  float r;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(a) : "memory");
  return r;
}
// mbarriers: sm_80 has all that is used here; sm_90's try_wait sleeps where test_wait spins.
__device__ __forceinline__ void BarrierInit(uint32_t a, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(a), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t a) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(a) : "memory");
}
// Arrives when this thread's copies so far have landed.
__device__ __forceinline__ void BarrierArriveOnCopies(uint32_t a) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(a) : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t a, int parity) {
  uint32_t done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(a), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(a), "r"(parity)
        : "memory");
#endif
  } while (!done);
}

// tanh(x) for u = 2 x log2(e), as 1 - 2 / (2^u + 1); absolute error about 1e-7.
__device__ __forceinline__ float TanhOfScaled(float u) {
  return 1.f - __fdividef(2.f, Exp2(u) + 1.f);
}

// ---- tiles ----
template <int D>
struct TileShape {
  static_assert(D % 16 == 0 && D <= 256, "head dimension");
  static constexpr int kPadded = D <= 64 ? 64 : D <= 128 ? 128 : 256;
  static constexpr int kRowBytes = kPadded * 2;
  static constexpr int kChunks = D / 8;  // 16-byte chunks that hold data
};

// Starts the copy of ROWS rows (stride in elements); rows at and after `valid` become zeros, unless
// WHOLE: then all are there.
template <int ROWS, int D, int THREADS, bool WHOLE = false>
__device__ __forceinline__ void LoadTile(uint32_t tile, const bf16* from, int stride, int valid,
                                         int tid) {
  constexpr int kChunks = TileShape<D>::kChunks, kRowBytes = TileShape<D>::kRowBytes;
  if constexpr (THREADS % (kChunks * 8) == 0 && ROWS * kChunks >= THREADS) {
    // The swizzle is the same for all of a thread's rows.
    constexpr int kStep = THREADS / kChunks;
    static_assert(ROWS % kStep == 0, "every row is loaded");
    const int r = tid / kChunks, c = tid % kChunks;
    const uint32_t to = tile + r * kRowBytes + ((c ^ (r & 7)) << 4);
    const bf16* source = from + r * stride + c * 8;
#pragma unroll
    for (int i = 0; i < ROWS / kStep; ++i) {
      CopyAsync16(to + i * kStep * kRowBytes, source + i * kStep * stride,
                  WHOLE || i * kStep + r < valid);
    }
  } else {
    for (int x = tid; x < ROWS * kChunks; x += THREADS) {
      const int r = x / kChunks, c = x % kChunks;
      CopyAsync16(tile + r * kRowBytes + ((c ^ (r & 7)) << 4), from + r * stride + c * 8,
                  WHOLE || r < valid);
    }
  }
}

template <int M, int N>
__device__ __forceinline__ void Zero(float (&c)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.f;
}

// Work of other units that a product may carry along: called as between(slot, slots) after each of
// its `slots` groups of 2 M mma.
struct NoWork {
  __device__ __forceinline__ void operator()(int, int) const {}
};

// c [16 M, 8 N] += A [rows][k] * B [n][k]^T, both in shared memory, row-major, STEPS steps of 16
// along k. a and b are the lane's ldmatrix addresses of the first step.
template <int M, int N, int STEPS, int ROW_BYTES, class Work = NoWork>
__device__ __forceinline__ void ProductShared(float (&c)[M][N][4], uint32_t a, uint32_t b,
                                              Work between = {}) {
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    uint32_t fa[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) LoadMatrix4(fa[m], (a ^ (k << 5)) + m * 16 * ROW_BYTES);
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      uint32_t fb[4];
      LoadMatrix4(fb, (b ^ (k << 5)) + n * 16 * ROW_BYTES);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        Mma(c[m][2 * n], fa[m], fb[0], fb[1]);
        Mma(c[m][2 * n + 1], fa[m], fb[2], fb[3]);
      }
      between(k * (N / 2) + n, STEPS * (N / 2));
    }
  }
}

// c [16 M, 8 N] += P * B [k][n]: P in registers as A fragments, B in shared memory, row-major, read
// transposed.
template <int M, int STEPS, int N, int ROW_BYTES, class Work = NoWork>
__device__ __forceinline__ void ProductRegisters(float (&c)[M][N][4], uint32_t b,
                                                 const uint32_t (&p)[M][STEPS][4],
                                                 Work between = {}) {
#pragma unroll
  for (int k = 0; k < STEPS; ++k)
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      uint32_t fb[4];
      LoadMatrix4Transposed(fb, (b ^ (n << 5)) + k * 16 * ROW_BYTES);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        Mma(c[m][2 * n], p[m][k], fb[0], fb[1]);
        Mma(c[m][2 * n + 1], p[m][k], fb[2], fb[3]);
      }
      between(k * (N / 2) + n, STEPS * (N / 2));
    }
}

// A warp writes its 16 M rows as bf16, each scaled by its factor: fragments -> its own rows of a
// shared tile -> 16-byte stores. `tile` is the address of the warp's first row there.
template <int M, int D>
__device__ __forceinline__ void StoreRows(const float (&c)[M][D / 8][4],
                                          const float (&factor)[M][2], uint32_t tile, bf16* to,
                                          int stride, int valid, int lane) {
  constexpr int kRowBytes = TileShape<D>::kRowBytes, kChunks = TileShape<D>::kChunks;
  __syncwarp();  // every lane is done reading the rows it stages in
  const int swizzle = (lane >> 2) & 7;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const uint32_t a =
          tile + (m * 16 + (lane >> 2)) * kRowBytes + ((n ^ swizzle) << 4) + (lane & 3) * 4;
      StoreShared4(a, PackPair(c[m][n][0] * factor[m][0], c[m][n][1] * factor[m][0]));
      StoreShared4(a + 8 * kRowBytes,
                   PackPair(c[m][n][2] * factor[m][1], c[m][n][3] * factor[m][1]));
    }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < M * 16 * kChunks / 32; ++i) {
    const int x = i * 32 + lane, r = x / kChunks, q = x % kChunks;
    if (r < valid) {
      *reinterpret_cast<uint4*>(to + r * stride + q * 8) =
          LoadShared16(tile + r * kRowBytes + ((q ^ (r & 7)) << 4));
    }
  }
}

// ---- parameters of all three kernels ----
struct Params {
  const bf16 *q, *k, *v, *out_in, *dout;  // first head's first element
  bf16 *out, *dq, *dk, *dv;
  float *lse, *delta;  // [Hq, T]
  float* partials;     // [split][dk, dv][T][Hkv * D], when split > 1
  const int4* tiles;   // AttentionTile: first token, length, first row of the block
  int T, Hq, Hkv, group;
  int qkv_stride, out_stride, grad_stride;  // elements
  int window, split, sms;
  uint32_t zero;  // 0, which the compiler cannot know (see Exponentiate)
  float scale;    // of the scores
  float c2;       // log2 units per (capped) score
  float cap_in;   // scale * 2 * log2(e) / cap
  float cap_out;  // cap
};

// Is key j hidden from query i?
__device__ __forceinline__ bool Hidden(int i, int j, int window) {
  return j > i || (window > 0 && j <= i - window);
}

// A value that all lanes hold, told to the compiler: addresses and conditions made of it need no
// registers of every lane.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(~0u, x, 0); }

// CTAs that share a multiprocessor put their heavy rows on different warps.
__device__ __forceinline__ int WarpOrder(int tid, int threads, int sms) {
  const int warp = tid >> 5;
  return (blockIdx.x / sms) & 1 ? threads / 32 - 1 - warp : warp;
}

}  // namespace soup::kernels::cuda::attention

#endif  // SOUP_KERNELS_CUDA_ATTENTION_TILES_CUH_
