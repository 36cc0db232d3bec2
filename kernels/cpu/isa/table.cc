#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {

#define SOUP_STRING_(x) #x
#define SOUP_STRING(x) SOUP_STRING_(x)

extern const SimdTable kTable;
const SimdTable kTable = {
    .name = SOUP_STRING(SOUP_ISA),
    .widen = WidenLoop,
    .gather_rows = GatherRowsLoop,
    .rms_norm_forward = RmsNormForwardLoop,
    .rms_norm_backward = RmsNormBackwardLoop,
    .head_norm_forward = HeadNormForwardLoop,
    .head_norm_backward = HeadNormBackwardLoop,
    .add_bias = AddBiasLoop,
    .rope = RopeLoop,
    .attention_forward = AttentionForwardTask,
    .attention_delta = AttentionDeltaLoop,
    .attention_backward = AttentionBackwardTask,
    .swiglu_forward = SwigluForwardLoop,
    .swiglu_backward = SwigluBackwardLoop,
    .axpy = AxpyLoop,
    .loss_slice = LossSliceLoop,
    .loss_finish = LossFinishLoop,
    .route = RouteLoop,
    .route_backward = RouteBackwardLoop,
    .entry_grad = EntryGradLoop,
    .sum_squares_block = SumSquaresBlock,
    .adamw = AdamWLoop,
    .nf4_dequant = Nf4DequantLoop,
    .nf4_quantize_block = Nf4QuantizeBlock,
};

}  // namespace soup::kernels::cpu::SOUP_ISA
