#include "engine/plan/visit_schedule.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr int32_t kNothing = -1;

absl::Status CheckParams(const VisitScheduleParams& p) {
  if (p.layers < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a pass needs layers, not ", p.layers));
  }
  if (p.slots < std::min(2, p.layers)) {
    return absl::InvalidArgumentError(absl::StrCat("a pass over ", p.layers, " layers needs ",
                                                   std::min(2, p.layers), " slots, not ", p.slots));
  }
  if (p.resident_layers < 0 || p.resident_layers > std::min(p.layers, p.slots)) {
    return absl::InvalidArgumentError(absl::StrCat(p.resident_layers, " resident layers do not go ",
                                                   "with ", p.layers, " layers and ", p.slots,
                                                   " slots"));
  }
  const int32_t ring = p.slots - p.resident_layers;
  if (p.slots < p.layers && ring < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(p.slots, " slots with ", p.resident_layers, " resident layers leave ", ring,
                     " for the ring of ", p.layers, " layers; at least 2 are needed"));
  }
  if (p.slot_layer_at_start.empty()) return absl::OkStatus();
  if (p.slot_layer_at_start.size() != static_cast<size_t>(p.slots)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slot_layer_at_start names ", p.slot_layer_at_start.size(), " slots of ", p.slots));
  }
  std::vector<bool> seen(static_cast<size_t>(p.layers), false);
  for (int32_t layer : p.slot_layer_at_start) {
    if (layer == kNothing) continue;
    if (layer < 0 || layer >= p.layers || seen[static_cast<size_t>(layer)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot_layer_at_start holds layer ", layer, " of ", p.layers,
                       layer >= 0 && layer < p.layers ? " twice" : ""));
    }
    seen[static_cast<size_t>(layer)] = true;
  }
  return absl::OkStatus();
}

// The layer of every visit of a pass.
std::vector<int32_t> LayersOfPass(int32_t layers, bool backward) {
  std::vector<int32_t> order;
  for (int32_t l = 0; l < layers; ++l) order.push_back(l);
  if (backward) {
    for (int32_t l = layers - 1; l >= 0; --l) order.push_back(l);
  }
  return order;
}

// next[v]: how many visits lie between visit v and the next of the same layer, the pass repeated.
// Every layer is visited in each pass, so the next pass is as far as one must look.
std::vector<int32_t> NextVisit(const std::vector<int32_t>& order, int32_t layers) {
  const int32_t n = static_cast<int32_t>(order.size());
  std::vector<int32_t> next(order.size());
  std::vector<int32_t> seen_at(static_cast<size_t>(layers), -1);
  for (int32_t v = 2 * n - 1; v >= 0; --v) {
    int32_t& seen = seen_at[static_cast<size_t>(order[static_cast<size_t>(v % n)])];
    if (v < n) next[static_cast<size_t>(v)] = seen;
    seen = v;
  }
  return next;
}

// One pass under construction.
class Builder {
 public:
  explicit Builder(const VisitScheduleParams& p)
      : order_(LayersOfPass(p.layers, p.backward)),
        next_visit_(NextVisit(order_, p.layers)),
        used_slots_(std::min(p.slots, p.layers)),
        resident_(p.resident_layers),
        slot_of_layer_(static_cast<size_t>(p.layers), kNothing),
        slots_(static_cast<size_t>(p.slots)),
        is_resident_(static_cast<size_t>(p.layers), false) {
    std::vector<int32_t> first_visit(static_cast<size_t>(p.layers), 0);
    for (int32_t v = static_cast<int32_t>(order_.size()) - 1; v >= 0; --v) {
      first_visit[static_cast<size_t>(order_[static_cast<size_t>(v)])] = v;
    }
    const std::vector<int32_t> resident = ResidentLayers(p.layers, p.resident_layers);
    for (size_t s = 0; s < resident.size(); ++s) {
      is_resident_[static_cast<size_t>(resident[s])] = true;
      slot_of_layer_[static_cast<size_t>(resident[s])] = static_cast<int32_t>(s);
    }
    for (size_t s = 0; s < p.slot_layer_at_start.size(); ++s) {
      const int32_t layer = p.slot_layer_at_start[s];
      if (layer == kNothing || static_cast<int32_t>(s) >= used_slots_) continue;
      // A resident slot keeps only its own layer; the ring keeps no second copy of a resident one.
      const bool wanted =
          static_cast<int32_t>(s) < resident_
              ? slot_of_layer_[static_cast<size_t>(layer)] == static_cast<int32_t>(s)
              : !is_resident_[static_cast<size_t>(layer)];
      if (!wanted) continue;
      slots_[s].layer = layer;
      slots_[s].next_visit = first_visit[static_cast<size_t>(layer)];
      slot_of_layer_[static_cast<size_t>(layer)] = static_cast<int32_t>(s);
    }
  }

  VisitSchedule Build() {
    VisitSchedule schedule;
    const size_t visits = order_.size();
    for (size_t v = 0; v < visits; ++v) {
      Visit visit;
      visit.layer = order_[v];
      visit.direction = v < slot_of_layer_.size() ? Direction::kForward : Direction::kBackward;
      visit.slot = SlotFor(static_cast<int32_t>(v));
      Slot& slot = slots_[static_cast<size_t>(visit.slot)];
      if (slot.layer != visit.layer) {
        visit.copy = true;
        visit.copy_after_visit = slot.last_visit;
        if (slot.layer != kNothing && !is_resident_[static_cast<size_t>(slot.layer)]) {
          slot_of_layer_[static_cast<size_t>(slot.layer)] = kNothing;
        }
        slot.layer = visit.layer;
        slot_of_layer_[static_cast<size_t>(visit.layer)] = visit.slot;
        ++schedule.copies;
      }
      slot.last_visit = static_cast<int32_t>(v);
      slot.next_visit = next_visit_[v];
      schedule.visits.push_back(visit);
    }
    for (const Slot& slot : slots_) schedule.slot_layer_at_end.push_back(slot.layer);
    return schedule;
  }

 private:
  struct Slot {
    int32_t layer = kNothing;
    int32_t next_visit = 0;
    int32_t last_visit = -1;
  };

  // The slot that visit v finds or gets its layer in.
  int32_t SlotFor(int32_t v) const {
    const int32_t held = slot_of_layer_[static_cast<size_t>(order_[static_cast<size_t>(v)])];
    if (held != kNothing) return held;
    int32_t victim = kNothing;
    for (int32_t s = resident_; s < used_slots_; ++s) {
      const Slot& slot = slots_[static_cast<size_t>(s)];
      if (slot.layer == kNothing) return s;
      // The copy must be able to run during the visit before this one.
      if (slot.last_visit >= 0 && slot.last_visit == v - 1) continue;
      if (victim == kNothing || slot.next_visit > slots_[static_cast<size_t>(victim)].next_visit) {
        victim = s;
      }
    }
    return victim;
  }

  const std::vector<int32_t> order_;
  const std::vector<int32_t> next_visit_;
  const int32_t used_slots_;
  const int32_t resident_;
  std::vector<int32_t> slot_of_layer_;
  std::vector<Slot> slots_;
  std::vector<bool> is_resident_;
};

}  // namespace

std::vector<int32_t> ResidentLayers(int32_t layers, int32_t resident_layers) {
  std::vector<int32_t> resident;
  const int64_t n = std::clamp(resident_layers, 0, std::max(layers, 0));
  for (int64_t i = 0; i < n; ++i) {
    // The middles of n equal parts of the pass.
    resident.push_back(static_cast<int32_t>((2 * i + 1) * layers / (2 * n)));
  }
  return resident;
}

absl::StatusOr<VisitSchedule> MakeVisitSchedule(const VisitScheduleParams& params) {
  SOUP_RETURN_IF_ERROR(CheckParams(params));
  return Builder(params).Build();
}

}  // namespace soup::engine
