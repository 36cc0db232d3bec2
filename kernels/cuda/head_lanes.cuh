// Heads of up to 256 values, one a warp: a lane holds 8 values or none. Internal to kernels/cuda.
#ifndef SOUP_KERNELS_CUDA_HEAD_LANES_CUH_
#define SOUP_KERNELS_CUDA_HEAD_LANES_CUH_

#include "kernels/cuda/common.cuh"
#include "kernels/ops.h"

namespace soup::kernels::cuda {

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// Turns the head that a warp holds, 8 values a lane: a value's partner lies half of the turned
// dimensions away, in another lane.
__device__ __forceinline__ void Turn(const HeadRope& rope, int64_t t, int lane, float sign,
                                     float (&f)[8]) {
  if (rope.positions == nullptr) return;
  const int lanes = static_cast<int>(rope.rotary) / 2 / kVector;  // of one half
  const int angle = lane < lanes ? lane : lane - lanes;
  const int partner = lane < lanes ? lane + lanes : angle;
  const bool turns = lane < 2 * lanes;
  const float position = static_cast<float>(rope.positions[t]);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float other = __shfl_sync(~0u, f[k], turns ? partner : lane);
    float s, c;
    sincosf(position * (turns ? __ldg(rope.inv_freq + angle * kVector + k) : 0.f), &s, &c);
    s *= sign;
    const float turned = lane < lanes ? f[k] * c - other * s : f[k] * c + other * s;
    if (turns) f[k] = turned * rope.scale;
  }
}

inline bool BadRope(const HeadRope& rope, int64_t D) {
  return rope.positions != nullptr &&
         (rope.rotary % (2 * kVector) != 0 || rope.rotary < 1 || rope.rotary > D);
}

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_HEAD_LANES_CUH_
