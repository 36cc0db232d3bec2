#include "kernels/cpu/norm.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/rope.h"
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

namespace {

void TurnHeads(const HeadRope& rope, void* x, int64_t T, int64_t heads, int64_t D,
               int64_t row_stride, bool inverse, CpuContext& ctx) {
  if (rope.positions == nullptr) return;
  Rope(
      {x, rope.positions, rope.inv_freq, T, heads, D, row_stride, inverse, rope.rotary, rope.scale},
      ctx);
}

}  // namespace

void HeadNormForward(const HeadNormForwardArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.heads * args.D), [&](int64_t begin, int64_t end, int) {
    ctx.simd().head_norm_forward(args, begin, end);
  });
  TurnHeads(args.rope, args.x, args.T, args.heads, args.D, args.row_stride, false, ctx);
}

void HeadNormBackward(const HeadNormBackwardArgs& args, CpuContext& ctx) {
  TurnHeads(args.rope, args.dx, args.T, args.heads, args.D, args.grad_row_stride, true, ctx);
  ctx.ParallelRange(args.T, RowsPerPart(args.heads * args.D), [&](int64_t begin, int64_t end, int) {
    ctx.simd().head_norm_backward(args, begin, end);
  });
}

}  // namespace soup::kernels::cpu
