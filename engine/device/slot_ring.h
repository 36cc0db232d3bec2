// SlotRing executes visit schedules over slots in device memory: it keeps the copy stream as many
// visits ahead as there are free slots, and hands out each visit's slab when it is whole.
//
//   ring->BeginPass(schedule);
//   for each visit v, in order: slab = ring->Acquire(v); launch work that reads it;
//   ring->Release(v); ring->EndPass();
//
// Slots keep what they hold from pass to pass: the next schedule begins from slot_layers(). A slot
// has two events: `filled` (copy stream; compute waits for it in Acquire) and `released` (compute
// stream; the copy stream waits for it before it overwrites the slot). At most one copy a slot is
// outstanding, so the copy queue is bounded by the slots.
//
// The same class streams the head: its slabs are then slices of the vocabulary, its slots the two
// buffers of the head, its schedule MakeVisitSchedule with backward = false.
//
// Not thread-safe: the thread that drives the backend drives the ring. The backend, the slots'
// memory and the slabs' bytes must outlive it; the destructor waits (bounded) for its copies.
#ifndef SOUP_ENGINE_DEVICE_SLOT_RING_H_
#define SOUP_ENGINE_DEVICE_SLOT_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/visit_schedule.h"
#include "engine/device/backend.h"

namespace soup::engine {

class SlotRing {
 public:
  // `slots`: device addresses, `slot_bytes` each. `slabs`: host bytes of every layer (or slice).
  // Errors: InvalidArgument (no slots, a slab larger than a slot; names both sizes).
  static absl::StatusOr<std::unique_ptr<SlotRing>> Create(
      Backend* backend, std::vector<std::byte*> slots, int64_t slot_bytes,
      std::vector<absl::Span<const std::byte>> slabs);
  ~SlotRing();
  SlotRing(const SlotRing&) = delete;
  SlotRing& operator=(const SlotRing&) = delete;

  // Checks the whole schedule against what the slots hold, then starts the first copies. Errors:
  // FailedPrecondition (a pass is open), InvalidArgument (the plan is wrong: a visit would not find
  // its layer, a copy would overwrite a slot before its release, a slot or layer does not exist;
  // names the visit). After an error the ring is as before.
  absl::Status BeginPass(VisitSchedule schedule);

  struct Slab {
    const std::byte* data = nullptr;  // device address
    double stall_seconds = 0;         // waited here; 0 where waits are asynchronous (CUDA)
  };
  // The slab of visit `visit`; visits are acquired in order, each once. Waits until it is whole.
  // Errors: FailedPrecondition (no pass, out of order), and those of Backend::Wait.
  absl::StatusOr<Slab> Acquire(int32_t visit);
  // What was launched so far is the last that reads the visit's slab. Visits are released in order.
  absl::Status Release(int32_t visit);
  // Every visit must be released. Errors: FailedPrecondition.
  absl::Status EndPass();
  // Ends a pass in the middle (an error elsewhere): waits for the copies under way, and forgets
  // what the slots hold. The next pass starts from nothing.
  absl::Status AbortPass();

  // What each slot holds; -1: nothing. Input of the next schedule.
  const std::vector<int32_t>& slot_layers() const { return slot_layers_; }
  // Copies started since the ring was made.
  int64_t copies() const { return copies_; }
  // Visits whose copies have been started ahead of the visit last acquired: prefetch depth now.
  int32_t copies_ahead() const;

 private:
  struct Slot {
    std::byte* data = nullptr;
    Event filled;
    Event released;
  };
  SlotRing() = default;
  absl::Status CheckSchedule(const VisitSchedule& schedule) const;
  absl::Status StartCopies();

  Backend* backend_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<absl::Span<const std::byte>> slabs_;
  std::vector<int32_t> slot_layers_;
  VisitSchedule schedule_;
  bool open_ = false;
  int32_t acquired_ = -1;  // last visit acquired
  int32_t released_ = -1;  // last visit released
  int32_t next_copy_ = 0;  // first visit whose copy has not been considered
  int64_t copies_ = 0;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_SLOT_RING_H_
