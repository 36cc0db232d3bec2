#include "kernels/cpu/elementwise.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"
#include "kernels/philox.h"

namespace soup::kernels::cpu {

void Widen(const WidenArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, kElementsPerPart,
                    [&](int64_t begin, int64_t end, int) { ctx.simd().widen(args, begin, end); });
}

void SwigluForward(const SwigluForwardArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.I), [&](int64_t begin, int64_t end, int) {
    ctx.simd().swiglu_forward(args, begin, end);
  });
}

void SwigluBackward(const SwigluBackwardArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.I), [&](int64_t begin, int64_t end, int) {
    ctx.simd().swiglu_backward(args, begin, end);
  });
}

void AddBias(const AddBiasArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.N), [&](int64_t begin, int64_t end, int) {
    ctx.simd().add_bias(args, begin, end);
  });
}

void Axpy(const AxpyArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, kElementsPerPart,
                    [&](int64_t begin, int64_t end, int) { ctx.simd().axpy(args, begin, end); });
}

void Dropout(const DropoutArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK(args.p >= 0.0f && args.p < 1.0f);
  const PhiloxStream stream(args.seed, args.stream_hi, args.stream_lo);
  const double threshold = std::ceil(static_cast<double>(args.p) * 0x1p32);
  const uint32_t drop_below = static_cast<uint32_t>(threshold);  // p < 1: below 2^32
  const float scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(args.p)));
  const float* x = static_cast<const float*>(args.x);
  float* y = static_cast<float*>(args.y);
  // Parts begin at multiples of 4, one Philox block each.
  static_assert(kElementsPerPart % 4 == 0);
  ctx.ParallelRange(args.n, kElementsPerPart, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i += 4) {
      const PhiloxBlock draws = stream.Block(static_cast<uint64_t>(i) / 4);
      for (int64_t j = 0; j < 4 && i + j < end; ++j) {
        y[i + j] = draws.v[j] >= drop_below ? x[i + j] * scale : 0.0f;
      }
    }
  });
}

void GatherRows(const GatherRowsArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.T, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    ctx.simd().gather_rows(args, begin, end);
  });
}

void GatherActRows(const GatherActRowsArgs& args, CpuContext& ctx) {
  ctx.ParallelRange(args.n, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<float*>(args.y) + i * args.H,
                  static_cast<const float*>(args.x) + args.rows[i] * args.H,
                  static_cast<size_t>(args.H) * sizeof(float));
    }
  });
}

void ScatterActRows(const ScatterActRowsArgs& args, CpuContext& ctx) {
  const size_t row_bytes = static_cast<size_t>(args.H) * sizeof(float);
  ctx.ParallelRange(args.T, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    std::memset(static_cast<float*>(args.dx) + begin * args.H, 0,
                static_cast<size_t>(end - begin) * row_bytes);
  });
  ctx.ParallelRange(args.n, RowsPerPart(args.H), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<float*>(args.dx) + args.rows[i] * args.H,
                  static_cast<const float*>(args.dy) + i * args.H, row_bytes);
    }
  });
}

}  // namespace soup::kernels::cpu
