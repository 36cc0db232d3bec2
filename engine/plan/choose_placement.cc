// Where the weights and activations of a pass live: the fastest placement that fits a budget.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/pass_buffers.h"
#include "engine/plan/pass_forecaster.h"
#include "engine/plan/pass_requests.h"

namespace soup::engine {
namespace {

constexpr int32_t kGridSteps = 16;     // of layer counts kept on the device
constexpr int32_t kHostGridSteps = 8;  // of the same where others keep in host memory
constexpr int32_t kHeadGridSteps = 4;  // of head slices that stay
constexpr int kMostRefinements = 64;
constexpr int kMostRetreats = 256;
// A placement must be so much better than one found before it: those with fewer moving parts come
// first.
constexpr double kBetter = 1 - 1e-6;
// And one that keeps something in host memory so much better than one that does not: it leans on
// the forecast of copies both ways, and takes memory that others may want.
constexpr double kHostBetter = 0.99;

bool UsesHost(const Placement& p) {
  return p.attention.host > 0 || p.mlp.host > 0 || p.boundaries_host || p.optimizer_host;
}

bool OnDevice(const std::vector<PassJob>& jobs) { return jobs.front().numeric.backend != "cpu"; }

// 0 .. layers in at most `steps` even steps.
std::vector<int32_t> Grid(int64_t layers, int32_t steps) {
  const int32_t n = static_cast<int32_t>(layers), stride = std::max(1, (n + steps - 1) / steps);
  std::vector<int32_t> grid;
  for (int32_t i = 0; i < n; i += stride) grid.push_back(i);
  grid.push_back(n);
  return grid;
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

class Chooser {
 public:
  Chooser(const ModelSpec& model, BaseFormat format, const std::vector<PassJob>& jobs,
          const PlacementLimits& limits, const MachineProfile& profile)
      : model_(model),
        format_(format),
        jobs_(jobs),
        limits_(limits),
        forecaster_(model, format, jobs, profile),
        layers_(static_cast<int32_t>(model.layers)),
        host_(OnDevice(jobs)) {
    slab_bytes_ = ArenaRoundUp(MakeLayerLayout(model, format).bytes);
    const int64_t rows = std::max<int64_t>(jobs.front().numeric.head_slice_rows, 1);
    most_head_slices_ = std::max<int32_t>(
        0, static_cast<int32_t>((model.vocab + rows - 1) / rows) - kHeadRingSlices);
    head_grid_ = {-1, 0};
    for (int32_t part = 1; part < kHeadGridSteps; ++part) {
      const int32_t slices = most_head_slices_ * part / kHeadGridSteps;
      if (slices > 0 && slices != head_grid_.back()) head_grid_.push_back(slices);
    }
  }

  absl::Status Search() {
    for (const bool boundaries_host : {false, true}) {
      if (boundaries_host && !host_) continue;
      Placement p;
      p.boundaries_host = boundaries_host;
      for (const int32_t attention : Grid(layers_, kGridSteps)) {
        for (const int32_t mlp : Grid(layers_, kGridSteps)) {
          p.attention = {attention, 0};
          p.mlp = {mlp, 0};
          SOUP_RETURN_IF_ERROR(Consider(p));
        }
      }
      if (host_) SOUP_RETURN_IF_ERROR(SearchHost(p));
      // Before boundaries in host memory are tried: the grid is coarse, and what has them must be
      // better than the best that has not.
      SOUP_RETURN_IF_ERROR(Refine());
    }
    return absl::OkStatus();
  }

  // Null: nothing fits.
  const std::optional<Placement>& best() const { return best_; }

  // The best, laid out. A layout may be larger than the lower bound: then some of what is kept
  // goes.
  absl::StatusOr<MemoryPlan> LayOut() {
    Placement p = *best_;
    for (int i = 0; i < kMostRetreats; ++i) {
      SOUP_ASSIGN_OR_RETURN(MemoryPlan plan, PlanMemory(model_, format_, jobs_, p));
      if (plan.device_bytes() <= limits_.device_bytes) {
        plan.placement = CanonicalPlacement(p, layers_);
        return plan;
      }
      if (!Retreat(p)) break;
    }
    return TooSmall();
  }

  absl::StatusOr<MemoryPlan> TooSmall() const {
    SOUP_ASSIGN_OR_RETURN(const int64_t least, MinimumArenaBytes(model_, format_, jobs_));
    return absl::ResourceExhaustedError(absl::StrCat(
        "the pass needs at least ", least, " bytes of device memory and has ", limits_.device_bytes,
        ": raise resources.vram to ", (least + (1 << 20) - 1) >> 20,
        " MiB or more, or lower data.max_length, lora.r or the number of targets"));
  }

 private:
  absl::Status SearchHost(Placement p) {
    for (const int32_t attention : Grid(layers_, kHostGridSteps)) {
      for (const int32_t mlp : Grid(layers_, kHostGridSteps)) {
        const int32_t attention_rest = layers_ - attention, mlp_rest = layers_ - mlp;
        for (const auto& [attention_host, mlp_host] :
             {std::make_pair(attention_rest, 0), std::make_pair(attention_rest / 2, 0),
              std::make_pair(0, mlp_rest), std::make_pair(attention_rest, mlp_rest / 2),
              std::make_pair(attention_rest, mlp_rest)}) {
          if (attention_host + mlp_host == 0) continue;
          p.attention = {attention, attention_host};
          p.mlp = {mlp, mlp_host};
          SOUP_RETURN_IF_ERROR(Consider(p));
        }
      }
    }
    return absl::OkStatus();
  }

  // Around the best, one layer more or less in one class and home.
  absl::Status Refine() {
    for (int i = 0; i < kMostRefinements && best_.has_value(); ++i) {
      const Placement from = *best_;
      if (!from.head_resident) {
        std::vector<int32_t> heads;
        for (const int32_t by : {-2, -1, 1, 2}) {
          const int32_t slices = from.head_slices + by;
          if (slices >= 0 && slices <= most_head_slices_) heads.push_back(slices);
        }
        SOUP_RETURN_IF_ERROR(Consider(from, heads));
      }
      for (const int32_t by : {4, 2, 1, -1, -2, -4}) {
        for (int32_t LayerSplit::*home : {&LayerSplit::device, &LayerSplit::host}) {
          for (LayerSplit Placement::*split : {&Placement::attention, &Placement::mlp}) {
            Placement p = from;
            if (home == &LayerSplit::host && !host_) continue;
            p.*split.*home += by;
            SOUP_RETURN_IF_ERROR(Consider(p, {from.head_resident ? -1 : from.head_slices, -1, 0}));
          }
        }
      }
      if (*best_ == from) break;
    }
    return absl::OkStatus();
  }

  // What the layers of `p` keep, with all that may be chosen beside it. `heads`: numbers of head
  // slices that stay; -1: the whole head.
  absl::Status Consider(Placement p) { return Consider(p, head_grid_); }
  absl::Status Consider(Placement p, const std::vector<int32_t>& heads) {
    const auto possible = [this](const LayerSplit& s) {
      return s.device >= 0 && s.host >= 0 && s.device + s.host <= layers_;
    };
    if (!possible(p.attention) || !possible(p.mlp)) return absl::OkStatus();
    p.slots = LeastSlots(layers_);
    p.resident_layers = 0;
    p.head_resident = p.optimizer_host = false;
    p.head_slices = 0;
    const PassRequests base = MakePassRequests(model_, format_, jobs_, p, /*named=*/false);
    if (HostBytes(base) > limits_.host_bytes) return absl::OkStatus();
    const int64_t tables = host_ ? PinnedTableBytes(ArenaLowerBound(base.host)) : 0;
    const int64_t least = ArenaLowerBound(base.device) + tables;
    for (const bool optimizer_host : {false, true}) {
      if (optimizer_host && !host_) continue;
      for (const int32_t slices : heads) {
        p.optimizer_host = optimizer_host;
        p.head_resident = slices < 0;
        p.head_slices = std::max(slices, 0);
        // Both lie in the part that lives throughout.
        const int64_t need = least + PersistentBytes(p) - base.persistent_bytes;
        if (need > limits_.device_bytes) continue;
        const int64_t more = (limits_.device_bytes - need) / slab_bytes_;
        p.slots = static_cast<int32_t>(std::min<int64_t>(layers_, LeastSlots(layers_) + more));
        SOUP_RETURN_IF_ERROR(ConsiderResident(p));
        p.slots = LeastSlots(layers_);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ConsiderResident(Placement p) {
    for (const int32_t resident : ResidentCandidates(model_, p.slots)) {
      p.resident_layers = resident;
      SOUP_ASSIGN_OR_RETURN(const Forecast forecast, forecaster_.Run(p));
      const double wanted =
          best_.has_value() && UsesHost(p) && !UsesHost(*best_) ? kHostBetter : kBetter;
      const double cost = PlacementCost(forecast);
      if (best_.has_value() && cost >= best_cost_ * wanted) continue;
      best_ = p;
      best_cost_ = cost;
    }
    return absl::OkStatus();
  }

  static int64_t HostBytes(const PassRequests& requests) {
    int64_t bytes = 0;
    for (const BufferRequest& r : requests.host) bytes += ArenaRoundUp(r.bytes);
    return bytes;
  }
  // By head and moments, for the least slots; they do not depend on what the layers keep.
  int64_t PersistentBytes(const Placement& p) {
    const int32_t head = p.head_resident ? -1 : p.head_slices;
    const auto known = persistent_.find({head, p.optimizer_host});
    if (known != persistent_.end()) return known->second;
    Placement plain;
    plain.slots = LeastSlots(layers_);
    plain.head_resident = p.head_resident;
    plain.head_slices = p.head_slices;
    plain.optimizer_host = p.optimizer_host;
    return persistent_[{head, p.optimizer_host}] =
               MakePassRequests(model_, format_, jobs_, plain, /*named=*/false).persistent_bytes;
  }

  // One step towards less memory; false: there is none.
  bool Retreat(Placement& p) const {
    if (p.slots > LeastSlots(layers_)) {
      if (p.slots == layers_) {
        p.resident_layers = std::max(0, p.slots - 3);
      } else if (p.resident_layers > 0) {
        --p.resident_layers;
      }
      --p.slots;
      return true;
    }
    for (int32_t* layers : {&p.mlp.device, &p.attention.device, &p.mlp.host, &p.attention.host}) {
      if (*layers == 0) continue;
      --*layers;
      return true;
    }
    if (p.head_resident || p.head_slices > 0) {
      p.head_resident = false;
      p.head_slices = 0;
      return true;
    }
    return false;
  }

  const ModelSpec& model_;
  const BaseFormat format_;
  const std::vector<PassJob>& jobs_;
  const PlacementLimits limits_;
  PassForecaster forecaster_;
  const int32_t layers_;
  const bool host_;  // whether host memory is another memory than the device's
  int64_t slab_bytes_ = 0;
  std::map<std::pair<int32_t, bool>, int64_t> persistent_;  // by head, moments on the host
  int32_t most_head_slices_ = 0;
  std::vector<int32_t> head_grid_;
  std::optional<Placement> best_;
  double best_cost_ = 0;
};

}  // namespace

absl::StatusOr<int64_t> MinimumArenaBytes(const ModelSpec& model, BaseFormat format,
                                          const std::vector<PassJob>& jobs) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Retention retention : {Retention::kRecompute, Retention::kKeep}) {
    for (const bool head_resident : {false, true}) {
      for (const bool host : {false, true}) {
        Placement placement;
        placement.slots = LeastSlots(model.layers);
        Retain(retention, &placement);
        placement.head_resident = head_resident;
        if (host && (jobs.empty() || !OnDevice(jobs))) continue;
        placement.boundaries_host = placement.optimizer_host = host;
        SOUP_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(model, format, jobs, placement));
        least = std::min(least, plan.device_bytes());
      }
    }
  }
  return least;
}

absl::StatusOr<MemoryPlan> ChoosePlacement(const ModelSpec& model, BaseFormat format,
                                           const std::vector<PassJob>& jobs,
                                           const PlacementLimits& limits,
                                           const MachineProfile& profile) {
  // Refuses what no placement could make possible.
  Placement least;
  least.slots = LeastSlots(model.layers);
  SOUP_RETURN_IF_ERROR(PlanMemory(model, format, jobs, least).status());
  for (const int64_t margin : {limits.device_bytes / kLayoutSlack, int64_t{0}}) {
    PlacementLimits within = limits;
    within.device_bytes -= margin;
    Chooser chooser(model, format, jobs, within, profile);
    SOUP_RETURN_IF_ERROR(chooser.Search());
    if (chooser.best().has_value()) return chooser.LayOut();
    if (margin == 0) return chooser.TooSmall();
  }
  return absl::InternalError("unreachable");
}

absl::StatusOr<MemoryPlan> ChoosePlacement(const ModelSpec& model, BaseFormat format,
                                           const std::vector<PassJob>& jobs, int64_t budget_bytes,
                                           const MachineProfile& profile) {
  return ChoosePlacement(model, format, jobs, PlacementLimits{budget_bytes}, profile);
}

}  // namespace soup::engine
