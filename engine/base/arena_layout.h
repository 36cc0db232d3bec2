// Where each named buffer of a pass lies in the one allocation that the pass runs in, and when it
// is live. Made by engine/plan (LayOutArena), obeyed by engine/device (Arena). Plain values; any
// thread.
#ifndef SOUP_ENGINE_BASE_ARENA_LAYOUT_H_
#define SOUP_ENGINE_BASE_ARENA_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace soup::engine {

// Offsets and sizes of buffers are multiples of this.
inline constexpr int64_t kArenaAlignment = 256;

constexpr int64_t ArenaRoundUp(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

struct BufferPlacement {
  std::string name;
  std::string what;
  int64_t offset = 0;
  int64_t bytes = 0;  // rounded up to kArenaAlignment
  int32_t first = 0;
  int32_t last = 0;
};

struct ArenaLayout {
  std::vector<BufferPlacement> buffers;  // in request order
  int64_t bytes = 0;                     // high-water mark
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_ARENA_LAYOUT_H_
