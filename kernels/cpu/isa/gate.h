// The gate of a gated MLP: f(gate) * up, f silu or gelu by tanh, and its backward.
#ifndef SOUP_KERNELS_CPU_ISA_GATE_H_
#define SOUP_KERNELS_CPU_ISA_GATE_H_

#include "kernels/cpu/isa/vec.h"

namespace soup::kernels::cpu::SOUP_ISA {

// f(gate) * up.
SOUP_INLINE F16 SiluTimes(F16 gate, F16 up) {
  return gate / (Set(1.0f) + Exp(Set(0.0f) - gate)) * up;
}
SOUP_INLINE F16 GeluTanhOf(F16 x) {
  return Tanh(Set(0.7978845608028654f) * (x + Set(0.044715f) * (x * x * x)));
}
SOUP_INLINE F16 GeluTimes(F16 gate, F16 up) {
  return Set(0.5f) * gate * (Set(1.0f) + GeluTanhOf(gate)) * up;
}

struct GatePair {
  F16 d_gate, d_up;
};
// With s = sigmoid(gate): d_up = dy * gate * s; d_gate = dy * up * s * (1 + gate * (1 - s)).
SOUP_INLINE GatePair SiluBackward(F16 gate, F16 up, F16 dy) {
  const F16 one = Set(1.0f);
  const F16 s = one / (one + Exp(Set(0.0f) - gate));
  return {dy * up * s * (one + gate * (one - s)), dy * (gate * s)};
}
// With t the tanh: f' = (1 + t) / 2 + gate / 2 * (1 - t^2) * sqrt(2 / pi) * (1 + 3 * 0.044715
// gate^2)
SOUP_INLINE GatePair GeluBackward(F16 gate, F16 up, F16 dy) {
  const F16 one = Set(1.0f), half = Set(0.5f);
  const F16 t = GeluTanhOf(gate);
  const F16 inner = Set(0.7978845608028654f) * (one + Set(0.134145f) * (gate * gate));
  const F16 slope = half * (one + t) + half * gate * (one - t * t) * inner;
  return {dy * up * slope, dy * (half * gate * (one + t))};
}

}  // namespace soup::kernels::cpu::SOUP_ISA

#endif  // SOUP_KERNELS_CPU_ISA_GATE_H_
