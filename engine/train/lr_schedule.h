// Learning rates of a run. Source of the formulas: transformers get_constant_schedule_with_warmup,
// get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup (half a cosine). Pure; any
// thread.
#ifndef SOUP_ENGINE_TRAIN_LR_SCHEDULE_H_
#define SOUP_ENGINE_TRAIN_LR_SCHEDULE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

enum class LrScheduler : uint8_t { kConstant, kLinear, kCosine };
const char* LrSchedulerName(LrScheduler scheduler);  // "constant" ...
absl::StatusOr<LrScheduler> ParseLrScheduler(absl::string_view name);

struct LrSchedule {
  LrScheduler scheduler = LrScheduler::kCosine;
  double peak = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  // Rate of update `k`, from 0. During warm-up peak * k / warmup_steps: update 0 of a run with
  // warm-up has rate 0, as in transformers.
  double At(int64_t k) const;
};

// ceil(warmup_ratio * total_steps) warm-up updates, as transformers' get_warmup_steps.
LrSchedule MakeLrSchedule(LrScheduler scheduler, double peak, double warmup_ratio,
                          int64_t total_steps);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_LR_SCHEDULE_H_
