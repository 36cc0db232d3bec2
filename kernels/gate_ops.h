// The gated MLP's products as the ops they are made of: what a backend runs that has no kernel for
// them as a whole. Pure; any thread; std only.
#ifndef SOUP_KERNELS_GATE_OPS_H_
#define SOUP_KERNELS_GATE_OPS_H_

#include <cstdint>

#include "kernels/lora_products.h"
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

// Whether a backend takes an AdaptedProduct as a whole, from `fused_rows` rows on (0: none).
inline bool AdaptedProductTaken(int64_t fused_rows, int64_t M, int64_t N, int64_t K, int64_t R) {
  return GateProductsTaken(fused_rows, M, N, K) && R > 0 && R % 8 == 0;
}

// The same with GemmArgs, and LoraUpArgs of one linear.
template <typename Run>
void ForEachOp(const AdaptedProductArgs& a, const Run& run) {
  GemmArgs product{false,
                   a.transpose_w,
                   a.M,
                   a.N,
                   a.K,
                   1,
                   0,
                   a.x,
                   a.K,
                   a.w,
                   a.transpose_w ? a.K : a.N,
                   a.y,
                   a.N,
                   Operand::kAct,
                   Operand::kWt,
                   Operand::kAct};
  if (!a.transpose_w) {
    run(GemmArgs{false, false, a.M, a.N, a.R, 1, 0, a.u, a.R, a.b, a.N, a.y, a.N, Operand::kAct,
                 Operand::kAct, Operand::kAct});
    product.beta = 1;
    run(product);
    return;
  }
  run(product);
  LoraUpArgs up{};
  up.linears.count = 1;
  up.linears.width[0] = a.N;
  up.u = a.u;
  up.b = a.b;
  up.y = a.y;
  up.T = a.M;
  up.r = a.R;
  up.ldy = a.N;
  up.scale = a.scale;
  up.addend = a.addend;
  run(up);
}

// Whether a backend takes a TurnedProduct as a whole: whole heads of 128, linears of whole pairs of
// heads.
inline bool TurnedProductTaken(int64_t fused_rows, const TurnedProductArgs& a) {
  constexpr int64_t kPair = 256;
  const LoraUpArgs& up = a.turned.up;
  if (!GateProductsTaken(fused_rows, up.T, a.N, a.K) || a.turned.rope.D != kPair / 2 ||
      a.turned.rope.heads % 2 != 0 || up.ldy % 8 != 0 || !LoraUpRopeTaken(a.turned)) {
    return false;
  }
  for (int32_t m = 0; m < up.linears.count; ++m) {
    if (up.linears.column[m] % kPair != 0 || up.linears.width[m] % kPair != 0) return false;
  }
  return true;
}

// The same with GemmArgs and LoraUpRopeArgs.
template <typename Run>
void ForEachOp(const TurnedProductArgs& a, const Run& run) {
  const LoraUpArgs& up = a.turned.up;
  run(GemmArgs{false, true, up.T, a.N, a.K, 1, 0, a.x, a.K, a.w, a.K, up.y, up.ldy, Operand::kAct,
               Operand::kWt, Operand::kAct});
  run(a.turned);
}

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_GATE_OPS_H_
