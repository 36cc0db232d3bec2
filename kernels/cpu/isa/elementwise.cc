#include "kernels/cpu/isa/gate.h"
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

namespace {

template <typename Fn>
SOUP_INLINE void GateForward(const SwigluForwardArgs& args, int64_t begin, int64_t end, Fn times) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = static_cast<const float*>(args.gate_up) + t * 2 * args.I;
    const float* up = gate + args.I;
    float* y = static_cast<float*>(args.y) + t * args.I;
    int64_t i = 0;
    for (; i + kLanes <= args.I; i += kLanes) Store(y + i, times(Load(gate + i), Load(up + i)));
    if (const int64_t n = args.I - i; n > 0) {
      StoreFirst(y + i, times(LoadFirst(gate + i, n), LoadFirst(up + i, n)), n);
    }
  }
}

template <typename Fn>
SOUP_INLINE void GateBackward(const SwigluBackwardArgs& args, int64_t begin, int64_t end,
                              Fn backward) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = static_cast<const float*>(args.gate_up) + t * 2 * args.I;
    const float* up = gate + args.I;
    const float* dy = static_cast<const float*>(args.dy) + t * args.I;
    float* d_gate = static_cast<float*>(args.d_gate_up) + t * 2 * args.I;
    float* d_up = d_gate + args.I;
    int64_t i = 0;
    for (; i + kLanes <= args.I; i += kLanes) {
      const GatePair d = backward(Load(gate + i), Load(up + i), Load(dy + i));
      Store(d_gate + i, d.d_gate);
      Store(d_up + i, d.d_up);
    }
    if (const int64_t n = args.I - i; n > 0) {
      const GatePair d =
          backward(LoadFirst(gate + i, n), LoadFirst(up + i, n), LoadFirst(dy + i, n));
      StoreFirst(d_gate + i, d.d_gate, n);
      StoreFirst(d_up + i, d.d_up, n);
    }
  }
}

}  // namespace

void SwigluForwardLoop(const SwigluForwardArgs& args, int64_t begin, int64_t end) {
  if (args.gate == GateActivation::kSilu) {
    GateForward(args, begin, end, [](F16 gate, F16 up) { return SiluTimes(gate, up); });
  } else {
    GateForward(args, begin, end, [](F16 gate, F16 up) { return GeluTimes(gate, up); });
  }
}

void SwigluBackwardLoop(const SwigluBackwardArgs& args, int64_t begin, int64_t end) {
  if (args.gate == GateActivation::kSilu) {
    GateBackward(args, begin, end,
                 [](F16 gate, F16 up, F16 dy) { return SiluBackward(gate, up, dy); });
  } else {
    GateBackward(args, begin, end,
                 [](F16 gate, F16 up, F16 dy) { return GeluBackward(gate, up, dy); });
  }
}

void AddBiasLoop(const AddBiasArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    float* __restrict y = static_cast<float*>(args.y) + t * args.row_stride;
    for (int64_t i = 0; i < args.N; ++i) y[i] += WidenBf16(args.bias[i]);
  }
}

void AxpyLoop(const AxpyArgs& args, int64_t begin, int64_t end) {
  const float* x = static_cast<const float*>(args.x);
  float* y = static_cast<float*>(args.y);  // may be x
  const float scale = args.scale;
  if (args.accumulate) {
    for (int64_t i = begin; i < end; ++i) y[i] += scale * x[i];
  } else {
    for (int64_t i = begin; i < end; ++i) y[i] = scale * x[i];
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
