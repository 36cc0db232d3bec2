#include "engine/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr absl::Duration kWait = absl::Minutes(5);
constexpr int64_t kF32Bytes = 4;
constexpr double kClipEpsilon = 1e-6;  // torch.nn.utils.clip_grad_norm_
// A clipped gradient whose square would leave fp32 would make the second moment infinite.
constexpr double kLargestNorm = 1e18;

kernels::AdamWArgs Part(kernels::AdamWArgs args, int64_t first, int64_t n, float* m, float* v) {
  args.w += first;
  args.g += first;
  args.m = m;
  args.v = v;
  args.n = n;
  return args;
}

// The update with moments that come from host memory and go back there, chunk by chunk through two
// places.
class HostMoments {
 public:
  HostMoments(Backend* backend, const OptimizerState& state) : backend_(backend), state_(state) {
    for (int i = 0; i < 2; ++i) {
      filled_[i] = backend->MakeEvent();
      used_[i] = backend->MakeEvent();
    }
  }

  absl::Status Update(const kernels::AdamWArgs& args) {
    const int64_t chunks = (state_.n + state_.chunk - 1) / state_.chunk;
    SOUP_RETURN_IF_ERROR(Fetch(0));
    for (int64_t c = 0; c < chunks; ++c) {
      if (c + 1 < chunks) SOUP_RETURN_IF_ERROR(Fetch(c + 1));
      SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->compute_stream(), filled_[c % 2]));
      backend_->AdamW(Part(args, First(c), Elements(c), Moment(c, 0), Moment(c, 1)));
      SOUP_RETURN_IF_ERROR(backend_->Record(used_[c % 2], backend_->compute_stream()));
      SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->offload_stream(), used_[c % 2]));
      for (int i = 0; i < 2; ++i) {
        SOUP_RETURN_IF_ERROR(
            backend_->OffloadAsync(Host(i) + First(c), Moment(c, i), Elements(c) * kF32Bytes));
      }
    }
    return absl::OkStatus();
  }

 private:
  // The place of chunk c is free: what it held has gone back on the same stream.
  absl::Status Fetch(int64_t c) {
    for (int i = 0; i < 2; ++i) {
      SOUP_RETURN_IF_ERROR(backend_->CopyToDeviceAsync(
          Moment(c, i), Host(i) + First(c), Elements(c) * kF32Bytes, backend_->offload_stream()));
    }
    return backend_->Record(filled_[c % 2], backend_->offload_stream());
  }
  int64_t First(int64_t c) const { return c * state_.chunk; }
  int64_t Elements(int64_t c) const { return std::min(state_.chunk, state_.n - First(c)); }
  float* Moment(int64_t c, int i) const { return state_.chunks + (c % 2 * 2 + i) * state_.chunk; }
  float* Host(int i) const { return i == 0 ? state_.host_first_moment : state_.host_second_moment; }

  Backend* backend_;
  const OptimizerState& state_;
  Event filled_[2];
  Event used_[2];
};

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
  if (state.chunks != nullptr) {
    SOUP_RETURN_IF_ERROR(HostMoments(backend, state).Update(args));
  } else {
    backend->AdamW(args);
  }
  SOUP_RETURN_IF_ERROR(backend->Synchronize(kWait));
  result.applied = true;
  return result;
}

}  // namespace soup::engine
