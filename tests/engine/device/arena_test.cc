#include "engine/device/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/device/cpu_backend.h"
#include "engine/plan/arena_layout.h"
#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ArenaTest : public ::testing::Test {
 protected:
  std::unique_ptr<Arena> MakeArena(int64_t bytes, bool poison = false) {
    backend_ = MakeCpuBackend({.cpu_threads = 1, .poison_arena = poison});
    auto arena = backend_->CreateArena(bytes);
    EXPECT_TRUE(arena.ok()) << arena.status();
    return arena.ok() ? std::move(*arena) : nullptr;
  }
  std::unique_ptr<Backend> backend_;
};

std::string MessageOf(const absl::Status& status, absl::StatusCode code) {
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST_F(ArenaTest, WhatWasTakenIsMeasured) {
  const auto layout = LayOutArena({{"a", "x", 1000, 0, 1},
                                   {"b", "x", 5000, 1, 2},
                                   {"none", "x", 0, 0, 2},
                                   {"c", "x", 300, 2, 3}});
  auto arena = MakeArena(layout.bytes);
  ASSERT_TRUE(arena->Bind(layout).ok());
  EXPECT_EQ(arena->high_water_bytes(), 0);
  {
    auto a = arena->Take("a", 1000);
    auto none = arena->Take("none");
    ASSERT_TRUE(a.ok() && none.ok());
    EXPECT_EQ(a->bytes(), 1000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data()) % kArenaAlignment, 0u);
    auto b = arena->Take("b");
    ASSERT_TRUE(b.ok()) << b.status();
    a->Reset();
    auto c = arena->Take("c", 300);
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(arena->live_buffers(), 3);
  }
  EXPECT_EQ(arena->live_buffers(), 0);
  EXPECT_EQ(arena->high_water_bytes(), layout.bytes);
}

TEST_F(ArenaTest, ASmallerUseShowsInTheMeasure) {
  const auto layout = LayOutArena({{"a", "x", 10000, 0, 1}});
  auto arena = MakeArena(layout.bytes);
  ASSERT_TRUE(arena->Bind(layout).ok());
  ASSERT_TRUE(arena->Take("a", 100).ok());
  EXPECT_EQ(arena->high_water_bytes(), 256);
}

TEST_F(ArenaTest, AViolatedPlanIsAnError) {
  const auto layout =
      LayOutArena({{"a", "x", 1000, 0, 1}, {"b", "x", 1000, 2, 3}, {"rest", "x", 10, 0, 3}});
  auto arena = MakeArena(layout.bytes);
  ASSERT_TRUE(arena->Bind(layout).ok());
  auto a = arena->Take("a", 1000);
  ASSERT_TRUE(a.ok());
  EXPECT_THAT(MessageOf(arena->Take("a", 1000).status(), absl::StatusCode::kFailedPrecondition),
              AllOf(HasSubstr("'a'"), HasSubstr("in use")));
  EXPECT_THAT(MessageOf(arena->Take("zz", 7).status(), absl::StatusCode::kNotFound),
              AllOf(HasSubstr("'zz'"), HasSubstr("7 bytes")));
  EXPECT_THAT(MessageOf(arena->Take("rest", 257).status(), absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("256"), HasSubstr("257")));
  // The plan let b share a's bytes, as a would be gone by then.
  EXPECT_THAT(MessageOf(arena->Take("b", 1000).status(), absl::StatusCode::kFailedPrecondition),
              AllOf(HasSubstr("'a'"), HasSubstr("'b'"), HasSubstr("shares")));
  a->Reset();
  EXPECT_TRUE(arena->Take("b", 1000).ok());
}

TEST_F(ArenaTest, SlotsLiveOnFromPassToPass) {
  auto arena = MakeArena(100000);
  const auto first = LayOutArena({{"slot.0", "slots", 1000, 0, 9}, {"a", "x", 500, 2, 3}});
  const auto second = LayOutArena({{"slot.0", "slots", 1000, 0, 5}, {"other", "x", 9000, 0, 3}});
  const auto third = LayOutArena({{"slot.0", "slots", 2000, 0, 5}});
  ASSERT_TRUE(arena->Bind(first).ok());
  auto slot = arena->Take("slot.0");
  ASSERT_TRUE(slot.ok());
  *slot->as<int>() = 4711;
  {
    auto a = arena->Take("a");
    ASSERT_TRUE(a.ok());
    EXPECT_THAT(MessageOf(arena->Bind(second), absl::StatusCode::kFailedPrecondition),
                HasSubstr("'a'"));
  }
  ASSERT_TRUE(arena->Bind(second).ok());
  EXPECT_EQ(*slot->as<int>(), 4711);
  EXPECT_EQ(arena->high_water_bytes(), 1024);
  EXPECT_EQ(arena->Take("slot.0").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(arena->Bind(third), absl::StatusCode::kFailedPrecondition),
              HasSubstr("'slot.0'"));
  slot->Reset();
  EXPECT_TRUE(arena->Bind(third).ok());
}

TEST_F(ArenaTest, LayoutsThatDoNotFitAreRefused) {
  auto arena = MakeArena(1024);
  EXPECT_THAT(MessageOf(arena->Bind(LayOutArena({{"a", "x", 2000, 0, 1}})),
                        absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("2048"), HasSubstr("1024")));
  EXPECT_THAT(MessageOf(arena->Bind({{{"a", "x", 100, 256, 0, 1}}, 1024}),
                        absl::StatusCode::kInvalidArgument),
              HasSubstr("unaligned"));
  EXPECT_THAT(MessageOf(arena->Bind({{{"a", "x", 768, 512, 0, 1}}, 1024}),
                        absl::StatusCode::kInvalidArgument),
              HasSubstr("outside"));
  EXPECT_THAT(MessageOf(arena->Bind({{{"a", "x", 0, 256, 0, 1}, {"a", "x", 256, 256, 0, 1}}, 1024}),
                        absl::StatusCode::kInvalidArgument),
              HasSubstr("twice"));
}

TEST_F(ArenaTest, PoisonShowsAReadBeforeAWrite) {
  auto arena = MakeArena(4096, /*poison=*/true);
  ASSERT_TRUE(arena->Bind(LayOutArena({{"a", "x", 64, 0, 1}})).ok());
  {
    auto a = arena->Take("a");
    ASSERT_TRUE(a.ok());
    EXPECT_NE(*a->as<float>(), *a->as<float>()) << "a NaN";
    *a->as<float>() = 1;
  }
  auto again = arena->Take("a");
  ASSERT_TRUE(again.ok());
  EXPECT_NE(*again->as<float>(), *again->as<float>());
}

TEST_F(ArenaTest, RandomPassesKeepToTheirPlan) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 30; ++round) {
    std::vector<BufferRequest> requests;
    const int32_t ops = static_cast<int32_t>(rng.Int(1, 30));
    for (int64_t i = rng.Int(1, 40); i > 0; --i) {
      const auto first = static_cast<int32_t>(rng.Int(0, ops - 1));
      requests.push_back({"b" + std::to_string(i), "x", rng.Int(0, 5000), first,
                          static_cast<int32_t>(rng.Int(first, ops - 1))});
    }
    const ArenaLayout layout = LayOutArena(requests);
    auto arena = MakeArena(layout.bytes);
    ASSERT_TRUE(arena->Bind(layout).ok());
    std::vector<ArenaBuffer> live(requests.size());
    for (int32_t op = 0; op < ops; ++op) {
      for (size_t i = 0; i < requests.size(); ++i) {
        if (requests[i].first != op) continue;
        auto buffer = arena->Take(requests[i].name, requests[i].bytes);
        ASSERT_TRUE(buffer.ok()) << buffer.status();
        live[i] = std::move(*buffer);
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        if (requests[i].last == op) live[i].Reset();
      }
    }
    EXPECT_EQ(arena->high_water_bytes(), layout.bytes);
  }
}

TEST_F(ArenaTest, MoreThanTheHostHasIsRefused) {
  backend_ = MakeCpuBackend({.cpu_threads = 1});
  EXPECT_THAT(MessageOf(backend_->CreateArena(int64_t{1} << 60).status(),
                        absl::StatusCode::kResourceExhausted),
              HasSubstr("1152921504606846976"));
}

}  // namespace
}  // namespace soup::engine
