// QkvFinish as the ops it is made of, where activations are fp32 and nothing is rounded between:
// what the CPU runs. Pure; any thread; std only.
#ifndef SOUP_KERNELS_QKV_OPS_H_
#define SOUP_KERNELS_QKV_OPS_H_

#include <cstdint>

#include "kernels/ops.h"

namespace soup::kernels {

// Whether every adapted range of columns is whole heads of D.
inline bool WholeHeads(const LoraLinears& linears, int64_t D) {
  for (int32_t m = 0; m < linears.count; ++m) {
    if (linears.column[m] % D != 0 || linears.width[m] % D != 0) return false;
  }
  return true;
}

// Calls run(args) with AddBiasArgs, LoraUpArgs, HeadNormForwardArgs and RopeArgs, in this order,
// those that a.x = a.y asks for.
template <typename Run>
void ForEachOp(const QkvFinishArgs& a, const Run& run) {
  const int64_t turned = a.Hq + a.Hkv;
  if (a.bias != nullptr) {
    run(AddBiasArgs{a.y, a.bias, a.biased_rows, (turned + a.Hkv) * a.D, a.row_stride});
  }
  if (a.linears.count > 0) {
    run(LoraUpArgs{a.linears, a.u, a.b, a.y, a.T, a.r, a.row_stride, a.lora_scale});
  }
  if (a.q_norm == nullptr) {
    if (a.rope.positions == nullptr) return;
    run(RopeArgs{a.y, a.rope.positions, a.rope.inv_freq, a.T, turned, a.D, a.row_stride, false,
                 a.rope.rotary, a.rope.scale});
    return;
  }
  HeadNormForwardArgs n{};
  n.T = a.T;
  n.D = a.D;
  n.row_stride = a.row_stride;
  n.eps = a.eps;
  n.weight_offset = a.weight_offset;
  n.rope = a.rope;
  n.x = a.y;
  n.saved = a.saved;
  n.weight = a.q_norm;
  n.heads = a.Hq;
  run(n);
  n.x = static_cast<float*>(a.y) + a.Hq * a.D;
  n.saved = static_cast<float*>(a.saved) + a.Hq * a.D;
  n.weight = a.k_norm;
  n.heads = a.Hkv;
  run(n);
}

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_QKV_OPS_H_
