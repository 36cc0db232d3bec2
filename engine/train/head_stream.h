// The head's weights by vocabulary slices: streamed through two buffers by a slot ring of their own
// (so that the layers at the turn stay in their slots), with more buffers for slices that stay, or
// resident in the arena as a whole. One walk over the
// slices a pass. Not thread-safe; the arena's buffers and the globals slab must outlive it.
#ifndef SOUP_ENGINE_TRAIN_HEAD_STREAM_H_
#define SOUP_ENGINE_TRAIN_HEAD_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/backend.h"
#include "engine/device/slot_ring.h"

namespace soup::engine {

class HeadStream {
 public:
  struct Shape {
    int64_t vocab = 0;
    int64_t hidden = 0;
    int64_t slice_rows = 0;
  };
  // `head`: bf16 [vocab, hidden] in host memory. `slices`: the buffers, two of them the
  // ring's. Errors: those of
  // SlotRing::Create.
  static absl::StatusOr<std::unique_ptr<HeadStream>> Streamed(Backend* backend, const Shape& shape,
                                                              absl::Span<const std::byte> head,
                                                              std::vector<std::byte*> slices);
  // `device_head` holds the whole head already.
  static std::unique_ptr<HeadStream> Resident(const Shape& shape, const std::byte* device_head);

  int32_t slices() const;
  int64_t first_row(int32_t slice) const { return slice * shape_.slice_rows; }
  int64_t rows(int32_t slice) const;

  // Starts the first copies; call some visits before the first Acquire.
  absl::Status Begin();
  // bf16 [rows(slice), hidden] on the device; slices in order, each once.
  absl::StatusOr<const std::byte*> Acquire(int32_t slice);
  absl::Status Release(int32_t slice);
  absl::Status End();
  // After an error in the middle of a pass.
  absl::Status Abort();

 private:
  HeadStream() = default;
  Shape shape_;
  std::unique_ptr<SlotRing> ring_;  // null: resident
  int32_t slots_ = 0;
  bool open_ = false;
  const std::byte* resident_ = nullptr;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_HEAD_STREAM_H_
