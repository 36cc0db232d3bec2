// What kernels for sm_90a share: mbarriers, the copy engine's tiles (TMA) and warpgroup products,
// as thin wrappers of their PTX instructions (PTX ISA 8.0, "Asynchronous copies", "wgmma").
// Addresses are of shared memory, 32 bits. Device code only, empty elsewhere than on sm_90a; C++17.
#ifndef SOUP_KERNELS_CUDA_HOPPER_CUH_
#define SOUP_KERNELS_CUDA_HOPPER_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SOUP_ON_HOPPER 1
#else
#define SOUP_ON_HOPPER 0
#endif

namespace soup::kernels::cuda {

#if SOUP_ON_HOPPER

// Rank of this block in its cluster.
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Every thread of the cluster arrives; what was written before can be read behind it.
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Before another block or the copy engine uses a barrier.
__device__ __forceinline__ void BarrierInitDone() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival, and `bytes` that copies will bring before the phase ends.
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At the same barrier of the cluster's block `rank`. It tells of reads that are done: no memory is
// released (with .release.cluster a fence over the device would stand in the products' loop).
__device__ __forceinline__ void BarrierArriveAt(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Returns when the phase of that parity has ended.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// What becomes of a copy's lines in the L2 cache: nothing particular, or the last to go, within the
// part of it that is set aside for such lines, until they are let go.
inline constexpr uint64_t kCacheNormally = 0x1000000000000000, kCacheLongest = 0x14F0000000000000;
__device__ __forceinline__ void LetGo128(const void* line) {
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
}

// A box of a matrix whose first element is (row, column), to `dst`; its bytes count at `barrier`.
__device__ __forceinline__ void CopyTile(uint32_t dst, const CUtensorMap* map, int column, int row,
                                         uint32_t barrier, uint64_t cache) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(cache)
      : "memory");
}
// The same to both blocks of a cluster of two, each at its own `dst` and `barrier`.
__device__ __forceinline__ void CopyTileToBoth(uint32_t dst, const CUtensorMap* map, int column,
                                               int row, uint32_t barrier, uint64_t cache) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(dst),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>(3)), "l"(cache)
      : "memory");
}

// A box of matrix `z` of several, and the way back: rows and columns beyond a matrix come as zeros
// and do not go. A thread's stores are one group each.
__device__ __forceinline__ void CopyBox(uint32_t dst, const CUtensorMap* map, int column, int row,
                                        int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst),
      "l"(map), "r"(column), "r"(row), "r"(z), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void StoreBox(const CUtensorMap* map, int column, int row, int z,
                                         uint32_t src) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(column), "r"(row), "r"(z), "r"(src)
      : "memory");
}
// Waits until at most kLeft of this thread's stores still read shared memory.
template <int kLeft>
__device__ __forceinline__ void WaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
// What this thread has written to shared memory, the copy engine may read behind a barrier.
__device__ __forceinline__ void SharedWritten() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The threads of a warpgroup meet; `id` from 1 on.
__device__ __forceinline__ void WarpgroupSync(int id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// A matrix in shared memory for a warpgroup's product, rows of 128 bytes in the 128-byte swizzle.
// `stride`: bytes from 8 rows to the next 8; `leading`: K not along the rows, bytes from 64 columns
// to the next 64 (else unused).
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t address, uint32_t leading,
                                                     uint32_t stride) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         kSwizzle128;
}

__device__ __forceinline__ void WarpgroupFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WarpgroupCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kLeft committed groups are under way.
template <int kLeft>
__device__ __forceinline__ void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// The compiler neither moves nor copies the sums across this.
template <int N>
__device__ __forceinline__ void Pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d = (add ? d : 0) + A B: A 64 x 16 with K along its rows, B 16 x 256, both bf16 in shared memory;
// kColumnsFirst: B's rows are of constant k. d[4 j + i] of a lane: row lane / 4 (+ 8: i is 2 or 3)
// of its warp's 16, column 8 j + 2 (lane % 4) + i % 2.
#define SOUP_SUMS_8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SOUP_SUMS_32(i) SOUP_SUMS_8(i), SOUP_SUMS_8(i + 8), SOUP_SUMS_8(i + 16), SOUP_SUMS_8(i + 24)
#define SOUP_NAMES_32                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SOUP_NAMES_64                                                                       \
  SOUP_NAMES_32                                                                             \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
template <bool kColumnsFirst>
__device__ __forceinline__ void WarpgroupProduct(float (&d)[128], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127"
      "}, %128, %129, add, 1, 1, 0, %131;\n"
      "}\n"
      : SOUP_SUMS_32(0), SOUP_SUMS_32(32), SOUP_SUMS_32(64), SOUP_SUMS_32(96)
      : "l"(a), "l"(b), "r"(add), "n"(kColumnsFirst ? 1 : 0));
}
// The same of 64 columns, K along the rows of both.
__device__ __forceinline__ void WarpgroupProduct(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SOUP_NAMES_32
      "}, %32, %33, add, 1, 1, 0, 0;\n"
      "}\n"
      : SOUP_SUMS_32(0)
      : "l"(a), "l"(b), "r"(add));
}
// Of 128 columns; kColumnsFirst: rows of constant k in both.
template <bool kColumnsFirst>
__device__ __forceinline__ void WarpgroupProduct(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SOUP_NAMES_64
      "}, %64, %65, add, 1, 1, %67, %67;\n"
      "}\n"
      : SOUP_SUMS_32(0), SOUP_SUMS_32(32)
      : "l"(a), "l"(b), "r"(add), "n"(kColumnsFirst ? 1 : 0));
}
// d += A B of 128 columns, B's rows of constant k. A in registers, pairs of neighbouring columns,
// the lower first: a lane has columns 2 (lane % 4) of row lane / 4, then of row lane / 4 + 8, then
// both 8 columns on: what two neighbouring fours of a product's sums are.
__device__ __forceinline__ void WarpgroupProduct(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SOUP_NAMES_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
               : SOUP_SUMS_32(0), SOUP_SUMS_32(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef SOUP_NAMES_64
#undef SOUP_NAMES_32
#undef SOUP_SUMS_32
#undef SOUP_SUMS_8

// Four 8 x 8 matrices of 16-bit values, of which each lane holds two of a row, to shared memory;
// lane 8 m + i gives the address of row i of matrix m.
__device__ __forceinline__ void StoreMatrices(uint32_t row, uint32_t m0, uint32_t m1, uint32_t m2,
                                              uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}
__device__ __forceinline__ uint4 LoadShared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// How many registers a thread of this warpgroup has from now on.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif  // SOUP_ON_HOPPER

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_HOPPER_CUH_
