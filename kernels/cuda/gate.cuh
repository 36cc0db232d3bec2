// The gate of a gated MLP: f silu, or gelu by tanh, and its slope. Device code only; C++17.
#ifndef SOUP_KERNELS_CUDA_GATE_CUH_
#define SOUP_KERNELS_CUDA_GATE_CUH_

#include <cuda_runtime.h>

namespace soup::kernels::cuda {

__device__ __forceinline__ float Sigmoid(float x) { return 1.f / (1.f + __expf(-x)); }
// tanh(sqrt(2 / pi) (x + 0.044715 x^3)) = 2 sigmoid(2 ...) - 1; absolute error about 1e-7.
__device__ __forceinline__ float GeluTanhOf(float x) {
  return 2.f * Sigmoid(2.f * 0.7978845608028654f * (x + 0.044715f * x * x * x)) - 1.f;
}

// f(gate), and f'(gate).
template <bool GELU>
__device__ __forceinline__ float Gate(float g) {
  if (GELU) return 0.5f * g * (1.f + GeluTanhOf(g));
  return g * Sigmoid(g);
}
template <bool GELU>
__device__ __forceinline__ float GateSlope(float g) {
  if (GELU) {
    const float t = GeluTanhOf(g);
    return 0.5f * (1.f + t) +
           0.5f * g * (1.f - t * t) * 0.7978845608028654f * (1.f + 0.134145f * g * g);
  }
  const float s = Sigmoid(g);
  return s * (1.f + g * (1.f - s));
}

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_GATE_CUH_
