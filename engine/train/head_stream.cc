#include "engine/train/head_stream.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"
#include "engine/plan/visit_schedule.h"

namespace soup::engine {
namespace {
constexpr int64_t kBf16Bytes = 2;
}

absl::StatusOr<std::unique_ptr<HeadStream>> HeadStream::Streamed(Backend* backend,
                                                                 const Shape& shape,
                                                                 absl::Span<const std::byte> head,
                                                                 std::vector<std::byte*> slices) {
  std::unique_ptr<HeadStream> stream(new HeadStream());
  stream->shape_ = shape;
  const int64_t row_bytes = shape.hidden * kBf16Bytes;
  std::vector<absl::Span<const std::byte>> slabs;
  for (int32_t s = 0; s < stream->slices(); ++s) {
    slabs.push_back(head.subspan(stream->first_row(s) * row_bytes, stream->rows(s) * row_bytes));
  }
  stream->slots_ = std::min<int32_t>(static_cast<int32_t>(slices.size()), stream->slices());
  slices.resize(stream->slots_);
  SOUP_ASSIGN_OR_RETURN(
      stream->ring_,
      SlotRing::Create(backend, std::move(slices), shape.slice_rows * row_bytes, std::move(slabs)));
  return stream;
}

std::unique_ptr<HeadStream> HeadStream::Resident(const Shape& shape, const std::byte* device_head) {
  std::unique_ptr<HeadStream> stream(new HeadStream());
  stream->shape_ = shape;
  stream->resident_ = device_head;
  return stream;
}

int32_t HeadStream::slices() const {
  return static_cast<int32_t>((shape_.vocab + shape_.slice_rows - 1) / shape_.slice_rows);
}

int64_t HeadStream::rows(int32_t slice) const {
  return std::min(shape_.slice_rows, shape_.vocab - first_row(slice));
}

absl::Status HeadStream::Begin() {
  if (ring_ == nullptr) return absl::OkStatus();
  VisitScheduleParams params;
  params.layers = slices();
  params.slots = slots_;
  params.resident_layers = slots_ == slices() ? slots_ : std::max(0, slots_ - kHeadRingSlices);
  params.backward = false;
  params.slot_layer_at_start = ring_->slot_layers();
  SOUP_ASSIGN_OR_RETURN(VisitSchedule schedule, MakeVisitSchedule(params));
  SOUP_RETURN_IF_ERROR(ring_->BeginPass(std::move(schedule)));
  open_ = true;
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> HeadStream::Acquire(int32_t slice) {
  if (ring_ == nullptr) return resident_ + first_row(slice) * shape_.hidden * kBf16Bytes;
  SOUP_ASSIGN_OR_RETURN(const SlotRing::Slab slab, ring_->Acquire(slice));
  return slab.data;
}

absl::Status HeadStream::Release(int32_t slice) {
  return ring_ == nullptr ? absl::OkStatus() : ring_->Release(slice);
}

absl::Status HeadStream::End() {
  if (!open_) return absl::OkStatus();
  open_ = false;
  return ring_->EndPass();
}

absl::Status HeadStream::Abort() {
  if (!open_) return absl::OkStatus();
  open_ = false;
  return ring_->AbortPass();
}

}  // namespace soup::engine
