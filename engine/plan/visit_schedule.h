// The visit schedule of a pass: which layer enters compute when, in which slot, and which copies
// are needed.
//
// A pass visits layers 0 .. L-1 forward, then L-1 .. 0 backward (a pass with train items). Slots
// hold one slab each; resident layers keep a slot for good, the others share a ring. The schedule
// begins from what the slots hold now (the last pass ended with the first layers still in the ring)
// and evicts by Belady's rule: the layer whose next visit lies farthest away, this pass and the
// next (same shape) looked at. Hence copies are the minimum for the given slots. Pure functions;
// plain values; any thread.
#ifndef SOUP_ENGINE_PLAN_VISIT_SCHEDULE_H_
#define SOUP_ENGINE_PLAN_VISIT_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace soup::engine {

enum class Direction : uint8_t { kForward, kBackward };

struct Visit {
  int32_t layer = 0;
  Direction direction = Direction::kForward;
  int32_t slot = 0;
  bool copy = false;  // the slab must be copied into `slot` before this visit
  // A copy may start once this visit (index in the schedule) has released the slot; -1: at once.
  int32_t copy_after_visit = -1;
};

struct VisitSchedule {
  std::vector<Visit> visits;
  std::vector<int32_t> slot_layer_at_end;  // what each slot holds after the pass; -1: nothing
  int64_t copies = 0;
};

struct VisitScheduleParams {
  int32_t layers = 0;
  int32_t slots =
      2;  // all slots, resident ones included; >= min(2, layers); at most `layers` are used
  int32_t resident_layers =
      0;  // the first of the slots hold these layers for good; slots - resident >= 2 unless all fit
  bool backward = true;                      // false: a pass of score items only
  std::vector<int32_t> slot_layer_at_start;  // size slots; -1: nothing. Empty: nothing anywhere
};

// Which layers are resident: spread so that ring copies are spread evenly over the pass. Sorted.
std::vector<int32_t> ResidentLayers(int32_t layers, int32_t resident_layers);

// Errors: InvalidArgument for impossible parameters.
absl::StatusOr<VisitSchedule> MakeVisitSchedule(const VisitScheduleParams& params);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_VISIT_SCHEDULE_H_
