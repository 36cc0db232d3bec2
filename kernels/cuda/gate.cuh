// The gate of a gated MLP: f silu, or gelu by tanh, and its slope. Every operation is rounded by
// itself, so that all kernels give the same bits, whatever the compiler would have contracted
// where. Device code only; C++17.
#ifndef SOUP_KERNELS_CUDA_GATE_CUH_
#define SOUP_KERNELS_CUDA_GATE_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/common.cuh"

namespace soup::kernels::cuda {

// To about 2 ulp; 0 where exp(-x) overflows.
__device__ __forceinline__ float Sigmoid(float x) {
  return __fdividef(1.f, __fadd_rn(1.f, __expf(-x)));
}
// tanh(sqrt(2 / pi) (x + 0.044715 x^3)) = 2 sigmoid(2 ...) - 1; absolute error about 1e-7.
__device__ __forceinline__ float GeluTanhOf(float x) {
  const float cubic = __fmul_rn(__fmul_rn(x, x), x);
  const float z = __fmul_rn(2.f * 0.7978845608028654f, __fmaf_rn(0.044715f, cubic, x));
  return __fmaf_rn(2.f, Sigmoid(z), -1.f);
}

// f(gate), and f'(gate).
template <bool GELU>
__device__ __forceinline__ float Gate(float g) {
  if (GELU) return __fmul_rn(__fmul_rn(0.5f, g), __fadd_rn(1.f, GeluTanhOf(g)));
  return __fmul_rn(g, Sigmoid(g));
}
template <bool GELU>
__device__ __forceinline__ float GateSlope(float g) {
  if (GELU) {
    const float t = GeluTanhOf(g);
    const float inner = __fmul_rn(0.7978845608028654f, __fmaf_rn(0.134145f, __fmul_rn(g, g), 1.f));
    const float rise = __fmul_rn(__fmul_rn(0.5f, g), __fmaf_rn(-t, t, 1.f));
    return __fmaf_rn(rise, inner, __fmul_rn(0.5f, __fadd_rn(1.f, t)));
  }
  const float s = Sigmoid(g);
  return __fmul_rn(s, __fmaf_rn(g, __fsub_rn(1.f, s), 1.f));
}

// f(g) * u, eight at a time.
template <bool GELU>
__device__ __forceinline__ void Gated(const float (&u)[8], float (&g)[8]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) g[k] = __fmul_rn(Gate<GELU>(g[k]), u[k]);
}
// In place of gates and ups their gradients, d that of f(g) * u.
template <bool GELU>
__device__ __forceinline__ void GatedBack(const float (&d)[8], float (&g)[8], float (&u)[8]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float value = Gate<GELU>(g[k]);
    g[k] = __fmul_rn(__fmul_rn(d[k], u[k]), GateSlope<GELU>(g[k]));
    u[k] = __fmul_rn(d[k], value);
  }
}

// The same of bf16.
template <bool GELU>
__device__ __forceinline__ uint4 Gated8(uint4 gates, uint4 ups) {
  float g[8], u[8];
  Unpack8(gates, g);
  Unpack8(ups, u);
  Gated<GELU>(u, g);
  return Pack8(g);
}
template <bool GELU>
__device__ __forceinline__ void GatedBack8(uint4 d_act, uint4* gates, uint4* ups) {
  float d[8], g[8], u[8];
  Unpack8(d_act, d);
  Unpack8(*gates, g);
  Unpack8(*ups, u);
  GatedBack<GELU>(d, g, u);
  *gates = Pack8(g);
  *ups = Pack8(u);
}

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_GATE_CUH_
