#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {

void RmsNormForwardLoop(const RmsNormForwardArgs& args, int64_t begin, int64_t end) {
  const int64_t H = args.H;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = static_cast<const float*>(args.x) + t * H;
    float* __restrict y = static_cast<float*>(args.y) + t * H;
    const double mean = Dot(x, x, H) / static_cast<double>(H);
    const float rstd = static_cast<float>(1.0 / __builtin_sqrt(mean + args.eps));
    args.rstd[t] = rstd;
    for (int64_t i = 0; i < H; ++i) y[i] = (x[i] * rstd) * WidenBf16(args.weight[i]);
  }
}

// With n = x * rstd and g = dy * w:  dx = rstd * (g - n * mean(g * n)).
void RmsNormBackwardLoop(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  const int64_t H = args.H;
  for (int64_t t = begin; t < end; ++t) {
    const float* dy = static_cast<const float*>(args.dy) + t * H;
    const float* x = static_cast<const float*>(args.x) + t * H;
    float* __restrict dx = static_cast<float*>(args.dx) + t * H;
    const float rstd = args.rstd[t];
    double dot = 0.0;  // sum of dy * w * x
    float product[1024];
    for (int64_t b = 0; b < H; b += 1024) {
      const int64_t n = H - b < 1024 ? H - b : 1024;
      for (int64_t i = 0; i < n; ++i) product[i] = dy[b + i] * WidenBf16(args.weight[b + i]);
      dot += Dot(product, x + b, n);
    }
    const float c = static_cast<float>(dot * rstd * rstd / static_cast<double>(H));
    if (args.accumulate) {
      for (int64_t i = 0; i < H; ++i) {
        dx[i] += rstd * (dy[i] * WidenBf16(args.weight[i]) - x[i] * c);
      }
    } else {
      for (int64_t i = 0; i < H; ++i) {
        dx[i] = rstd * (dy[i] * WidenBf16(args.weight[i]) - x[i] * c);
      }
    }
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
