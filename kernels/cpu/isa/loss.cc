#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {
namespace {

float RowMax(const float* x, int64_t n, float start) {
  F16 best = Set(start);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = Max(Load(x + i), best);
  if (i < n) best = Max(LoadFirst(x + i, n - i, start), best);
  return MaxLane(best);
}

// x = exp(x - m); returns the sum: blocks of 1024 in fp32 lanes, added in double.
double ExpAndSum(float* x, int64_t n, float m) {
  const F16 shift = Set(m);
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = n - begin < 1024 ? n : begin + 1024;
    F16 sum = Set(0.0f);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const F16 p = Exp(Load(x + i) - shift);
      Store(x + i, p);
      sum = sum + p;
    }
    float tail = 0.0f;
    if (i < end) {
      StoreFirst(x + i, Exp(LoadFirst(x + i, end - i) - shift), end - i);
      for (; i < end; ++i) tail += x[i];
    }
    total += static_cast<double>(Sum(sum)) + static_cast<double>(tail);
  }
  return total;
}

}  // namespace

void LossSliceLoop(const LossSliceArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* logits = args.logits + row * args.Vs;
    float* __restrict grad = args.with_grad ? args.grad + row * args.H : nullptr;
    const int64_t target = static_cast<int64_t>(args.targets[row]) - args.v0;
    if (args.first) args.target_logit[row] = 0.0f;
    if (target >= 0 && target < args.Vs) args.target_logit[row] = logits[target];

    const float old_max = args.first ? -__builtin_inff() : args.m[row];
    const float new_max = RowMax(logits, args.Vs, old_max);
    const double sum = ExpAndSum(logits, args.Vs, new_max);
    args.m[row] = new_max;
    if (args.first) {
      args.l[row] = static_cast<float>(sum);
      if (grad != nullptr) {
        for (int64_t i = 0; i < args.H; ++i) grad[i] = 0.0f;
      }
      continue;
    }
    float factor[kLanes];
    Store(factor, Exp(Set(old_max - new_max)));
    args.l[row] = static_cast<float>(static_cast<double>(args.l[row]) * factor[0] + sum);
    if (grad != nullptr) {
      for (int64_t i = 0; i < args.H; ++i) grad[i] *= factor[0];
    }
  }
}

void LossFinishLoop(const LossFinishArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const double log_sum = __builtin_log(static_cast<double>(args.l[row])) + args.m[row];
    args.loss[row] = static_cast<float>(log_sum - args.target_logit[row]);
    if (args.dh == nullptr) continue;
    const float* grad = args.grad + row * args.H;
    const float* target = static_cast<const float*>(args.target_row) + row * args.H;
    float* __restrict dh = static_cast<float*>(args.dh) + row * args.H;
    const float inverse = static_cast<float>(1.0 / static_cast<double>(args.l[row]));
    const float scale = args.scale;
    for (int64_t i = 0; i < args.H; ++i) dh[i] = (grad[i] * inverse - target[i]) * scale;
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
