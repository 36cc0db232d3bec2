// Where the weights and activations of a pass live: the fastest placement that fits a budget.
#include <algorithm>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/job_plan.h"

namespace soup::engine {
namespace {

constexpr Retention kRetentions[] = {Retention::kKeep, Retention::kRecompute};

int32_t LeastSlots(const ModelSpec& model) {
  return static_cast<int32_t>(std::min<int64_t>(2, model.layers));
}

// The most slots that fit; nothing when even the least do not. The plan grows with the slots.
absl::StatusOr<std::optional<Placement>> MostSlots(const ModelSpec& model, BaseFormat format,
                                                   const std::vector<PassJob>& jobs,
                                                   int64_t budget_bytes, Placement placement) {
  const auto fits = [&](int32_t slots) -> absl::StatusOr<bool> {
    placement.slots = slots;
    placement.resident_layers = 0;
    SOUP_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(model, format, jobs, placement));
    return plan.arena_bytes() <= budget_bytes;
  };
  int32_t low = LeastSlots(model), high = static_cast<int32_t>(model.layers);
  SOUP_ASSIGN_OR_RETURN(const bool any, fits(low));
  if (!any) return std::optional<Placement>();
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    SOUP_ASSIGN_OR_RETURN(const bool ok, fits(middle));
    if (ok) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  placement.slots = low;
  return std::optional<Placement>(placement);
}

// Resident counts worth looking at for a number of slots: all in the ring, or all but a ring of two
// or three.
std::vector<int32_t> ResidentCandidates(const ModelSpec& model, int32_t slots) {
  if (slots == model.layers) return {slots};
  std::vector<int32_t> candidates = {0};
  for (int32_t ring : {3, 2}) {
    if (slots - ring > 0) candidates.push_back(slots - ring);
  }
  return candidates;
}

}  // namespace

absl::StatusOr<int64_t> MinimumArenaBytes(const ModelSpec& model, BaseFormat format,
                                          const std::vector<PassJob>& jobs) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Retention retention : kRetentions) {
    for (const bool head_resident : {false, true}) {
      Placement placement;
      placement.slots = LeastSlots(model);
      Retain(retention, &placement);
      placement.head_resident = head_resident;
      SOUP_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(model, format, jobs, placement));
      least = std::min(least, plan.arena_bytes());
    }
  }
  return least;
}

absl::StatusOr<MemoryPlan> ChoosePlacement(const ModelSpec& model, BaseFormat format,
                                           const std::vector<PassJob>& jobs, int64_t budget_bytes,
                                           const MachineProfile& profile) {
  std::optional<Placement> best;
  double best_seconds = 0;
  for (const Retention retention : kRetentions) {
    for (const bool head_resident : {true, false}) {
      Placement wanted;
      Retain(retention, &wanted);
      wanted.head_resident = head_resident;
      SOUP_ASSIGN_OR_RETURN(std::optional<Placement> placement,
                            MostSlots(model, format, jobs, budget_bytes, wanted));
      if (!placement.has_value()) continue;
      for (const int32_t resident : ResidentCandidates(model, placement->slots)) {
        placement->resident_layers = resident;
        SOUP_ASSIGN_OR_RETURN(const Forecast forecast,
                              ForecastPass(model, format, jobs, *placement, profile));
        if (best.has_value() && forecast.step_seconds >= best_seconds) continue;
        best = *placement;
        best_seconds = forecast.step_seconds;
      }
    }
  }
  if (!best.has_value()) {
    SOUP_ASSIGN_OR_RETURN(const int64_t least, MinimumArenaBytes(model, format, jobs));
    return absl::ResourceExhaustedError(
        absl::StrCat("the pass needs at least ", least, " bytes of device memory and has ",
                     budget_bytes, ": raise resources.vram to ", (least + (1 << 20) - 1) >> 20,
                     " MiB or more, or lower data.max_length, lora.r or the number of targets"));
  }
  return PlanMemory(model, format, jobs, *best);
}

}  // namespace soup::engine
