// SpillRing keeps a row of equal blocks that are written in order and read back in the opposite
// order, in a few slots of device memory and, for all but the last blocks, in host memory.
//
//   forward:   p = ring.Write(b); launch work that writes p; ring.Written(b);    b = 0 .. blocks-1
//   backward:  p = ring.Read(b); launch work that reads p;   ring.Done(b);       b = blocks-1 .. 0
//
// Block b lies in slot b % slots. The last `slots` blocks stay in their slots over the turn and
// never move; an earlier one goes to the host on the offload stream as soon as it is written, and
// comes back as soon as the block after it in its slot is done. Work between Write and the turn may
// read a block until the one that takes its slot is written (a boundary is the next layer's input).
//
// The order of the streams is kept by two events a slot: `used` (compute stream; a copy waits for
// it) and `moved` (offload stream; compute waits for it). Calls only queue work: the caller waits
// only where a backend's waits do. Not thread-safe. The backend and the memory must outlive it;
// before the memory is given back after an error, the backend must be synchronised.
#ifndef SOUP_ENGINE_DEVICE_SPILL_RING_H_
#define SOUP_ENGINE_DEVICE_SPILL_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/backend.h"

namespace soup::engine {

class SpillRing {
 public:
  struct Shape {
    int32_t blocks = 0;
    int32_t slots = 0;  // 1 .. blocks
    int64_t block_bytes = 0;
  };
  // `device`: slots * block_bytes. `host`: (blocks - slots) * block_bytes; null when none.
  SpillRing(Backend* backend, const Shape& shape, std::byte* device, std::byte* host);

  // Errors: FailedPrecondition (out of order), and those of the backend's waits and copies.
  absl::StatusOr<std::byte*> Write(int32_t block);
  absl::Status Written(int32_t block);
  absl::StatusOr<std::byte*> Read(int32_t block);
  absl::Status Done(int32_t block);

 private:
  struct Slot {
    Event used;
    Event moved;
  };
  enum class Phase : uint8_t { kWrite, kWritten, kRead, kDone };
  // Whether `phase` of `block` may come now; notes that it has.
  absl::Status Advance(Phase phase, int32_t block);
  bool spills(int32_t block) const { return block < shape_.blocks - shape_.slots; }
  std::byte* device(int32_t block) const {
    return device_ + block % shape_.slots * shape_.block_bytes;
  }
  Slot& slot(int32_t block) { return slots_[static_cast<size_t>(block % shape_.slots)]; }
  std::byte* host(int32_t block) const { return host_ + block * shape_.block_bytes; }

  Backend* backend_;
  Shape shape_;
  std::byte* device_;
  std::byte* host_;
  std::vector<Slot> slots_;
  Phase phase_ = Phase::kWritten;
  int32_t block_ = -1;  // of the last call
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_SPILL_RING_H_
