// Lays named buffers with known lifetimes out in one allocation. Two buffers may share bytes only
// when their lifetimes do not meet. Deterministic: equal requests give equal offsets. Pure; any
// thread.
//
// Buffers that live from the first op to the last of all requests lie at the bottom, in request
// order: a caller that asks for its slots first finds them at the same addresses in every pass,
// whatever else the pass holds. The rest is placed by lowest fit, in the best of several orders
// (among them: longest lifetime first, which is exact for nested lifetimes), and improved by a
// bounded search when the result lies above the lower bound.
#ifndef SOUP_ENGINE_PLAN_ARENA_LAYOUT_H_
#define SOUP_ENGINE_PLAN_ARENA_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/arena_layout.h"

namespace soup::engine {

// Live from the start of op `first` to the end of op `last` (inclusive) on the pass's abstract time
// line.
struct BufferRequest {
  std::string name;   // unique
  std::string what;   // the class shown to people: "slots", "retained activations", ...
  int64_t bytes = 0;  // 0 is allowed and takes nothing
  int32_t first = 0;
  int32_t last = 0;
};

// Requests with a repeated name, negative bytes or first > last are our own mistakes: CHECK.
ArenaLayout LayOutArena(const std::vector<BufferRequest>& requests);

// The most bytes that are live in one op: no layout can be smaller.
int64_t ArenaLowerBound(const std::vector<BufferRequest>& requests);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_ARENA_LAYOUT_H_
