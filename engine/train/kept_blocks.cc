#include "engine/train/kept_blocks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

// A ring of `blocks` in `device` and, when there are more of them than slots, `host`.
absl::StatusOr<std::unique_ptr<SpillRing>> MakeRing(const KeptMemory& memory,
                                                    const std::string& buffer,
                                                    const SpillRing::Shape& shape,
                                                    ArenaBuffer* device, ArenaBuffer* host) {
  SOUP_ASSIGN_OR_RETURN(*device, memory.arena->Take(buffer, shape.slots * shape.block_bytes));
  if (shape.blocks > shape.slots) {
    if (memory.host_arena == nullptr) {
      return absl::InternalError(absl::StrCat("no host memory for '", buffer, "'"));
    }
    SOUP_ASSIGN_OR_RETURN(
        *host, memory.host_arena->Take(buffer, (shape.blocks - shape.slots) * shape.block_bytes));
  }
  return std::make_unique<SpillRing>(memory.backend, shape, device->data(), host->data());
}

}  // namespace

absl::StatusOr<Boundaries> Boundaries::Create(const KeptMemory& memory, const std::string& buffer,
                                              int32_t blocks, int64_t block_bytes, bool on_host) {
  Boundaries b;
  b.block_bytes_ = ArenaRoundUp(block_bytes);
  b.slots_ = on_host ? std::min(blocks, kBoundarySlots) : blocks;
  if (on_host) {
    const SpillRing::Shape shape = {blocks, b.slots_, b.block_bytes_};
    SOUP_ASSIGN_OR_RETURN(b.ring_, MakeRing(memory, buffer, shape, &b.device_, &b.host_));
    return b;
  }
  SOUP_ASSIGN_OR_RETURN(b.device_, memory.arena->Take(buffer, blocks * b.block_bytes_));
  return b;
}

absl::StatusOr<Boundaries> Boundaries::InTurns(const KeptMemory& memory, const std::string& buffer,
                                               int64_t block_bytes) {
  return Create(memory, buffer, 2, block_bytes, /*on_host=*/false);
}

absl::StatusOr<std::byte*> Boundaries::Write(int32_t block) {
  if (ring_ != nullptr) return ring_->Write(block);
  return At(block);
}
absl::Status Boundaries::Written(int32_t block) {
  return ring_ == nullptr ? absl::OkStatus() : ring_->Written(block);
}
absl::StatusOr<std::byte*> Boundaries::Read(int32_t block) {
  if (ring_ != nullptr) return ring_->Read(block);
  return At(block);
}
absl::Status Boundaries::Done(int32_t block) {
  return ring_ == nullptr ? absl::OkStatus() : ring_->Done(block);
}

KeptBlocks::KeptBlocks(const KeptMemory& memory, Names names, const std::vector<LayerBand>& bands,
                       Home LayerBand::*home, int64_t block_bytes)
    : memory_(memory),
      names_(std::move(names)),
      bands_(bands),
      device_(bands.size()),
      block_bytes_(block_bytes) {
  for (size_t b = 0; b < bands.size(); ++b) {
    device_band_.push_back(bands[b].*home == Home::kDevice);
    if (bands[b].*home != Home::kHost) continue;
    if (ring_layers_ == 0) {
      first_ring_band_ = static_cast<int32_t>(b);
      first_ring_layer_ = bands[b].first;
    }
    ring_layers_ += bands[b].layers;
  }
}

absl::Status KeptBlocks::EnterBand(int32_t band) {
  const size_t b = static_cast<size_t>(band);
  if (bands_.empty()) return absl::OkStatus();
  if (device_band_[b]) {
    SOUP_ASSIGN_OR_RETURN(device_[b], memory_.arena->Take(InBand(names_.kept, band),
                                                          bands_[b].layers * block_bytes_));
  }
  if (band != first_ring_band_) return absl::OkStatus();
  const int32_t layers = static_cast<int32_t>(ring_layers_);
  const SpillRing::Shape shape = {layers, std::min(layers, kKeptSlots), block_bytes_};
  SOUP_ASSIGN_OR_RETURN(ring_, MakeRing(memory_, names_.ring, shape, &ring_device_, &ring_host_));
  return absl::OkStatus();
}

void KeptBlocks::LeaveBand(int32_t band) {
  if (bands_.empty()) return;
  device_[static_cast<size_t>(band)].Reset();
  if (band != first_ring_band_) return;
  ring_.reset();
  ring_device_.Reset();
  ring_host_.Reset();
}

int32_t KeptBlocks::RingBlock(int64_t layer) const {
  const int64_t block = layer - first_ring_layer_;
  return ring_ != nullptr && block >= 0 && block < ring_layers_ ? static_cast<int32_t>(block) : -1;
}

std::byte* KeptBlocks::OnDevice(int64_t layer) const {
  for (size_t b = 0; b < bands_.size(); ++b) {
    if (!device_band_[b] || layer < bands_[b].first || layer >= bands_[b].end()) continue;
    return device_[b].data() + (layer - bands_[b].first) * block_bytes_;
  }
  return nullptr;
}

absl::StatusOr<std::byte*> KeptBlocks::Write(int64_t layer) {
  const int32_t block = RingBlock(layer);
  if (block >= 0) return ring_->Write(block);
  return OnDevice(layer);
}
absl::Status KeptBlocks::Written(int64_t layer) {
  const int32_t block = RingBlock(layer);
  return block < 0 ? absl::OkStatus() : ring_->Written(block);
}
absl::StatusOr<std::byte*> KeptBlocks::Read(int64_t layer) {
  const int32_t block = RingBlock(layer);
  if (block >= 0) return ring_->Read(block);
  return OnDevice(layer);
}
absl::Status KeptBlocks::Done(int64_t layer) {
  const int32_t block = RingBlock(layer);
  return block < 0 ? absl::OkStatus() : ring_->Done(block);
}

}  // namespace soup::engine
