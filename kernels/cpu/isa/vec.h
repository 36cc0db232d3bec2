// Vectors of 16 fp32 lanes for the files of this folder, which are compiled once an instruction set
// into the namespace SOUP_ISA. A vector is cut into native parts (1 of 16 lanes, 2 of 8, 4 of 4),
// so every operation, and every order of a sum, is the same on all of them.
//
// Everything here is static and inlined, and the files include no header with inline code of its
// own: a function emitted once for the whole program must not come from a file compiled for
// AVX-512.
#ifndef SOUP_KERNELS_CPU_ISA_VEC_H_
#define SOUP_KERNELS_CPU_ISA_VEC_H_

#include <cstdint>

#ifndef SOUP_ISA
#define SOUP_ISA base
#endif

#define SOUP_INLINE static inline __attribute__((always_inline))

namespace soup::kernels::cpu::SOUP_ISA {

#if defined(__AVX512F__)
inline constexpr int kNativeLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kNativeLanes = 8;
#else
inline constexpr int kNativeLanes = 4;
#endif
inline constexpr int kLanes = 16;
inline constexpr int kParts = kLanes / kNativeLanes;

typedef float NativeF __attribute__((vector_size(kNativeLanes * 4)));
typedef int32_t NativeI __attribute__((vector_size(kNativeLanes * 4)));
typedef float UnalignedF __attribute__((vector_size(kNativeLanes * 4), aligned(4), may_alias));

struct F16 {
  NativeF p[kParts];
};
struct I16 {
  NativeI p[kParts];
};

#define SOUP_EACH_PART for (int i_ = 0; i_ < kParts; ++i_)

SOUP_INLINE F16 Set(float x) {
  F16 r;
  SOUP_EACH_PART r.p[i_] = NativeF{} + x;
  return r;
}
SOUP_INLINE F16 Load(const float* x) {
  F16 r;
  SOUP_EACH_PART r.p[i_] = *reinterpret_cast<const UnalignedF*>(x + i_ * kNativeLanes);
  return r;
}
SOUP_INLINE void Store(float* x, F16 a) {
  SOUP_EACH_PART* reinterpret_cast<UnalignedF*>(x + i_ * kNativeLanes) = a.p[i_];
}
// The first n lanes; the others are `fill`.
SOUP_INLINE F16 LoadFirst(const float* x, int64_t n, float fill = 0.0f) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = fill;
  for (int64_t i = 0; i < n; ++i) lanes[i] = x[i];
  return Load(lanes);
}
SOUP_INLINE void StoreFirst(float* x, F16 a, int64_t n) {
  float lanes[kLanes];
  Store(lanes, a);
  for (int64_t i = 0; i < n; ++i) x[i] = lanes[i];
}

SOUP_INLINE F16 operator+(F16 a, F16 b) {
  SOUP_EACH_PART a.p[i_] += b.p[i_];
  return a;
}
SOUP_INLINE F16 operator-(F16 a, F16 b) {
  SOUP_EACH_PART a.p[i_] -= b.p[i_];
  return a;
}
SOUP_INLINE F16 operator*(F16 a, F16 b) {
  SOUP_EACH_PART a.p[i_] *= b.p[i_];
  return a;
}
SOUP_INLINE F16 operator/(F16 a, F16 b) {
  SOUP_EACH_PART a.p[i_] /= b.p[i_];
  return a;
}
// a > b ? a : b in each lane: b when either is NaN.
SOUP_INLINE F16 Max(F16 a, F16 b) {
  SOUP_EACH_PART a.p[i_] = a.p[i_] > b.p[i_] ? a.p[i_] : b.p[i_];
  return a;
}
// Lanes of x where a < b, else y.
SOUP_INLINE F16 SelectLess(F16 a, F16 b, F16 x, F16 y) {
  SOUP_EACH_PART x.p[i_] = a.p[i_] < b.p[i_] ? x.p[i_] : y.p[i_];
  return x;
}
// -1 in lanes where a > b, else 0.
SOUP_INLINE I16 Greater(F16 a, F16 b) {
  I16 r;
  SOUP_EACH_PART r.p[i_] = (NativeI)(a.p[i_] > b.p[i_]);
  return r;
}
SOUP_INLINE I16 Bits(F16 a) {
  I16 r;
  SOUP_EACH_PART r.p[i_] = (NativeI)a.p[i_];
  return r;
}
SOUP_INLINE F16 FromBits(I16 a) {
  F16 r;
  SOUP_EACH_PART r.p[i_] = (NativeF)a.p[i_];
  return r;
}
SOUP_INLINE I16 operator-(I16 a, I16 b) {
  SOUP_EACH_PART a.p[i_] -= b.p[i_];
  return a;
}

// Lanes summed as a tree, 8 + 8, 4 + 4, ...
SOUP_INLINE float Sum(F16 a) {
  float lanes[kLanes];
  Store(lanes, a);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
SOUP_INLINE float MaxLane(F16 a) {
  float lanes[kLanes];
  Store(lanes, a);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    }
  }
  return lanes[0];
}

// e^x within 2 ulp; 0 below -86.5 (no denormals), +inf above 88.73; NaN stays NaN. Cody-Waite
// reduction to |r| <= ln 2 / 2 and the polynomial of Cephes' expf (Moshier).
SOUP_INLINE F16 Exp(F16 x) {
  const F16 low = Set(-86.5f);
  const F16 high = Set(89.0f);
  const F16 clamped = SelectLess(high, x, high, SelectLess(x, low, low, x));
  const F16 magic = Set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F16 shifted = clamped * Set(1.44269504088896341f) + magic;
  const F16 n = shifted - magic;
  const F16 r = clamped - n * Set(0.693359375f) - n * Set(-2.12194440e-4f);
  F16 p = Set(1.9875691500e-4f);
  p = p * r + Set(1.3981999507e-3f);
  p = p * r + Set(8.3334519073e-3f);
  p = p * r + Set(4.1665795894e-2f);
  p = p * r + Set(1.6666665459e-1f);
  p = p * r + Set(5.0000001201e-1f);
  const F16 y = p * (r * r) + r + Set(1.0f);
  // 2^(n-1), then doubled: 2^128 itself has no fp32 pattern.
  I16 scale;
  SOUP_EACH_PART scale.p[i_] = (((NativeI)shifted.p[i_] - 0x4B400000) + (127 - 1)) << 23;
  const F16 result = y * FromBits(scale) * Set(2.0f);
  return SelectLess(x, low, Set(0.0f), result);
}

// tanh within 2 ulp, relative near zero too: Cephes' tanhf (Moshier), its polynomial below 0.625
// and 1 - 2 / (e^2x + 1) above. NaN stays NaN.
SOUP_INLINE F16 Tanh(F16 x) {
  const F16 one = Set(1.0f);
  const F16 z = x * x;
  F16 p = Set(-5.70498872745e-3f);
  p = p * z + Set(2.06390887954e-2f);
  p = p * z + Set(-5.37397155531e-2f);
  p = p * z + Set(1.33314422036e-1f);
  p = p * z + Set(-3.33332819422e-1f);
  const F16 small = p * z * x + x;
  const F16 large = one - Set(2.0f) / (Exp(x + x) + one);
  return SelectLess(z, Set(0.390625f), small, large);
}
// cap * tanh(x / cap)
SOUP_INLINE F16 SoftCap(F16 x, F16 cap, F16 inverse_cap) { return cap * Tanh(x * inverse_cap); }
// Slope of the above where its result is y.
SOUP_INLINE F16 SoftCapSlope(F16 y, F16 inverse_cap) {
  const F16 t = y * inverse_cap;
  return Set(1.0f) - t * t;
}

// Dot product of n values: blocks of 1024 in 16 fp32 lanes, blocks added in double.
SOUP_INLINE double Dot(const float* x, const float* y, int64_t n) {
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = n - begin < 1024 ? n : begin + 1024;
    F16 sum = Set(0.0f);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) sum = sum + Load(x + i) * Load(y + i);
    if (i < end) sum = sum + LoadFirst(x + i, end - i) * LoadFirst(y + i, end - i);
    total += static_cast<double>(Sum(sum));
  }
  return total;
}

SOUP_INLINE float WidenBf16(uint16_t bits) {
  const uint32_t u = static_cast<uint32_t>(bits) << 16;
  float f;
  __builtin_memcpy(&f, &u, sizeof f);
  return f;
}
// A finite or infinite x rounded to bf16 (to nearest, ties to even), as fp32; NaN stays NaN.
SOUP_INLINE float RoundToBf16(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  u = nan ? (u | 0x400000u) : u + 0x7fffu + ((u >> 16) & 1u);
  u &= 0xffff0000u;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

}  // namespace soup::kernels::cpu::SOUP_ISA

#endif  // SOUP_KERNELS_CPU_ISA_VEC_H_
