#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {

void WidenLoop(const WidenArgs& args, int64_t begin, int64_t end) {
  const uint16_t* src = args.src;
  float* __restrict dst = args.dst;
  for (int64_t i = begin; i < end; ++i) dst[i] = WidenBf16(src[i]);
}

void GatherRowsLoop(const GatherRowsArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const uint16_t* src = args.table + static_cast<int64_t>(args.ids[t]) * args.H;
    float* __restrict dst = static_cast<float*>(args.y) + t * args.H;
    for (int64_t i = 0; i < args.H; ++i) dst[i] = WidenBf16(src[i]);
  }
}

void SwigluForwardLoop(const SwigluForwardArgs& args, int64_t begin, int64_t end) {
  const F16 one = Set(1.0f);
  const auto silu_times = [&](F16 gate, F16 up) {
    return gate / (one + Exp(Set(0.0f) - gate)) * up;
  };
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = static_cast<const float*>(args.gate_up) + t * 2 * args.I;
    const float* up = gate + args.I;
    float* y = static_cast<float*>(args.y) + t * args.I;
    int64_t i = 0;
    for (; i + kLanes <= args.I; i += kLanes) {
      Store(y + i, silu_times(Load(gate + i), Load(up + i)));
    }
    if (const int64_t n = args.I - i; n > 0) {
      StoreFirst(y + i, silu_times(LoadFirst(gate + i, n), LoadFirst(up + i, n)), n);
    }
  }
}

// With s = sigmoid(gate): d_up = dy * gate * s; d_gate = dy * up * s * (1 + gate * (1 - s)).
void SwigluBackwardLoop(const SwigluBackwardArgs& args, int64_t begin, int64_t end) {
  const F16 one = Set(1.0f);
  struct Pair {
    F16 d_gate, d_up;
  };
  const auto backward = [&](F16 gate, F16 up, F16 dy) {
    const F16 s = one / (one + Exp(Set(0.0f) - gate));
    return Pair{dy * up * s * (one + gate * (one - s)), dy * (gate * s)};
  };
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = static_cast<const float*>(args.gate_up) + t * 2 * args.I;
    const float* up = gate + args.I;
    const float* dy = static_cast<const float*>(args.dy) + t * args.I;
    float* d_gate = static_cast<float*>(args.d_gate_up) + t * 2 * args.I;
    float* d_up = d_gate + args.I;
    int64_t i = 0;
    for (; i + kLanes <= args.I; i += kLanes) {
      const Pair d = backward(Load(gate + i), Load(up + i), Load(dy + i));
      Store(d_gate + i, d.d_gate);
      Store(d_up + i, d.d_up);
    }
    if (const int64_t n = args.I - i; n > 0) {
      const Pair d = backward(LoadFirst(gate + i, n), LoadFirst(up + i, n), LoadFirst(dy + i, n));
      StoreFirst(d_gate + i, d.d_gate, n);
      StoreFirst(d_up + i, d.d_up, n);
    }
  }
}

void AxpyLoop(const AxpyArgs& args, int64_t begin, int64_t end) {
  const float* x = static_cast<const float*>(args.x);
  float* __restrict y = static_cast<float*>(args.y);
  const float scale = args.scale;
  if (args.accumulate) {
    for (int64_t i = begin; i < end; ++i) y[i] += scale * x[i];
  } else {
    for (int64_t i = begin; i < end; ++i) y[i] = scale * x[i];
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
