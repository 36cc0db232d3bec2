// All that a job carries from one step to the next: the mirror and the checkpoint hold exactly
// this. Vectors are flat fp32 in the order of AdapterLayout. Plain values.
#ifndef SOUP_ENGINE_TRAIN_ADAPTER_STATE_H_
#define SOUP_ENGINE_TRAIN_ADAPTER_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace soup::engine {

// Borrows.
struct AdapterStateView {
  absl::Span<const float> weights;
  absl::Span<const float> exp_avg;
  absl::Span<const float> exp_avg_sq;
  int64_t step = 0;             // data cursor: steps taken, skipped ones included
  int64_t optimizer_steps = 0;  // AdamW's t: updates applied
  int64_t skipped = 0;          // steps that were not applied (gradient not finite)
  uint64_t plan_hash = 0;       // of the numeric plan under which the state was made
  absl::string_view stats;      // of the last step; opaque bytes
};

struct AdapterState {
  std::vector<float> weights;
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
  int64_t step = 0;
  int64_t optimizer_steps = 0;
  int64_t skipped = 0;
  uint64_t plan_hash = 0;
  std::string stats;

  AdapterStateView view() const {
    return {weights, exp_avg, exp_avg_sq, step, optimizer_steps, skipped, plan_hash, stats};
  }
};

// XXH3-64 of a numeric plan's text (NumericPlan::ToText).
uint64_t PlanHash(absl::string_view numeric_plan_text);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_ADAPTER_STATE_H_
