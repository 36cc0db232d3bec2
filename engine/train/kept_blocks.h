// Where an item of a pass keeps what its backward reads: its boundaries, and one class of
// activations layer by layer (engine/plan/placement.h), on the device or through host memory.
//
// Forward, layer after layer: Write, launch, Written. Backward, in the opposite order: Read,
// launch, Done. Not thread-safe. Errors: those of the arenas (a plan that is wrong) and of the
// device.
#ifndef SOUP_ENGINE_TRAIN_KEPT_BLOCKS_H_
#define SOUP_ENGINE_TRAIN_KEPT_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/arena.h"
#include "engine/device/backend.h"
#include "engine/device/spill_ring.h"
#include "engine/plan/placement.h"

namespace soup::engine {

// What the blocks are made from. Pointers are borrowed.
struct KeptMemory {
  Backend* backend = nullptr;
  Arena* arena = nullptr;
  Arena* host_arena = nullptr;  // null: the plan keeps nothing there
};

// The input of every layer and the last one's output: blocks 0 .. blocks-1 of `block_bytes`.
class Boundaries {
 public:
  // `buffer`: its name. Score items have two blocks that take turns, and are not read back.
  static absl::StatusOr<Boundaries> Create(const KeptMemory& memory, const std::string& buffer,
                                           int32_t blocks, int64_t block_bytes, bool on_host);
  static absl::StatusOr<Boundaries> InTurns(const KeptMemory& memory, const std::string& buffer,
                                            int64_t block_bytes);
  Boundaries() = default;

  absl::StatusOr<std::byte*> Write(int32_t block);
  absl::Status Written(int32_t block);
  absl::StatusOr<std::byte*> Read(int32_t block);
  absl::Status Done(int32_t block);

 private:
  std::byte* At(int32_t block) const { return device_.data() + block % slots_ * block_bytes_; }
  ArenaBuffer device_;
  ArenaBuffer host_;
  int32_t slots_ = 1;
  int64_t block_bytes_ = 0;
  std::unique_ptr<SpillRing> ring_;  // null: all on the device
};

// One class of activations of one item: a block for every layer that keeps it.
class KeptBlocks {
 public:
  struct Names {
    std::string kept;  // InBand is applied
    std::string ring;
  };
  KeptBlocks() = default;
  // Keeps nothing in layers whose `home` is kRecompute.
  KeptBlocks(const KeptMemory& memory, Names names, const std::vector<LayerBand>& bands,
             Home LayerBand::*home, int64_t block_bytes);

  // Takes the buffers of a band before its first forward visit; gives them back after its last
  // backward visit.
  absl::Status EnterBand(int32_t band);
  void LeaveBand(int32_t band);

  // Null where the layer keeps nothing.
  absl::StatusOr<std::byte*> Write(int64_t layer);
  absl::Status Written(int64_t layer);
  absl::StatusOr<std::byte*> Read(int64_t layer);
  absl::Status Done(int64_t layer);

 private:
  // The ring's block of a layer; -1: it is none of the ring's.
  int32_t RingBlock(int64_t layer) const;
  std::byte* OnDevice(int64_t layer) const;

  KeptMemory memory_;
  Names names_;
  std::vector<LayerBand> bands_;
  std::vector<bool> device_band_;
  std::vector<ArenaBuffer> device_;  // by band
  int32_t first_ring_band_ = -1;
  int64_t first_ring_layer_ = 0;
  int64_t ring_layers_ = 0;
  int64_t block_bytes_ = 0;
  ArenaBuffer ring_device_;
  ArenaBuffer ring_host_;
  std::unique_ptr<SpillRing> ring_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_KEPT_BLOCKS_H_
