#include "engine/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace soup::engine {

const char* LrSchedulerName(LrScheduler scheduler) {
  switch (scheduler) {
    case LrScheduler::kConstant:
      return "constant";
    case LrScheduler::kLinear:
      return "linear";
    case LrScheduler::kCosine:
      return "cosine";
  }
  return "?";
}

absl::StatusOr<LrScheduler> ParseLrScheduler(absl::string_view name) {
  for (const auto s : {LrScheduler::kConstant, LrScheduler::kLinear, LrScheduler::kCosine}) {
    if (name == LrSchedulerName(s)) return s;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("scheduler \"", name, "\" is not known; use constant, linear or cosine"));
}

double LrSchedule::At(int64_t k) const {
  if (k < warmup_steps) return peak * static_cast<double>(k) / static_cast<double>(warmup_steps);
  const double rest = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  switch (scheduler) {
    case LrScheduler::kConstant:
      return peak;
    case LrScheduler::kLinear:
      return peak * std::max(0.0, static_cast<double>(total_steps - k) / rest);
    case LrScheduler::kCosine: {
      const double progress = static_cast<double>(k - warmup_steps) / rest;
      return peak * std::max(0.0, 0.5 * (1.0 + std::cos(M_PI * progress)));
    }
  }
  return peak;
}

LrSchedule MakeLrSchedule(LrScheduler scheduler, double peak, double warmup_ratio,
                          int64_t total_steps) {
  LrSchedule s;
  s.scheduler = scheduler;
  s.peak = peak;
  s.total_steps = total_steps;
  s.warmup_steps = static_cast<int64_t>(
      std::ceil(std::max(0.0, warmup_ratio) * static_cast<double>(total_steps)));
  return s;
}

}  // namespace soup::engine
