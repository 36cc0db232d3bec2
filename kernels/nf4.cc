#include "kernels/nf4.h"

#include <algorithm>

namespace soup::kernels {
namespace {

// create_dynamic_map(signed, max_exponent_bits 7, total_bits 8): for each decade 10^-6 .. 10^0, the
// midpoints of 2^i + 1 evenly spaced points of [0.1, 1], both signs; then 0 and 1. The points are
// torch.linspace's in fp32: from the low end in the first half, from the high end in the second,
// each one fused multiply-add (here: exact in double, rounded once).
std::array<float, 256> MakeNestedCode() {
  constexpr int kDecades = 7;
  constexpr float kLow = 0.1f;
  constexpr double kScale[kDecades] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  std::array<float, 256> code{};
  size_t size = 0;
  for (int i = 0; i < kDecades; ++i) {
    const int points = (1 << i) + 1;
    const float step = (1.0f - kLow) / static_cast<float>(points - 1);
    const auto point = [&](int k) {
      const double at = k < points / 2 ? static_cast<double>(kLow) + static_cast<double>(step) * k
                                       : 1.0 - static_cast<double>(step) * (points - 1 - k);
      return static_cast<float>(at);
    };
    for (int k = 0; k + 1 < points; ++k) {
      const float mean = (point(k) + point(k + 1)) / 2.0f;
      const float value = mean * static_cast<float>(kScale[i]);
      code[size++] = value;
      code[size++] = -value;
    }
  }
  code[size++] = 0.0f;
  code[size++] = 1.0f;
  std::sort(code.begin(), code.end());
  return code;
}

}  // namespace

const std::array<float, 256>& Nf4NestedCode() {
  static const std::array<float, 256> code = MakeNestedCode();
  return code;
}

}  // namespace soup::kernels
