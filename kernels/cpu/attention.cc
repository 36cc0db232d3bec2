#include "kernels/cpu/attention.h"

#include <cstring>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {
namespace {

// What isa/attention.cc lays into a thread's scratch.
static_assert(CpuContext::kScratchFloats >= 2 * kMaxHeadDim * 64 + 2 * 64 * 64);

template <typename Args>
void CheckShape(const Args& args) {
  SOUP_KERNEL_CHECK(args.D > 0 && args.D <= kMaxHeadDim);
  SOUP_KERNEL_CHECK(args.Hkv > 0 && args.Hq % args.Hkv == 0);
  SOUP_KERNEL_CHECK(args.S == 0 || args.cu_seqlens[args.S] <= args.T);
}

// Rows before the bucket tail.
template <typename Args>
int64_t LiveRows(const Args& args) {
  return args.S == 0 ? 0 : args.cu_seqlens[args.S];
}

void ZeroTail(void* x, int64_t stride, int64_t columns, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    std::memset(static_cast<float*>(x) + t * stride, 0,
                static_cast<size_t>(columns) * sizeof(float));
  }
}

}  // namespace

void AttentionForward(const AttentionForwardArgs& args, CpuContext& ctx) {
  CheckShape(args);
  const int64_t live = LiveRows(args);
  ctx.ParallelTasks(args.S * args.Hq, [&](int64_t task, int thread) {
    ctx.simd().attention_forward(args, task / args.Hq, task % args.Hq, ctx.scratch(thread));
  });
  ZeroTail(args.out, args.Hq * args.D, args.Hq * args.D, live, args.T);
  ZeroTail(args.lse, args.Hq, args.Hq, live, args.T);
}

void AttentionBackward(const AttentionBackwardArgs& args, CpuContext& ctx) {
  CheckShape(args);
  const int64_t live = LiveRows(args);
  ctx.ParallelRange(live, RowsPerPart(args.Hq * args.D), [&](int64_t begin, int64_t end, int) {
    ctx.simd().attention_delta(args, begin, end);
  });
  ctx.ParallelTasks(args.S * args.Hkv, [&](int64_t task, int thread) {
    ctx.simd().attention_backward(args, task / args.Hkv, task % args.Hkv, ctx.scratch(thread));
  });
  ZeroTail(args.delta, args.Hq, args.Hq, live, args.T);
  ZeroTail(args.dq, args.grad_row_stride, args.Hq * args.D, live, args.T);
  ZeroTail(args.dk, args.grad_row_stride, args.Hkv * args.D, live, args.T);
  ZeroTail(args.dv, args.grad_row_stride, args.Hkv * args.D, live, args.T);
}

}  // namespace soup::kernels::cpu
