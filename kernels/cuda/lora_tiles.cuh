// What the LoRA kernels share: column ranges of stacked linears, fragments of mma.sync. bf16, fp32
// accumulation. Device code only; C++17.
#ifndef SOUP_KERNELS_CUDA_LORA_TILES_CUH_
#define SOUP_KERNELS_CUDA_LORA_TILES_CUH_

#include "kernels/cuda/attention_tiles.cuh"  // copies, ldmatrix
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/overlap.cuh"

namespace soup::kernels::cuda::lora {

// Column ranges of y and the rows of the weights that belong to them.
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
__device__ __forceinline__ uint4 Load16(const bf16* p) {
  return __ldg(reinterpret_cast<const uint4*>(p));
}
__device__ __forceinline__ uint32_t Pair(const bf16* low, const bf16* high) {
  const uint32_t l = __ldg(reinterpret_cast<const unsigned short*>(low));
  const uint32_t h = __ldg(reinterpret_cast<const unsigned short*>(high));
  return l | h << 16;
}
// The low halves of two words, or (odd) the high ones.
__device__ __forceinline__ uint32_t Weave(uint32_t low, uint32_t high, bool odd) {
  return __byte_perm(low, high, odd ? 0x7632 : 0x5410);
}
// As one store: left to itself the compiler cuts some of them into four.
__device__ __forceinline__ void Store16(bf16* p, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix2Transposed(uint32_t (&r)[2], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(a)
               : "memory");
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

}  // namespace soup::kernels::cuda::lora

#endif  // SOUP_KERNELS_CUDA_LORA_TILES_CUH_
