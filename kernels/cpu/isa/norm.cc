#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {

namespace {

SOUP_INLINE float Rstd(const float* x, int64_t n, float eps) {
  return static_cast<float>(1.0 / __builtin_sqrt(Dot(x, x, n) / static_cast<double>(n) + eps));
}

// dx (+)= rstd * (g - n * mean(g * n)) with n = x * rstd and g = dy * w. dx may be dy.
void BackwardRow(const float* dy, const float* x, const uint16_t* weight, float offset, float rstd,
                 int64_t n, bool accumulate, float* dx) {
  double dot = 0.0;  // sum of dy * w * x
  float product[1024];
  for (int64_t b = 0; b < n; b += 1024) {
    const int64_t count = n - b < 1024 ? n - b : 1024;
    for (int64_t i = 0; i < count; ++i) {
      product[i] = dy[b + i] * (WidenBf16(weight[b + i]) + offset);
    }
    dot += Dot(product, x + b, count);
  }
  const float c = static_cast<float>(dot * rstd * rstd / static_cast<double>(n));
  if (accumulate) {
    for (int64_t i = 0; i < n; ++i) {
      dx[i] += rstd * (dy[i] * (WidenBf16(weight[i]) + offset) - x[i] * c);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      dx[i] = rstd * (dy[i] * (WidenBf16(weight[i]) + offset) - x[i] * c);
    }
  }
}

}  // namespace

void RmsNormForwardLoop(const RmsNormForwardArgs& args, int64_t begin, int64_t end) {
  const int64_t H = args.H;
  const float offset = args.weight_offset;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = static_cast<const float*>(args.x) + t * H;
    float* __restrict y = static_cast<float*>(args.y) + t * H;
    const float rstd = Rstd(x, H, args.eps);
    if (args.rstd != nullptr) args.rstd[t] = rstd;
    if (args.accumulate) {
      for (int64_t i = 0; i < H; ++i) y[i] += (x[i] * rstd) * (WidenBf16(args.weight[i]) + offset);
    } else {
      for (int64_t i = 0; i < H; ++i) y[i] = (x[i] * rstd) * (WidenBf16(args.weight[i]) + offset);
    }
  }
}

void RmsNormBackwardLoop(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  const int64_t H = args.H;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = static_cast<const float*>(args.x) + t * H;
    const float rstd = args.rstd != nullptr ? args.rstd[t] : Rstd(x, H, args.eps);
    if (args.rstd_out != nullptr) args.rstd_out[t] = rstd;
    BackwardRow(static_cast<const float*>(args.dy) + t * H, x, args.weight, args.weight_offset,
                rstd, H, args.accumulate, static_cast<float*>(args.dx) + t * H);
  }
}

void HeadNormForwardLoop(const HeadNormForwardArgs& args, int64_t begin, int64_t end) {
  const int64_t D = args.D;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < args.heads; ++h) {
      const int64_t at = t * args.row_stride + h * D;
      float* __restrict x = static_cast<float*>(args.x) + at;
      float* __restrict saved = static_cast<float*>(args.saved) + at;
      const float rstd = Rstd(x, D, args.eps);
      for (int64_t i = 0; i < D; ++i) {
        const float value = x[i];
        saved[i] = value;
        x[i] = (value * rstd) * (WidenBf16(args.weight[i]) + args.weight_offset);
      }
    }
  }
}

void HeadNormBackwardLoop(const HeadNormBackwardArgs& args, int64_t begin, int64_t end) {
  const int64_t D = args.D;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < args.heads; ++h) {
      const float* x = static_cast<const float*>(args.x) + t * args.row_stride + h * D;
      float* dx = static_cast<float*>(args.dx) + t * args.grad_row_stride + h * D;
      BackwardRow(dx, x, args.weight, args.weight_offset, Rstd(x, D, args.eps), D, false, dx);
    }
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
