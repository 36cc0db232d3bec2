#include "kernels/cpu/moe.h"

#include <cstring>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {

void Route(const RouteArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK(args.E <= kMaxExperts && args.k <= args.E && args.lde >= args.E);
  ctx.ParallelRange(args.T, RowsPerPart(args.E * args.k),
                    [&](int64_t begin, int64_t end, int) { ctx.simd().route(args, begin, end); });
}

void RouteBackward(const RouteBackwardArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK(args.E <= kMaxExperts && args.k <= args.E && args.lde >= args.E);
  ctx.ParallelRange(args.T, RowsPerPart(args.E), [&](int64_t begin, int64_t end, int) {
    ctx.simd().route_backward(args, begin, end);
  });
}

void ListExperts(const ListExpertsArgs& args, CpuContext& ctx) {
  ctx.ParallelTasks(args.E, [&](int64_t expert, int) {
    int32_t* list = args.lists + expert * args.T;
    int32_t count = 0;
    for (int64_t i = 0; i < args.T * args.k; ++i) {
      if (args.experts[i] == expert) list[count++] = static_cast<int32_t>(i);
    }
    args.counts[expert] = count;
  });
}

void GatherEntries(const GatherEntriesArgs& args, CpuContext& ctx) {
  const size_t row_bytes = static_cast<size_t>(args.H) * sizeof(float);
  ctx.ParallelRange(args.rows, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* to = static_cast<float*>(args.y) + i * args.H;
      if (i >= args.n) {
        std::memset(to, 0, row_bytes);
        continue;
      }
      std::memcpy(to, static_cast<const float*>(args.x) + args.entries[i] / args.k * args.H,
                  row_bytes);
    }
  });
}

void ScatterEntries(const ScatterEntriesArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t entry = args.entries[i];
      const float weight = args.weights == nullptr ? 1.0f : args.weights[entry];
      const float* from = static_cast<const float*>(args.x) + i * args.H;
      float* __restrict to = args.y + entry / args.k * args.H;
      for (int64_t h = 0; h < args.H; ++h) to[h] += weight * from[h];
    }
  });
}

void EntryGrad(const EntryGradArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, RowsPerPart(args.I), [&](int64_t begin, int64_t end, int) {
    ctx.simd().entry_grad(args, begin, end);
  });
}

void AddF32(const AddF32Args& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, kElementsPerPart, [&](int64_t begin, int64_t end, int) {
    float* __restrict y = static_cast<float*>(args.y);
    if (args.accumulate) {
      for (int64_t i = begin; i < end; ++i) y[i] += args.x[i];
    } else {
      std::memcpy(y + begin, args.x + begin, static_cast<size_t>(end - begin) * sizeof(float));
    }
  });
}

}  // namespace soup::kernels::cpu
