// Arena: the one allocation that a pass runs in, and the guard of its plan.
//
// The backend allocates it once; Bind() gives it the layout of the next pass; Take() hands out the
// layout's buffers by name. Nothing is allocated by Take. What the plan does not know, what is
// taken twice, what is larger than planned, and what would share bytes with a live buffer is an
// error, never a log line: a pass that runs through has kept to its plan. high_water_bytes() is
// measured from what was taken, and equals the layout's bytes when the plan was exact.
//
// Not thread-safe: one executor uses it. On a device with a stream, Take and release follow the
// order of the compute stream, in which the buffers are used.
#ifndef SOUP_ENGINE_DEVICE_ARENA_H_
#define SOUP_ENGINE_DEVICE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/arena_layout.h"

namespace soup::engine {

class Arena;

// A buffer in use; given back when it dies. Move-only. Must not outlive its arena. A default one
// holds nothing.
class ArenaBuffer {
 public:
  ArenaBuffer() = default;
  ArenaBuffer(ArenaBuffer&& other) noexcept { *this = std::move(other); }
  ArenaBuffer& operator=(ArenaBuffer&& other) noexcept;
  ArenaBuffer(const ArenaBuffer&) = delete;
  ArenaBuffer& operator=(const ArenaBuffer&) = delete;
  ~ArenaBuffer() { Reset(); }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // as asked for
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  explicit operator bool() const { return arena_ != nullptr; }
  // Gives the buffer back now.
  void Reset();

 private:
  friend class Arena;
  Arena* arena_ = nullptr;
  int64_t token_ = 0;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Arena {
 public:
  // Takes over `bytes` of memory at `base`, aligned to kArenaAlignment; `free_memory` gives it back
  // and does not throw. `poison`: fills host-addressable buffers with 0xff (NaN in every float
  // type) when they are taken, so that a read before a write shows; null: not.
  Arena(std::byte* base, int64_t bytes, std::function<void()> free_memory,
        std::function<void(std::byte*, int64_t)> poison = nullptr);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // The layout of the next pass; high_water_bytes() starts anew. Buffers in use stay so, with what
  // they hold, where the new layout has one of the same name, offset and size: slots live on from
  // pass to pass. Errors: FailedPrecondition (another buffer is in use; names it), InvalidArgument
  // (the layout is larger than the arena, names a buffer twice, or a placement lies outside the
  // layout or unaligned). After an error the old layout stands.
  absl::Status Bind(ArenaLayout layout);

  // Errors: NotFound (the plan has no such buffer), FailedPrecondition (it is in use, or shares
  // bytes with one that is: names both), InvalidArgument (more bytes than planned).
  absl::StatusOr<ArenaBuffer> Take(absl::string_view name, int64_t bytes);
  // The same with the planned size.
  absl::StatusOr<ArenaBuffer> Take(absl::string_view name);

  int64_t bytes() const { return bytes_; }
  const ArenaLayout& layout() const { return layout_; }
  // The end of the highest byte taken since Bind.
  int64_t high_water_bytes() const { return high_water_; }
  int64_t live_buffers() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  friend class ArenaBuffer;
  void Release(int64_t token);

  std::byte* const base_;
  const int64_t bytes_;
  const std::function<void()> free_memory_;
  const std::function<void(std::byte*, int64_t)> poison_;
  ArenaLayout layout_;
  absl::flat_hash_map<std::string, int32_t> index_;  // name -> index in layout_.buffers
  std::vector<bool> in_use_;                         // by index
  std::map<int64_t, int32_t> live_;    // offset -> index; buffers of no bytes are not in it
  std::map<int64_t, int32_t> tokens_;  // of ArenaBuffers -> index
  int64_t next_token_ = 1;
  int64_t high_water_ = 0;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_ARENA_H_
