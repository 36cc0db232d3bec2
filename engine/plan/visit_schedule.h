// The visit schedule of a pass: which layer enters compute when, in which slot, and which copies
// are needed.
//
// A pass visits layers 0 .. L-1 forward, then L-1 .. 0 backward (a pass with train items). Slots
// hold one slab each; resident layers keep a slot for good, the others share a ring. The schedule
// begins from what the slots hold now (the last pass ended with the first layers still in the ring)
// and evicts by Belady's rule (L. A. Belady, IBM Systems Journal 5(2), 1966): the layer whose next
// visit lies farthest away, this pass and the next (same shape) looked at; but never the layer of
// the visit just before, so that every copy can run while something is computed. Copies are the
// minimum for the given slots under that rule. For passes that follow a pass of their own shape
// with a backward the rule costs nothing: the minimum without it is the same, 2 * (L - slots) a
// pass.
//
// The same function schedules the head's slices: `layers` = slices, backward = false.
// Pure functions; plain values; any thread.
#ifndef SOUP_ENGINE_PLAN_VISIT_SCHEDULE_H_
#define SOUP_ENGINE_PLAN_VISIT_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/visit_schedule.h"

namespace soup::engine {

struct VisitScheduleParams {
  int32_t layers = 0;
  // All slots, resident ones included; >= min(2, layers); at most `layers` are used.
  int32_t slots = 2;
  // The first of the slots hold these layers for good; slots - resident >= 2 unless all fit.
  int32_t resident_layers = 0;
  bool backward = true;  // false: a pass of score items only
  // Size slots; -1: nothing. Empty: nothing anywhere.
  std::vector<int32_t> slot_layer_at_start;
};

// Which layers are resident: spread so that ring copies are spread evenly over the pass. Sorted.
std::vector<int32_t> ResidentLayers(int32_t layers, int32_t resident_layers);

// Errors: InvalidArgument for impossible parameters.
absl::StatusOr<VisitSchedule> MakeVisitSchedule(const VisitScheduleParams& params);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_VISIT_SCHEDULE_H_
