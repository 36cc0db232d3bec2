// Properties of arena layouts.
#include "engine/plan/arena_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;

void ExpectSound(const std::vector<BufferRequest>& requests, const ArenaLayout& layout) {
  ASSERT_EQ(layout.buffers.size(), requests.size());
  int64_t end = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const BufferPlacement& a = layout.buffers[i];
    ASSERT_EQ(a.name, requests[i].name);
    ASSERT_EQ(a.what, requests[i].what);
    ASSERT_EQ(a.bytes, ArenaRoundUp(requests[i].bytes));
    ASSERT_EQ(a.offset % kArenaAlignment, 0);
    ASSERT_GE(a.offset, 0);
    end = std::max(end, a.offset + a.bytes);
    for (size_t j = 0; j < i; ++j) {
      const BufferPlacement& b = layout.buffers[j];
      const bool lifetimes_meet = a.first <= b.last && b.first <= a.last;
      const bool bytes_meet = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      ASSERT_FALSE(lifetimes_meet && bytes_meet && a.bytes > 0 && b.bytes > 0)
          << a.name << " and " << b.name;
    }
  }
  EXPECT_EQ(layout.bytes, end);
  EXPECT_GE(layout.bytes, ArenaLowerBound(requests));
}

TEST(ArenaLayoutTest, NothingTakesNothing) {
  EXPECT_EQ(LayOutArena({}).bytes, 0);
  const auto layout = LayOutArena({{"empty", "x", 0, 0, 5}});
  EXPECT_EQ(layout.bytes, 0);
  ASSERT_EQ(layout.buffers.size(), 1u);
}

TEST(ArenaLayoutTest, RandomRequestsNeverOverlapAndStayNearTheLowerBound) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  double worst = 1, sum = 0;
  constexpr int kRounds = 150;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<BufferRequest> requests;
    const int64_t ops = rng.Int(1, 60);
    const int64_t n = rng.Int(1, 80);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t first = rng.Int(0, ops - 1);
      requests.push_back({"b" + std::to_string(i), "x", rng.Int(0, 1 << rng.Int(4, 20)),
                          static_cast<int32_t>(first),
                          static_cast<int32_t>(rng.Int(first, ops - 1))});
    }
    const ArenaLayout layout = LayOutArena(requests);
    ExpectSound(requests, layout);
    if (HasFatalFailure()) return;
    const int64_t bound = ArenaLowerBound(requests);
    if (bound > 0) {
      const double ratio = static_cast<double>(layout.bytes) / static_cast<double>(bound);
      worst = std::max(worst, ratio);
      sum += ratio;
    }
  }
  // Random lifetimes are far harder than a pass's; a pass's are in the next test.
  EXPECT_LE(worst, 1.25);
  EXPECT_LE(sum / kRounds, 1.03);
}

TEST(ArenaLayoutTest, NestedLifetimesReachTheLowerBound) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 50; ++round) {
    // A pass: layer l forward at op l, backward at op 2L-1-l; what l retains lives in between.
    const int32_t layers = static_cast<int32_t>(rng.Int(1, 40));
    const int32_t end = 2 * layers - 1;
    std::vector<BufferRequest> requests = {{"slot.0", "slots", 3 << 20, 0, end},
                                           {"slot.1", "slots", 3 << 20, 0, end}};
    for (int32_t l = 0; l < layers; ++l) {
      for (int t = 0; t < 3; ++t) {
        requests.push_back({"keep." + std::to_string(l) + "." + std::to_string(t), "retained",
                            rng.Int(1, 1 << 18), l, end - l});
      }
      requests.push_back({"f." + std::to_string(l), "scratch", rng.Int(1, 1 << 20), l, l});
      requests.push_back(
          {"b." + std::to_string(l), "scratch", rng.Int(1, 1 << 20), end - l, end - l});
    }
    const ArenaLayout layout = LayOutArena(requests);
    ExpectSound(requests, layout);
    EXPECT_EQ(layout.bytes, ArenaLowerBound(requests));
  }
}

TEST(ArenaLayoutTest, WhatLivesThroughoutLiesAtTheBottomInRequestOrder) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::vector<int64_t> offsets;
  for (int round = 0; round < 20; ++round) {
    std::vector<BufferRequest> requests = {{"slot.0", "slots", 1000, 0, 9},
                                           {"slot.1", "slots", 5000, 0, 9}};
    const int64_t n = rng.Int(0, 30);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t first = rng.Int(0, 9);
      requests.push_back({"b" + std::to_string(i), "x", rng.Int(0, 100000),
                          static_cast<int32_t>(first), static_cast<int32_t>(rng.Int(first, 9))});
    }
    const ArenaLayout layout = LayOutArena(requests);
    EXPECT_EQ(layout.buffers[0].offset, 0);
    EXPECT_EQ(layout.buffers[1].offset, 1024);
  }
}

TEST(ArenaLayoutTest, EqualRequestsGiveEqualOffsets) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::vector<BufferRequest> requests;
  for (int i = 0; i < 200; ++i) {
    const int64_t first = rng.Int(0, 99);
    requests.push_back({"b" + std::to_string(i), "x", rng.Int(1, 5) * 1000,
                        static_cast<int32_t>(first), static_cast<int32_t>(rng.Int(first, 99))});
  }
  const ArenaLayout a = LayOutArena(requests), b = LayOutArena(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(a.buffers[i].offset, b.buffers[i].offset);
  }
}

TEST(ArenaLayoutDeathTest, OurOwnMistakesStopUs) {
  EXPECT_DEATH(LayOutArena({{"a", "x", 1, 0, 1}, {"a", "x", 1, 2, 3}}), "CHECK");
  EXPECT_DEATH(LayOutArena({{"a", "x", -1, 0, 1}}), "CHECK");
  EXPECT_DEATH(LayOutArena({{"a", "x", 1, 2, 1}}), "CHECK");
}

}  // namespace
}  // namespace soup::engine
