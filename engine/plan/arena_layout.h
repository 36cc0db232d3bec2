// Lays named buffers with known lifetimes out in one allocation. Two buffers may share bytes only
// when their lifetimes do not meet. Deterministic: equal requests give equal offsets. Pure; any
// thread.
#ifndef SOUP_ENGINE_PLAN_ARENA_LAYOUT_H_
#define SOUP_ENGINE_PLAN_ARENA_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace soup::engine {

inline constexpr int64_t kArenaAlignment = 256;

// Live from the start of op `first` to the end of op `last` (inclusive) on the pass's abstract time
// line.
struct BufferRequest {
  std::string name;   // unique
  std::string what;   // the class shown to people: "slots", "retained activations", ...
  int64_t bytes = 0;  // 0 is allowed and takes nothing
  int32_t first = 0;
  int32_t last = 0;
};

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

ArenaLayout LayOutArena(const std::vector<BufferRequest>& requests);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_ARENA_LAYOUT_H_
