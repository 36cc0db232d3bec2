// One optimizer step of a job: global norm of the gradient, clip, AdamW, all in fp32 on the device
// and in fixed order. A gradient that is not finite is not applied.
#ifndef SOUP_ENGINE_TRAIN_OPTIMIZER_H_
#define SOUP_ENGINE_TRAIN_OPTIMIZER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/backend.h"

namespace soup::engine {

struct OptimizerConfig {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double max_grad_norm = 0;  // 0: no clipping
};

// Device, fp32 [n] each. Or the moments in a host arena: they pass through `chunks` (device, fp32
// [2, 2, chunk]) on the offload stream, with the same bits, since the update is elementwise.
struct OptimizerState {
  float* weights = nullptr;
  float* gradients = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  int64_t n = 0;
  float* host_first_moment = nullptr;
  float* host_second_moment = nullptr;
  float* chunks = nullptr;  // null: the moments are on the device
  int64_t chunk = 0;        // elements
};

struct OptimizerResult {
  double grad_norm = 0;  // before clipping
  bool applied = false;  // false: not finite; the state is as before
};

// `t`: number of this update, from 1. `sum_squares`: device scratch, one double. `force_skip`: only
// the norm is taken (the loss was not finite). Waits for the device once. Errors: those of the
// device.
absl::StatusOr<OptimizerResult> OptimizerStep(Backend* backend, const OptimizerConfig& config,
                                              const OptimizerState& state, int64_t t,
                                              double* sum_squares, bool force_skip);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_OPTIMIZER_H_
