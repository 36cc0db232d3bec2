// The visits of a pass in order, the slot of each, and the copies they need. Made by engine/plan
// (MakeVisitSchedule), executed by engine/device (SlotRing). Plain values; any thread.
#ifndef SOUP_ENGINE_BASE_VISIT_SCHEDULE_H_
#define SOUP_ENGINE_BASE_VISIT_SCHEDULE_H_

#include <cstdint>
#include <vector>

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

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_VISIT_SCHEDULE_H_
