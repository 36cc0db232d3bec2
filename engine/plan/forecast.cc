// The predicted time of a pass: the visit schedule played on two time lines, copies and compute.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/visit_schedule.h"

namespace soup::engine {
namespace {

// What a rate counts as when the profile has not measured it: low, so that a plan made blind is
// not a promise.
constexpr double kUnmeasuredFlops = 5e10;
constexpr double kUnmeasuredBytesPerSecond = 5e9;
// Attention runs at about this part of the GEMM rate (kernels/cpu, SmolLM2 shapes).
constexpr double kAttentionShare = 0.25;

double Rate(double measured, double unmeasured) { return measured > 0 ? measured : unmeasured; }

// Matrix elements of a layer, and those of them that a backward visit without retention runs again.
struct LayerElements {
  double all = 0;
  double again = 0;           // q k v, o, gate, up
  double prepared_twice = 0;  // q k v, o: widened or dequantised for the recompute and for dX
};

LayerElements CountElements(const ModelSpec& model) {
  const auto count = [&](Group g) {
    const GroupShape shape = MakeGroupShape(model, g);
    return static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
  };
  LayerElements n;
  n.prepared_twice = count(Group::kQkv) + count(Group::kO);
  n.again = n.prepared_twice + count(Group::kGateUp);
  n.all = n.again + count(Group::kDown);
  return n;
}

// Seconds of compute of one visit and of the turn between forward and backward.
struct VisitSeconds {
  double forward = 0;
  double backward = 0;
  double loss = 0;
};

VisitSeconds Compute(const ModelSpec& model, const std::vector<PassJob>& jobs, bool again,
                     const MachineProfile& profile, bool backward) {
  const LayerElements layer = CountElements(model);
  double forward_flops = 0, backward_flops = 0, head_flops = 0;
  double forward_attention = 0, backward_attention = 0;
  for (const PassJob& job : jobs) {
    const double adapter =
        static_cast<double>(AdapterElements(model, job.lora)) / static_cast<double>(model.layers);
    for (const PassItem& item : job.items) {
      const double t = static_cast<double>(item.tokens);
      const double forward = 2 * t * (layer.all + adapter);
      // Scores and values, half of the square: causal.
      const double attention = 2 * t * t / item.sequences * static_cast<double>(model.q_width());
      const double head = 2 * t * static_cast<double>(model.vocab * model.hidden);
      forward_flops += forward;
      forward_attention += attention;
      head_flops += head;
      if (!item.train) continue;
      head_flops += head;
      backward_flops += 2 * t * (layer.all + 2 * adapter);
      backward_attention += 2.5 * attention;
      if (again) {
        backward_flops += 2 * t * (layer.again + adapter);
        backward_attention += attention;
      }
    }
  }
  const double flops = Rate(profile.gemm_flops, kUnmeasuredFlops);
  const double prepare = Rate(profile.dequant_bytes_per_second, kUnmeasuredBytesPerSecond) / 4.0;
  VisitSeconds s;
  s.forward = (forward_flops + forward_attention / kAttentionShare) / flops + layer.all / prepare;
  s.loss = head_flops / flops + static_cast<double>(model.vocab * model.hidden) / prepare;
  if (backward) {
    s.backward = (backward_flops + backward_attention / kAttentionShare) / flops +
                 (layer.all + (again ? layer.prepared_twice : 0)) / prepare;
  }
  return s;
}

}  // namespace

absl::StatusOr<Forecast> ForecastPass(const ModelSpec& model, BaseFormat format,
                                      const std::vector<PassJob>& jobs, const Placement& placement,
                                      const MachineProfile& profile) {
  bool backward = false;
  int64_t tokens = 0;
  for (const PassJob& job : jobs) {
    for (const PassItem& item : job.items) {
      backward |= item.train;
      tokens += item.tokens;
    }
  }
  if (tokens == 0) return absl::InvalidArgumentError("a pass needs at least one work item");
  VisitScheduleParams params;
  params.layers = static_cast<int32_t>(model.layers);
  params.slots = placement.slots;
  params.resident_layers = placement.resident_layers;
  params.backward = backward;
  // The second pass of a run: its slots begin as the first has left them.
  SOUP_ASSIGN_OR_RETURN(const VisitSchedule first, MakeVisitSchedule(params));
  params.slot_layer_at_start = first.slot_layer_at_end;
  SOUP_ASSIGN_OR_RETURN(const VisitSchedule schedule, MakeVisitSchedule(params));

  const VisitSeconds seconds =
      Compute(model, jobs, placement.attention.device == 0, profile, backward);
  const double slab = static_cast<double>(MakeLayerLayout(model, format).bytes);
  const double rate = Rate(profile.copy_bytes_per_second, kUnmeasuredBytesPerSecond);
  const double slab_seconds = slab / rate;
  // On the CPU the copy stream is a thread of the same cores: what it takes, compute lacks.
  const double shared = profile.backend == "cpu" ? 1.0 / std::max(profile.cpu_threads, 1) : 0.0;

  Forecast forecast;
  double copy_free = 0, now = 0;
  std::vector<double> released(schedule.visits.size(), 0);
  for (size_t v = 0; v < schedule.visits.size(); ++v) {
    const Visit& visit = schedule.visits[v];
    const bool turn = visit.direction == Direction::kBackward && v > 0 &&
                      schedule.visits[v - 1].direction == Direction::kForward;
    if (turn || (!backward && v + 1 == schedule.visits.size())) now += seconds.loss;
    if (visit.copy) {
      const double may = visit.copy_after_visit < 0 ? 0 : released[visit.copy_after_visit];
      copy_free = std::max(copy_free, may) + slab_seconds;
      forecast.copy_seconds += slab_seconds;
      forecast.copy_bytes += static_cast<int64_t>(slab);
      forecast.stall_seconds += std::max(0.0, copy_free - now);
      now = std::max(now, copy_free) + slab_seconds * shared;
    }
    now += visit.direction == Direction::kForward ? seconds.forward : seconds.backward;
    released[v] = now;
  }
  if (!placement.head_resident) {
    // Slices stream beside the loss; only what the loss cannot hide is waited for.
    const double head = 2.0 * static_cast<double>(model.vocab * model.hidden);
    const double head_seconds = head / rate;
    forecast.copy_bytes += static_cast<int64_t>(head);
    forecast.copy_seconds += head_seconds;
    const double stall = std::max(0.0, head_seconds - seconds.loss);
    forecast.stall_seconds += stall;
    now += stall + head_seconds * shared;
  }
  forecast.step_seconds = now;
  forecast.tokens_per_second = static_cast<double>(tokens) / now;
  return forecast;
}

}  // namespace soup::engine
