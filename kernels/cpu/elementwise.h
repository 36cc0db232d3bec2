// Elementwise ops and row moves on the CPU, fp32; contracts in kernels/ops.h. Parallel over
// elements or rows; bitwise repeatable for any thread count.
#ifndef SOUP_KERNELS_CPU_ELEMENTWISE_H_
#define SOUP_KERNELS_CPU_ELEMENTWISE_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void Widen(const WidenArgs& args, CpuContext& ctx);
void SwigluForward(const SwigluForwardArgs& args, CpuContext& ctx);
void SwigluBackward(const SwigluBackwardArgs& args, CpuContext& ctx);
void AddBias(const AddBiasArgs& args, CpuContext& ctx);
void Axpy(const AxpyArgs& args, CpuContext& ctx);
// p in [0, 1).
void Dropout(const DropoutArgs& args, CpuContext& ctx);
void GatherRows(const GatherRowsArgs& args, CpuContext& ctx);
void GatherActRows(const GatherActRowsArgs& args, CpuContext& ctx);
void ScatterActRows(const ScatterActRowsArgs& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_ELEMENTWISE_H_
