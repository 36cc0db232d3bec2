#include "kernels/cpu/loss.h"

#include <cstring>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {

void LossSlice(const LossSliceArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, RowsPerPart(args.Vs), [&](int64_t begin, int64_t end, int) {
    ctx.simd().loss_slice(args, begin, end);
  });
}

void LossTargetRows(const LossTargetRowsArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = static_cast<int64_t>(args.targets[i]) - args.v0;
      if (row < 0 || row >= args.Vs) continue;
      std::memcpy(static_cast<float*>(args.target_row) + i * args.H,
                  static_cast<const float*>(args.weight) + row * args.H,
                  static_cast<size_t>(args.H) * sizeof(float));
    }
  });
}

void LossFinish(const LossFinishArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    ctx.simd().loss_finish(args, begin, end);
  });
}

}  // namespace soup::kernels::cpu
