#include "kernels/cpu/norm.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {

void RmsNormForward(const RmsNormForwardArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    ctx.simd().rms_norm_forward(args, begin, end);
  });
}

void RmsNormBackward(const RmsNormBackwardArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    ctx.simd().rms_norm_backward(args, begin, end);
  });
}

void HeadNormForward(const HeadNormForwardArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.heads * args.D), [&](int64_t begin, int64_t end, int) {
    ctx.simd().head_norm_forward(args, begin, end);
  });
}

void HeadNormBackward(const HeadNormBackwardArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.heads * args.D), [&](int64_t begin, int64_t end, int) {
    ctx.simd().head_norm_backward(args, begin, end);
  });
}

}  // namespace soup::kernels::cpu
