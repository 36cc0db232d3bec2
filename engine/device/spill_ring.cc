#include "engine/device/spill_ring.h"

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::engine {

SpillRing::SpillRing(Backend* backend, const Shape& shape, std::byte* device, std::byte* host)
    : backend_(backend), shape_(shape), device_(device), host_(host) {
  SOUP_CHECK(shape.slots >= 1 && shape.slots <= shape.blocks);
  SOUP_CHECK(host != nullptr || shape.slots == shape.blocks);
  for (int32_t i = 0; i < shape.slots; ++i) {
    slots_.push_back({backend->MakeEvent(), backend->MakeEvent()});
  }
}

absl::Status SpillRing::Advance(Phase phase, int32_t block) {
  bool next = false;
  switch (phase) {
    case Phase::kWrite:
      next = phase_ == Phase::kWritten && block == block_ + 1 && block < shape_.blocks;
      break;
    case Phase::kWritten:
      next = phase_ == Phase::kWrite && block == block_;
      break;
    case Phase::kRead:
      next = (phase_ == Phase::kWritten && block == block_ && block == shape_.blocks - 1) ||
             (phase_ == Phase::kDone && block == block_ - 1 && block >= 0);
      break;
    case Phase::kDone:
      next = phase_ == Phase::kRead && block == block_;
      break;
  }
  if (!next) {
    return absl::FailedPreconditionError(absl::StrCat("a ring of ", shape_.blocks,
                                                      " kept blocks: block ", block,
                                                      " out of order after block ", block_));
  }
  phase_ = phase;
  block_ = block;
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> SpillRing::Write(int32_t block) {
  SOUP_RETURN_IF_ERROR(Advance(Phase::kWrite, block));
  // What lay in the slot must have gone to the host.
  if (block >= shape_.slots) {
    SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->compute_stream(), slot(block).moved));
  }
  return device(block);
}

absl::Status SpillRing::Written(int32_t block) {
  SOUP_RETURN_IF_ERROR(Advance(Phase::kWritten, block));
  if (!spills(block)) return absl::OkStatus();
  Slot& s = slot(block);
  SOUP_RETURN_IF_ERROR(backend_->Record(s.used, backend_->compute_stream()));
  SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->offload_stream(), s.used));
  SOUP_RETURN_IF_ERROR(backend_->OffloadAsync(host(block), device(block), shape_.block_bytes));
  return backend_->Record(s.moved, backend_->offload_stream());
}

absl::StatusOr<std::byte*> SpillRing::Read(int32_t block) {
  SOUP_RETURN_IF_ERROR(Advance(Phase::kRead, block));
  if (spills(block)) {
    SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->compute_stream(), slot(block).moved));
  }
  return device(block);
}

absl::Status SpillRing::Done(int32_t block) {
  SOUP_RETURN_IF_ERROR(Advance(Phase::kDone, block));
  const int32_t next = block - shape_.slots;  // in this slot
  if (next < 0) return absl::OkStatus();
  Slot& s = slot(block);
  SOUP_RETURN_IF_ERROR(backend_->Record(s.used, backend_->compute_stream()));
  SOUP_RETURN_IF_ERROR(backend_->Wait(backend_->offload_stream(), s.used));
  SOUP_RETURN_IF_ERROR(backend_->CopyToDeviceAsync(device(next), host(next), shape_.block_bytes,
                                                   backend_->offload_stream()));
  return backend_->Record(s.moved, backend_->offload_stream());
}

}  // namespace soup::engine
