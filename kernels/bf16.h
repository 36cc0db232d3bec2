// bf16 <-> fp32, one value at a time; bits as in every file and slab of the project. Std only, seen
// by CUDA compilers too. Any thread.
#ifndef SOUP_KERNELS_BF16_H_
#define SOUP_KERNELS_BF16_H_

#include <cstdint>
#include <cstring>

namespace soup::kernels {

inline float Bf16ToF32(uint16_t bits) {
  const uint32_t u = static_cast<uint32_t>(bits) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

// Round to nearest, ties to even; NaN stays NaN (quiet bit set).
inline uint16_t F32ToBf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_BF16_H_
