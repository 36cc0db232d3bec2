// The loops that kernels/cpu/simd_table.h lists, of the instruction set being compiled.
#ifndef SOUP_KERNELS_CPU_ISA_LOOPS_H_
#define SOUP_KERNELS_CPU_ISA_LOOPS_H_

#include "kernels/cpu/isa/vec.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu::SOUP_ISA {

void WidenLoop(const WidenArgs& args, int64_t begin, int64_t end);
void GatherRowsLoop(const GatherRowsArgs& args, int64_t begin, int64_t end);
void RmsNormForwardLoop(const RmsNormForwardArgs& args, int64_t begin, int64_t end);
void RmsNormBackwardLoop(const RmsNormBackwardArgs& args, int64_t begin, int64_t end);
void HeadNormForwardLoop(const HeadNormForwardArgs& args, int64_t begin, int64_t end);
void HeadNormBackwardLoop(const HeadNormBackwardArgs& args, int64_t begin, int64_t end);
void AddBiasLoop(const AddBiasArgs& args, int64_t begin, int64_t end);
void RopeLoop(const RopeArgs& args, int64_t begin, int64_t end, float* scratch);
void AttentionForwardTask(const AttentionForwardArgs& args, int64_t sequence, int64_t head,
                          float* scratch);
void AttentionDeltaLoop(const AttentionBackwardArgs& args, int64_t begin, int64_t end);
void AttentionBackwardTask(const AttentionBackwardArgs& args, int64_t sequence, int64_t kv_head,
                           float* scratch);
void SwigluForwardLoop(const SwigluForwardArgs& args, int64_t begin, int64_t end);
void SwigluBackwardLoop(const SwigluBackwardArgs& args, int64_t begin, int64_t end);
void AxpyLoop(const AxpyArgs& args, int64_t begin, int64_t end);
void LossSliceLoop(const LossSliceArgs& args, int64_t begin, int64_t end);
void LossFinishLoop(const LossFinishArgs& args, int64_t begin, int64_t end);
void RouteLoop(const RouteArgs& args, int64_t begin, int64_t end);
void RouteBackwardLoop(const RouteBackwardArgs& args, int64_t begin, int64_t end);
void EntryGradLoop(const EntryGradArgs& args, int64_t begin, int64_t end);
double SumSquaresBlock(const float* x, int64_t n);
void AdamWLoop(const AdamWArgs& args, const SimdTable::AdamWScalars& s, int64_t begin, int64_t end);
void Nf4DequantLoop(const Nf4DequantArgs& args, const float* nested_code, int64_t block_begin,
                    int64_t block_end);
float Nf4QuantizeBlock(const uint16_t* bf16, const float* f32, int64_t n, uint8_t* packed);

}  // namespace soup::kernels::cpu::SOUP_ISA

#endif  // SOUP_KERNELS_CPU_ISA_LOOPS_H_
