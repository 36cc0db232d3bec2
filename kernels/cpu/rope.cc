#include "kernels/cpu/rope.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {

void Rope(const RopeArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK(args.D > 0 && args.D % 2 == 0 && args.D <= kMaxHeadDim);
  SOUP_KERNEL_CHECK(args.rotary >= 0 && args.rotary % 2 == 0 && args.rotary <= args.D);
  ctx.ParallelRange(args.T, RowsPerPart(args.heads * args.D),
                    [&](int64_t begin, int64_t end, int thread) {
                      ctx.simd().rope(args, begin, end, ctx.scratch(thread));
                    });
}

}  // namespace soup::kernels::cpu
