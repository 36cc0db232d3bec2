#include "engine/device/slot_ring.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

// How long the ring waits for its own copies when it is given up.
constexpr absl::Duration kAbortLimit = absl::Seconds(30);

absl::Status WrongPlan(size_t visit, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the visit schedule is wrong at visit ", visit, ": ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlotRing>> SlotRing::Create(
    Backend* backend, std::vector<std::byte*> slots, int64_t slot_bytes,
    std::vector<absl::Span<const std::byte>> slabs) {
  if (slots.empty() || slabs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a slot ring needs slots and slabs, not ",
                                                   slots.size(), " and ", slabs.size()));
  }
  for (size_t i = 0; i < slabs.size(); ++i) {
    if (static_cast<int64_t>(slabs[i].size()) > slot_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("slab ", i, " has ", slabs[i].size(), " bytes, a slot ", slot_bytes));
    }
  }
  std::unique_ptr<SlotRing> ring(new SlotRing);
  ring->backend_ = backend;
  ring->slabs_ = std::move(slabs);
  ring->slot_layers_.assign(slots.size(), -1);
  for (std::byte* data : slots) {
    ring->slots_.push_back({data, backend->MakeEvent(), backend->MakeEvent()});
  }
  return ring;
}

SlotRing::~SlotRing() { AbortPass().IgnoreError(); }

absl::Status SlotRing::CheckSchedule(const VisitSchedule& schedule) const {
  std::vector<int32_t> held = slot_layers_;
  std::vector<int32_t> last_use(slots_.size(), -1);
  for (size_t i = 0; i < schedule.visits.size(); ++i) {
    const Visit& v = schedule.visits[i];
    if (v.slot < 0 || static_cast<size_t>(v.slot) >= slots_.size()) {
      return WrongPlan(i, absl::StrCat("slot ", v.slot, " of ", slots_.size()));
    }
    if (v.layer < 0 || static_cast<size_t>(v.layer) >= slabs_.size()) {
      return WrongPlan(i, absl::StrCat("layer ", v.layer, " of ", slabs_.size()));
    }
    int32_t& layer = held[static_cast<size_t>(v.slot)];
    int32_t& used = last_use[static_cast<size_t>(v.slot)];
    if (v.copy && v.copy_after_visit < used) {
      return WrongPlan(i,
                       absl::StrCat("its copy into slot ", v.slot, " may start after visit ",
                                    v.copy_after_visit, ", but visit ", used, " still reads it"));
    }
    if (v.copy && v.copy_after_visit >= static_cast<int32_t>(i)) {
      return WrongPlan(i, absl::StrCat("its copy waits for visit ", v.copy_after_visit));
    }
    if (v.copy) layer = v.layer;
    if (layer != v.layer) {
      return WrongPlan(i, absl::StrCat("slot ", v.slot, " holds ",
                                       layer < 0 ? "nothing" : absl::StrCat("layer ", layer),
                                       " where layer ", v.layer, " is needed"));
    }
    used = static_cast<int32_t>(i);
  }
  return absl::OkStatus();
}

absl::Status SlotRing::BeginPass(VisitSchedule schedule) {
  if (open_) return absl::FailedPreconditionError("a pass over these slots has not ended");
  SOUP_RETURN_IF_ERROR(CheckSchedule(schedule));
  schedule_ = std::move(schedule);
  open_ = true;
  acquired_ = released_ = -1;
  next_copy_ = 0;
  return StartCopies();
}

absl::Status SlotRing::StartCopies() {
  const int32_t visits = static_cast<int32_t>(schedule_.visits.size());
  for (; next_copy_ < visits; ++next_copy_) {
    const Visit& v = schedule_.visits[static_cast<size_t>(next_copy_)];
    if (!v.copy) continue;
    if (v.copy_after_visit > released_) break;
    Slot& slot = slots_[static_cast<size_t>(v.slot)];
    const absl::Span<const std::byte> slab = slabs_[static_cast<size_t>(v.layer)];
    // Until the copy is whole the slot holds nothing that can be relied on.
    slot_layers_[static_cast<size_t>(v.slot)] = v.layer;
    SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->copy_stream(), slot.released));
    SOUP_RETURN_IF_ERROR(backend_->CopyToDeviceAsync(
        slot.data, slab.data(), static_cast<int64_t>(slab.size()), backend_->copy_stream()));
    SOUP_RETURN_IF_ERROR(backend_->Record(slot.filled, backend_->copy_stream()));
    ++copies_;
  }
  return absl::OkStatus();
}

absl::StatusOr<SlotRing::Slab> SlotRing::Acquire(int32_t visit) {
  if (!open_ || visit != acquired_ + 1 || visit >= static_cast<int32_t>(schedule_.visits.size())) {
    return absl::FailedPreconditionError(
        absl::StrCat("visit ", visit, " was acquired ",
                     open_ ? absl::StrCat("where visit ", acquired_ + 1, " of ",
                                          schedule_.visits.size(), " is next")
                           : "outside a pass"));
  }
  const Visit& v = schedule_.visits[static_cast<size_t>(visit)];
  if (visit >= next_copy_) {
    return absl::FailedPreconditionError(
        absl::StrCat("visit ", visit, " was acquired before visit ",
                     schedule_.visits[static_cast<size_t>(next_copy_)].copy_after_visit,
                     " was released, whose slot it needs"));
  }
  const Slot& slot = slots_[static_cast<size_t>(v.slot)];
  const double stall_before = backend_->counters().stall_seconds;
  SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->compute_stream(), slot.filled));
  acquired_ = visit;
  return Slab{slot.data, backend_->counters().stall_seconds - stall_before};
}

absl::Status SlotRing::Release(int32_t visit) {
  if (!open_ || visit != released_ + 1 || visit > acquired_) {
    return absl::FailedPreconditionError(absl::StrCat("visit ", visit, " was released where visit ",
                                                      released_ + 1, " is next and ", acquired_,
                                                      " is the last acquired"));
  }
  const Visit& v = schedule_.visits[static_cast<size_t>(visit)];
  SOUP_RETURN_IF_ERROR(
      backend_->Record(slots_[static_cast<size_t>(v.slot)].released, backend_->compute_stream()));
  released_ = visit;
  return StartCopies();
}

absl::Status SlotRing::EndPass() {
  if (!open_ || released_ + 1 != static_cast<int32_t>(schedule_.visits.size())) {
    return absl::FailedPreconditionError(absl::StrCat("a pass ended after ", released_ + 1, " of ",
                                                      schedule_.visits.size(), " visits"));
  }
  open_ = false;
  return absl::OkStatus();
}

absl::Status SlotRing::AbortPass() {
  if (!open_) return absl::OkStatus();
  open_ = false;
  std::fill(slot_layers_.begin(), slot_layers_.end(), -1);
  absl::Status first;
  const absl::Time deadline = absl::Now() + kAbortLimit;
  for (const Slot& slot : slots_) {
    first.Update(
        backend_->HostWait(slot.filled, std::max(deadline - absl::Now(), absl::ZeroDuration())));
  }
  return first;
}

int32_t SlotRing::copies_ahead() const {
  int32_t ahead = 0;
  for (int32_t v = acquired_ + 1; open_ && v < next_copy_; ++v) {
    if (schedule_.visits[static_cast<size_t>(v)].copy) ++ahead;
  }
  return ahead;
}

}  // namespace soup::engine
