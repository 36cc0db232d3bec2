#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {
namespace {

// Sine and cosine of |x| up to 2^20, error below 1e-13: reduction by pi/2 in two parts (the first
// has 33 bits, so its product with a 20-bit quotient is exact), then Taylor series on [-pi/4,
// pi/4]. Our own, because the C library's answer differs between CPUs.
SOUP_INLINE void SinCos(double x, double* sin_x, double* cos_x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double shifted = x * 0.63661977236758134 + kMagic;
  const double k = shifted - kMagic;
  const double r = (x - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11;
  const double z = r * r;
  double s = 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = s * z * r + r;
  double c = -1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 0.5;
  c = c * z + 1.0;
  uint64_t quadrant;
  __builtin_memcpy(&quadrant, &shifted, sizeof quadrant);
  const double a = (quadrant & 1) ? c : s;
  const double b = (quadrant & 1) ? s : c;
  *sin_x = (quadrant & 2) ? -a : a;
  *cos_x = ((quadrant + 1) & 2) ? -b : b;
}

}  // namespace

void RopeLoop(const RopeArgs& args, int64_t begin, int64_t end, float* scratch) {
  const int64_t half = (args.rotary > 0 ? args.rotary : args.D) / 2;
  float* __restrict cosines = scratch;
  float* __restrict sines = scratch + half;
  for (int64_t t = begin; t < end; ++t) {
    const float position = static_cast<float>(args.positions[t]);
    for (int64_t i = 0; i < half; ++i) {
      double s, c;
      SinCos(static_cast<double>(position * args.inv_freq[i]), &s, &c);
      cosines[i] = static_cast<float>(c) * args.scale;
      sines[i] = static_cast<float>(args.inverse ? -s : s) * args.scale;
    }
    float* row = static_cast<float*>(args.x) + t * args.row_stride;
    for (int64_t h = 0; h < args.heads; ++h) {
      float* __restrict low = row + h * args.D;
      float* __restrict high = low + half;
      for (int64_t i = 0; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a * cosines[i] - b * sines[i];
        high[i] = b * cosines[i] + a * sines[i];
      }
    }
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
