// The placement of a whole run: one home for the weights, chosen by the passes as they come, and
// for each pass what its size leaves room to keep.
#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/plan/arena_layout.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/pass_buffers.h"
#include "engine/plan/pass_forecaster.h"

namespace soup::engine {
namespace {

// Passes, by their tokens, whose own placements are tried for the run.
constexpr double kTriedQuantiles[] = {0.5, 0.9};
// Another home for the weights must be so much better than the largest pass's own choice, which
// rests on fewer forecasts.
constexpr double kBetter = 0.99;
constexpr int kMostCuts = 64;
constexpr double kUsefulShare = 0.99;

int64_t TokensOf(const std::vector<PassJob>& jobs) {
  int64_t tokens = 0;
  for (const PassJob& job : jobs) {
    for (const PassItem& item : job.items) tokens += item.tokens;
  }
  return tokens;
}

bool Trains(const std::vector<PassJob>& jobs) {
  return std::any_of(jobs.begin(), jobs.end(), [](const PassJob& job) {
    return std::any_of(job.items.begin(), job.items.end(),
                       [](const PassItem& item) { return item.train; });
  });
}

class RunChooser {
 public:
  RunChooser(const ModelSpec& model, BaseFormat format, const RunPasses& run,
             const PlacementLimits& limits, const MachineProfile& profile)
      : model_(model), format_(format), run_(run), limits_(limits), profile_(profile) {
    limits_.device_bytes -= limits_.device_bytes / kLayoutSlack;
    forecasters_.reserve(run.sampled.size());
    for (const std::vector<PassJob>& pass : run.sampled) {
      forecasters_.emplace_back(model, format, pass, profile);
    }
  }

  absl::StatusOr<RunPlan> Choose(MemoryPlan first) {
    SOUP_ASSIGN_OR_RETURN(Told told, Tell(std::move(first)));
    if (AllAlike() || Settled(told)) return std::move(told.plan);
    RunPlan best = std::move(told.plan);
    std::vector<Placement> homes = {best.largest.placement};
    for (const double quantile : kTriedQuantiles) {
      const auto chosen =
          ChoosePlacement(model_, format_, run_.sampled[PassAt(quantile)], limits_, profile_);
      if (chosen.ok()) homes.push_back(chosen->placement);
    }
    for (const Placement& home : homes) {
      for (const Placement& p : Retentions(home, homes.front())) {
        const std::optional<MemoryPlan> fitted = Fit(p);
        if (!fitted.has_value()) continue;
        SOUP_ASSIGN_OR_RETURN(Told other, Tell(*fitted));
        if (PlacementCost(other.plan.step) < kBetter * PlacementCost(best.step)) {
          best = std::move(other.plan);
        }
      }
    }
    return best;
  }

 private:
  struct Told {
    RunPlan plan;
    bool all_kept = true;  // on the device, by every sampled pass
  };

  bool AllAlike() const {
    return std::all_of(run_.sampled.begin(), run_.sampled.end(), [this](const auto& pass) {
      return TokensOf(pass) == TokensOf(run_.largest);
    });
  }

  // Nothing is left to win: no sampled pass makes anything again or has any in host memory, and
  // copies keep nobody waiting.
  static bool Settled(const Told& told) {
    const Forecast& step = told.plan.step;
    return told.all_kept && step.stall_seconds < (1 - kBetter) * step.step_seconds;
  }

  size_t PassAt(double quantile) const {
    std::vector<std::pair<int64_t, size_t>> by_tokens;
    for (size_t i = 0; i < run_.sampled.size(); ++i) {
      by_tokens.emplace_back(TokensOf(run_.sampled[i]), i);
    }
    std::sort(by_tokens.begin(), by_tokens.end());
    const auto last = static_cast<double>(by_tokens.size() - 1);
    return by_tokens[static_cast<size_t>(quantile * last)].second;
  }

  // What the largest pass could keep at least, with the weights as in `home`.
  std::vector<Placement> Retentions(const Placement& home, const Placement& first) const {
    std::vector<Placement> all;
    const auto add = [&](LayerSplit attention, LayerSplit mlp, bool boundaries_host) {
      Placement p = home;
      p.attention = attention;
      p.mlp = mlp;
      p.boundaries_host = boundaries_host;
      all.push_back(p);
    };
    constexpr LayerSplit kAgain = {0, 0}, kHost = {0, kAllLayers};
    add(first.attention, first.mlp, first.boundaries_host);
    add(kAgain, kAgain, false);
    if (run_.largest.front().numeric.backend == "cpu") return all;  // the arena is host memory
    add(kHost, kAgain, false);
    add(kHost, kHost, false);
    add(kHost, kHost, true);
    return all;
  }

  // The largest pass under `p`, or under fewer slots, with all that there is then room to keep.
  std::optional<MemoryPlan> Fit(const Placement& wanted) const {
    Placement p = NormalPlacement(wanted, model_.layers);
    const int64_t slab = ArenaRoundUp(MakeLayerLayout(model_, format_).bytes);
    for (int i = 0; i < kMostCuts; ++i) {
      const absl::StatusOr<MemoryPlan> plan = PlanMemory(model_, format_, run_.largest, p);
      if (!plan.ok() || plan->host_bytes() > limits_.host_bytes) return std::nullopt;
      const int64_t over = plan->device_bytes() - limits_.device_bytes;
      if (over <= 0) {
        const auto kept =
            KeepMore(model_, format_, run_.largest, p, limits_.device_bytes - plan->table_bytes);
        return kept.ok() ? std::optional<MemoryPlan>(*kept) : std::nullopt;
      }
      const auto cut = static_cast<int32_t>(std::min<int64_t>((over + slab - 1) / slab, p.slots));
      if (p.slots - cut < LeastSlots(model_.layers)) return std::nullopt;
      p.slots -= cut;
      p.resident_layers = std::max(0, std::min(p.resident_layers, p.slots - 2));
    }
    return std::nullopt;
  }

  // Mean of the sampled steps under the plan of the largest pass, whose arena is held.
  absl::StatusOr<Told> Tell(MemoryPlan largest) {
    Told told;
    Forecast& mean = told.plan.step;
    double tokens = 0;
    const auto steps = static_cast<double>(run_.steps);
    for (size_t i = 0; i < run_.sampled.size(); ++i) {
      SOUP_ASSIGN_OR_RETURN(
          const MemoryPlan pass,
          KeepMore(model_, format_, run_.sampled[i], largest.placement, largest.arena_bytes()));
      SOUP_ASSIGN_OR_RETURN(const Forecast f,
                            forecasters_[i].Run(NormalPlacement(pass.placement, model_.layers)));
      told.all_kept = told.all_kept && pass.placement.attention.device == kAllLayers &&
                      pass.placement.mlp.device == kAllLayers && !pass.placement.boundaries_host;
      mean.step_seconds += f.step_seconds / steps;
      mean.copy_seconds += f.copy_seconds / steps;
      mean.stall_seconds += f.stall_seconds / steps;
      mean.copy_bytes += f.copy_bytes / run_.steps;
      mean.offload_bytes += f.offload_bytes / run_.steps;
      tokens += f.tokens_per_second * f.step_seconds / steps;
    }
    if (mean.step_seconds > 0) mean.tokens_per_second = tokens / mean.step_seconds;
    told.plan.largest = std::move(largest);
    return told;
  }

  const ModelSpec& model_;
  const BaseFormat format_;
  const RunPasses& run_;
  PlacementLimits limits_;
  const MachineProfile& profile_;
  std::vector<PassForecaster> forecasters_;
};

}  // namespace

absl::StatusOr<MemoryPlan> KeepMore(const ModelSpec& model, BaseFormat format,
                                    const std::vector<PassJob>& jobs, const Placement& placement,
                                    int64_t arena_bytes) {
  SOUP_ASSIGN_OR_RETURN(MemoryPlan best, PlanMemory(model, format, jobs, placement));
  const auto layers = static_cast<int32_t>(model.layers);
  Placement p = NormalPlacement(placement, layers);
  best.placement = CanonicalPlacement(p, layers);
  if (!Trains(jobs) || best.arena_bytes() >= arena_bytes) return best;
  const auto take = [&](const Placement& more) {
    absl::StatusOr<MemoryPlan> plan = PlanMemory(model, format, jobs, more);
    if (!plan.ok() || plan->arena_bytes() > arena_bytes) return false;
    best = *std::move(plan);
    p = more;
    return true;
  };
  if (p.boundaries_host) {
    Placement more = p;
    more.boundaries_host = false;
    take(more);
  }
  for (LayerSplit Placement::*split : {&Placement::mlp, &Placement::attention}) {
    const LayerSplit before = p.*split;
    const auto take_layers = [&](int32_t device) {
      Placement more = p;
      more.*split = {device, std::min(before.host, layers - device)};
      return take(more);
    };
    if (before.device == layers || take_layers(layers)) continue;
    int32_t low = before.device, high = layers - 1;  // `low` fits
    while (low < high) {
      const int32_t middle = (low + high + 1) / 2;
      if (take_layers(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
  }
  best.placement = CanonicalPlacement(p, layers);
  return best;
}

absl::StatusOr<RunPlan> ChoosePlacementForRun(const ModelSpec& model, BaseFormat format,
                                              const RunPasses& run, const PlacementLimits& limits,
                                              const MachineProfile& profile) {
  if (run.sampled.empty() || run.steps <= 0) {
    return absl::InvalidArgumentError("a run needs a sampled pass");
  }
  SOUP_ASSIGN_OR_RETURN(MemoryPlan first,
                        ChoosePlacement(model, format, run.largest, limits, profile));
  return RunChooser(model, format, run, limits, profile).Choose(std::move(first));
}

absl::StatusOr<std::optional<NextBudget>> NextUsefulBudget(const ModelSpec& model,
                                                           BaseFormat format, const RunPasses& run,
                                                           const PlacementLimits& limits,
                                                           const MachineProfile& profile) {
  const auto seconds_under = [&](int64_t bytes) -> absl::StatusOr<double> {
    PlacementLimits with = limits;
    with.device_bytes = bytes;
    SOUP_ASSIGN_OR_RETURN(const RunPlan plan,
                          ChoosePlacementForRun(model, format, run, with, profile));
    return plan.step.step_seconds;
  };
  SOUP_ASSIGN_OR_RETURN(const double now, seconds_under(limits.device_bytes));
  const double wanted = now * kUsefulShare;
  Placement all;
  all.slots = static_cast<int32_t>(model.layers);
  all.resident_layers = all.slots;
  all.head_resident = true;
  Retain(Retention::kKeep, &all);
  SOUP_ASSIGN_OR_RETURN(const MemoryPlan most, PlanMemory(model, format, run.largest, all));
  int64_t low = limits.device_bytes, high = std::max(low, most.device_bytes());
  SOUP_ASSIGN_OR_RETURN(double seconds, seconds_under(high));
  if (seconds > wanted) return std::optional<NextBudget>();
  while (high - low > low / 100) {
    const int64_t middle = low + (high - low) / 2;
    SOUP_ASSIGN_OR_RETURN(const double there, seconds_under(middle));
    if (there <= wanted) {
      high = middle;
      seconds = there;
    } else {
      low = middle;
    }
  }
  return std::optional<NextBudget>(NextBudget{high, seconds});
}

}  // namespace soup::engine
