// y [T, columns] += scale * u W^T, then rope on whole heads of y, in one pass: rounded once.
// Included by lora.cu alone; C++17.
#ifndef SOUP_KERNELS_CUDA_LORA_ROPE_CUH_
#define SOUP_KERNELS_CUDA_LORA_ROPE_CUH_

#include "kernels/cuda/lora_expand.cuh"

namespace soup::kernels::cuda::lora {

// A warp has 16 tokens and turns one group of 32 angles in some heads, one after another: a
// unit is 32 columns and those half a head further, sincos is made once. Columns behind the heads
// (v) come in units of 64 that do not turn. Units come through a ring in shared memory of which a
// lane reads what it has copied itself.
constexpr int kRopeWarps = 4;
constexpr int kRopeStages = 4;

struct RopeExpandArgs {
  ExpandArgs up;
  const int32_t* positions;
  const float* inv_freq;
  int heads, D, plain_units;
  int each;  // RopeUnits
  float rope_scale;
};

// Units a warp: many where that still fills the card, since sincos is made once a warp. Decides no
// bits.
inline int RopeUnits(int64_t T) { return T >= 2048 ? 14 : 4; }
inline int RopeChunks(int units, int each) { return (units + each - 1) / each; }

// Grid x: tokens, from the last to the first; y: groups of angles x chunks of heads, then chunks of
// plain units.
template <int K8>
__global__ void __launch_bounds__(32 * kRopeWarps, K8 == 1 ? 4 : 3)
    RopeExpandKernel(const __grid_constant__ RopeExpandArgs a) {
  BeginBehind();
  constexpr int kUnitBytes = 2048;
  __shared__ uint4 shared[kRopeWarps * kRopeStages * kUnitBytes / 16];
  const ExpandArgs& up = a.up;
  const int lane = threadIdx.x & 31, q = lane & 3, g = lane >> 2, warp = threadIdx.x >> 5;
  const int groups = a.D / 64;
  const int turning = groups * ((a.heads + a.each - 1) / a.each);
  const int chunk = blockIdx.y;
  const bool turns = chunk < turning;
  const int group = turns ? chunk % groups : 0;
  const int first = (turns ? chunk / groups : chunk - turning) * a.each;
  const int units = min(a.each, (turns ? a.heads : a.plain_units) - first);
  const int t0 = static_cast<int>(FromTheEnd(blockIdx.x, gridDim.x)) * 16 * kRopeWarps + 16 * warp;
  if (t0 >= up.T) return;

  const int start = turns ? first * a.D + 32 * group : a.heads * a.D + 64 * first;
  const int step = turns ? a.D : 64, apart = turns ? a.D / 2 : 32;
  bf16* y0 = up.y + static_cast<int64_t>(t0 + g) * up.ldy + start + 8 * q;
  const int64_t below = 8 * up.ldy;
  const bool valid[2] = {t0 + g < up.T, t0 + g + 8 < up.T};
  const uint32_t ring = SharedAddress(shared) + warp * kRopeStages * kUnitBytes + lane * 16;
  const auto copy = [&](int unit) {
    if (unit < units) {
      const uint32_t to = ring + unit % kRopeStages * kUnitBytes;
      const bf16* y = y0 + unit * step;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        attention::CopyAsync16(to + 1024 * i, y + i * below, valid[i]);
        attention::CopyAsync16(to + 1024 * i + 512, y + i * below + apart, valid[i]);
      }
    }
    attention::CommitCopies();
  };
#pragma unroll
  for (int s = 0; s + 1 < kRopeStages; ++s) copy(s);

  float cosine[2][8], sine[2][8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float position =
        turns && valid[i] ? static_cast<float>(a.positions[t0 + g + 8 * i]) : 0.f;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      cosine[i][k] = 1.f;
      sine[i][k] = 0.f;
      if (!turns) continue;
      sincosf(position * __ldg(a.inv_freq + 32 * group + 8 * q + k), &sine[i][k], &cosine[i][k]);
      cosine[i][k] *= a.rope_scale;
      sine[i][k] *= a.rope_scale;
    }
  }
  for (int unit = 0; unit < units; ++unit) {
    copy(unit + kRopeStages - 1);
    const int column = start + unit * step;
    // The linear whose columns these are; none: only turned.
    int strip = -1, row = 0;
    for (int m = 0, before = 0; m < up.strips.count; before += up.strips.width[m++]) {
      const int at = column - up.strips.column[m];
      if (at < 0 || at >= up.strips.width[m]) continue;
      strip = m;
      row = before + at;
    }
    float low[4][4] = {}, high[4][4] = {};
    if (strip >= 0) {
      uint32_t u[2][K8], w[4][K8], high_w[4][K8];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int k = 0; k < K8; ++k) {
          const bf16* p = up.u + static_cast<int64_t>(t0 + g + 8 * i) * up.ldu + strip * up.rank;
          u[i][k] = valid[i] ? Load4(p + 8 * k + 2 * q) : 0u;
        }
      LoadExpandWeights<K8, false>(up.w, up.ldw, row, q, g, w);
      LoadExpandWeights<K8, false>(up.w, up.ldw, row + apart, q, g, high_w);
      ExpandProduct<K8>(u, w, low);
      ExpandProduct<K8>(u, high_w, high);
    }
    attention::WaitCopies<kRopeStages - 1>();
    const uint32_t from = ring + unit % kRopeStages * kUnitBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x[8], z[8];
      Unpack8(attention::LoadShared16(from + 1024 * i), x);
      Unpack8(attention::LoadShared16(from + 1024 * i + 512), z);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float b = fmaf(up.scale, low[k >> 1][2 * i + (k & 1)], x[k]);
        const float e = fmaf(up.scale, high[k >> 1][2 * i + (k & 1)], z[k]);
        x[k] = b * cosine[i][k] - e * sine[i][k];
        z[k] = e * cosine[i][k] + b * sine[i][k];
      }
      if (!valid[i] || (!turns && strip < 0)) continue;
      bf16* y = y0 + unit * step + i * below;
      Store16(y, Pack8(x));
      Store16(y + apart, Pack8(z));
    }
  }
}

}  // namespace soup::kernels::cuda::lora

#endif  // SOUP_KERNELS_CUDA_LORA_ROPE_CUH_
