// The gated MLP's products as the ops they are made of: what a backend runs that has no kernel for
// them as a whole. Pure; any thread; std only.
#ifndef SOUP_KERNELS_GATE_OPS_H_
#define SOUP_KERNELS_GATE_OPS_H_

#include <cstdint>

#include "kernels/ops.h"

namespace soup::kernels {

// Whether a backend that has kernels for them as a whole, from `fused_rows` rows on (0: none),
// takes these sizes: both ops, or neither.
inline bool GateProductsTaken(int64_t fused_rows, int64_t T, int64_t H, int64_t I) {
  return fused_rows > 0 && T >= fused_rows && H % 8 == 0 && I % 8 == 0;
}

// Calls run(args) with GemmArgs and SwigluForwardArgs, in this order, those that are asked for.
template <typename Run>
void ForEachOp(const GateUpArgs& a, const Run& run) {
  run(GemmArgs{false, true, a.T, 2 * a.I, a.H, 1, 0, a.x, a.H, a.w, a.H, a.gate_up, 2 * a.I,
               Operand::kAct, Operand::kWt, Operand::kAct});
  if (a.y != nullptr) run(SwigluForwardArgs{a.gate_up, a.y, a.T, a.I, a.gate});
}

// The same with GemmArgs and SwigluBackwardArgs.
template <typename Run>
void ForEachOp(const DownBackwardArgs& a, const Run& run) {
  run(GemmArgs{false, false, a.T, a.I, a.H, 1, 0, a.dy, a.H, a.w, a.I, a.d_act, a.I, Operand::kAct,
               Operand::kWt, Operand::kAct});
  if (a.gate_up == nullptr) return;
  run(SwigluBackwardArgs{a.gate_up, a.d_act, a.gate_up, a.T, a.I, a.gate});
}

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_GATE_OPS_H_
