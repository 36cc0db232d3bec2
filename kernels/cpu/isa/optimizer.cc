#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {

// 16 lanes of double, then the lanes as a tree.
double SumSquaresBlock(const float* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const double value = static_cast<double>(x[i + j]);
      lanes[j] += value * value;
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    const double value = static_cast<double>(x[i]);
    lanes[j] += value * value;
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

// In the order of torch's single-tensor AdamW.
void AdamWLoop(const AdamWArgs& args, const SimdTable::AdamWScalars& s, int64_t begin,
               int64_t end) {
  float* __restrict w = args.w;
  float* __restrict m = args.m;
  float* __restrict v = args.v;
  const float* __restrict g = args.g;
  for (int64_t i = begin; i < end; ++i) {
    const float grad = g[i] * s.grad_scale;
    const float decayed = w[i] * s.decay;
    const float m_new = m[i] + s.one_minus_beta1 * (grad - m[i]);
    const float v_new = v[i] * s.beta2 + s.one_minus_beta2 * (grad * grad);
    const float denominator = __builtin_sqrtf(v_new) / s.sqrt_bias2 + s.eps;
    m[i] = m_new;
    v[i] = v_new;
    w[i] = decayed - s.step_size * (m_new / denominator);
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
