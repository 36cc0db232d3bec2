#include "kernels/cpu/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {
namespace {

// base^exponent by squaring: products only, so the same on every C library.
double IntegerPower(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

void SumSquares(const SumSquaresArgs& args, CpuContext& ctx) {
  constexpr int64_t kBlock = 1024;
  const int64_t blocks = (args.n + kBlock - 1) / kBlock;
  double total = 0.0;
  for (int64_t first = 0; first < blocks; first += CpuContext::kPartials) {
    const int64_t count = std::min(CpuContext::kPartials, blocks - first);
    ctx.ParallelRange(count, kElementsPerPart / kBlock, [&](int64_t begin, int64_t end, int) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t at = (first + b) * kBlock;
        ctx.partials()[b] =
            ctx.simd().sum_squares_block(args.x + at, std::min(kBlock, args.n - at));
      }
    });
    for (int64_t b = 0; b < count; ++b) total += ctx.partials()[b];
  }
  *args.result = total;
}

void AdamW(const AdamWArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK(args.t >= 1);
  const double lr = args.lr, beta1 = args.beta1, beta2 = args.beta2;
  const SimdTable::AdamWScalars scalars = {
      .decay = static_cast<float>(1.0 - lr * args.weight_decay),
      .beta1 = args.beta1,
      .one_minus_beta1 = static_cast<float>(1.0 - beta1),
      .beta2 = args.beta2,
      .one_minus_beta2 = static_cast<float>(1.0 - beta2),
      .eps = args.eps,
      .grad_scale = args.grad_scale,
      .step_size = static_cast<float>(lr / (1.0 - IntegerPower(beta1, args.t))),
      .sqrt_bias2 = static_cast<float>(std::sqrt(1.0 - IntegerPower(beta2, args.t))),
  };
  ctx.ParallelRange(args.n, kElementsPerPart, [&](int64_t begin, int64_t end, int) {
    ctx.simd().adamw(args, scalars, begin, end);
  });
}

}  // namespace soup::kernels::cpu
