#include "engine/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr absl::Duration kWait = absl::Minutes(5);
constexpr double kClipEpsilon = 1e-6;  // torch.nn.utils.clip_grad_norm_
// A clipped gradient whose square would leave fp32 would make the second moment infinite.
constexpr double kLargestNorm = 1e18;

}  // namespace

absl::StatusOr<OptimizerResult> OptimizerStep(Backend* backend, const OptimizerConfig& config,
                                              const OptimizerState& state, int64_t t,
                                              double* sum_squares, bool force_skip) {
  backend->SumSquares({state.gradients, state.n, sum_squares});
  double sum = 0;
  SOUP_RETURN_IF_ERROR(backend->CopyToHostAsync(&sum, sum_squares, sizeof sum));
  SOUP_RETURN_IF_ERROR(backend->Synchronize(kWait));
  OptimizerResult result;
  result.grad_norm = std::sqrt(sum);
  double coefficient = 1;
  if (config.max_grad_norm > 0) {
    coefficient = std::min(1.0, config.max_grad_norm / (result.grad_norm + kClipEpsilon));
  }
  const bool finite =
      std::isfinite(result.grad_norm) && result.grad_norm * coefficient < kLargestNorm;
  if (!finite || force_skip) return result;
  kernels::AdamWArgs args;
  args.w = state.weights;
  args.m = state.first_moment;
  args.v = state.second_moment;
  args.g = state.gradients;
  args.n = state.n;
  args.lr = static_cast<float>(config.learning_rate);
  args.beta1 = static_cast<float>(config.beta1);
  args.beta2 = static_cast<float>(config.beta2);
  args.eps = static_cast<float>(config.epsilon);
  args.weight_decay = static_cast<float>(config.weight_decay);
  args.grad_scale = static_cast<float>(coefficient);
  args.t = t;
  backend->AdamW(args);
  SOUP_RETURN_IF_ERROR(backend->Synchronize(kWait));
  result.applied = true;
  return result;
}

}  // namespace soup::engine
