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

void CapRow(float* x, int64_t n, float cap) {
  const F16 vcap = Set(cap), inverse = Set(1.0f / cap);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(x + i, SoftCap(Load(x + i), vcap, inverse));
  if (i < n) StoreFirst(x + i, SoftCap(LoadFirst(x + i, n - i), vcap, inverse), n - i);
}

// x = exp(x - m), times the soft cap's slope at x when inverse_cap is not 0; returns the sum of the
// exponentials: blocks of 1024 in fp32 lanes, added in double.
double ExpAndSum(float* x, int64_t n, float m, float inverse_cap) {
  const F16 shift = Set(m), inverse = Set(inverse_cap);
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = n - begin < 1024 ? n : begin + 1024;
    F16 sum = Set(0.0f);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const F16 y = Load(x + i);
      const F16 p = Exp(y - shift);
      Store(x + i, inverse_cap == 0.0f ? p : p * SoftCapSlope(y, inverse));
      sum = sum + p;
    }
    float tail = 0.0f;
    if (i < end) {
      const F16 y = LoadFirst(x + i, end - i);
      const F16 p = Exp(y - shift);
      float lanes[kLanes];
      Store(lanes, p);
      for (int64_t k = 0; k < end - i; ++k) tail += lanes[k];
      StoreFirst(x + i, inverse_cap == 0.0f ? p : p * SoftCapSlope(y, inverse), end - i);
    }
    total += static_cast<double>(Sum(sum)) + static_cast<double>(tail);
  }
  return total;
}

}  // namespace

void LossSliceLoop(const LossSliceArgs& args, int64_t begin, int64_t end) {
  const float inverse_cap = args.soft_cap > 0 ? 1.0f / args.soft_cap : 0.0f;
  for (int64_t row = begin; row < end; ++row) {
    float* logits = args.logits + row * args.Vs;
    float* __restrict grad = args.with_grad ? args.grad + row * args.H : nullptr;
    const int64_t target = static_cast<int64_t>(args.targets[row]) - args.v0;
    if (args.soft_cap > 0) CapRow(logits, args.Vs, args.soft_cap);
    if (args.first) args.target_logit[row] = 0.0f;
    if (target >= 0 && target < args.Vs) args.target_logit[row] = logits[target];

    const float old_max = args.first ? -__builtin_inff() : args.m[row];
    const float new_max = RowMax(logits, args.Vs, old_max);
    const double sum = ExpAndSum(logits, args.Vs, new_max, inverse_cap);
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
    const float capped = args.soft_cap > 0 ? args.target_logit[row] / args.soft_cap : 0.0f;
    const float slope = 1.0f - capped * capped;
    for (int64_t i = 0; i < args.H; ++i) dh[i] = (grad[i] * inverse - target[i] * slope) * scale;
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
