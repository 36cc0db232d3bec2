#include "daemon/control/device_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

namespace soup::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

DeviceMemoryView Card(int64_t total, int64_t free, int64_t arena = 0, int64_t overhead = 0) {
  return {.apart = true,
          .total_bytes = total,
          .free_bytes = free,
          .arena_bytes = arena,
          .overhead_bytes = overhead};
}

TEST(DeviceBudgetTest, ACardGivesWhatIsFreeAndHeldButItsReserve) {
  EXPECT_EQ(DefaultDeviceReserve(4 * kGiB), 64 * kMiB);
  EXPECT_EQ(DefaultDeviceReserve(24 * kGiB), 24 * kGiB / 100);
  EXPECT_EQ(DefaultDeviceReserve(140 * kGiB), 512 * kMiB);
  // A laptop: 3.5 GiB free after the context.
  EXPECT_EQ(ArenaBudget(Card(4 * kGiB, 3584 * kMiB, 0, 300 * kMiB), {}), 3520 * kMiB);
  // What the worker holds already is its own: the budget does not shrink by it, nor by strangers.
  EXPECT_EQ(ArenaBudget(Card(4 * kGiB, 584 * kMiB, 3000 * kMiB, 300 * kMiB), {}), 3520 * kMiB);
  EXPECT_EQ(ArenaBudget(Card(4 * kGiB, 0, 3000 * kMiB, 300 * kMiB), {}), 3000 * kMiB);
  EXPECT_EQ(ArenaBudget(Card(4 * kGiB, 3584 * kMiB), {.reserve_bytes = kGiB}), 2560 * kMiB);
}

TEST(DeviceBudgetTest, TheLimitIsOfTheProcessAndNeverMoreThanIsFree) {
  const DeviceMemoryView card = Card(140 * kGiB, 130 * kGiB, 0, kGiB);
  EXPECT_EQ(ArenaBudget(card, {.limit_bytes = 4 * kGiB}), 3 * kGiB);
  EXPECT_EQ(ArenaBudget(Card(140 * kGiB, 2 * kGiB, 0, kGiB), {.limit_bytes = 8 * kGiB}),
            2 * kGiB - 512 * kMiB);
  EXPECT_EQ(LargestProcess(card, {.limit_bytes = 4 * kGiB}), 4 * kGiB);
  EXPECT_EQ(LargestProcess(card, {}), 140 * kGiB - 512 * kMiB);
}

TEST(DeviceBudgetTest, AStrangerThatTakesAllLeavesNothingAndNoNegative) {
  EXPECT_EQ(ArenaBudget(Card(24 * kGiB, 100 * kMiB), {}), 0);
  EXPECT_EQ(ArenaBudget(Card(24 * kGiB, 0), {}), 0);
  EXPECT_EQ(ArenaBudget(Card(24 * kGiB, -1), {}), 0) << "not known is not endless";
  EXPECT_EQ(ArenaBudget(Card(24 * kGiB, 20 * kGiB, 0, 2 * kGiB), {.limit_bytes = kGiB}), 0);
}

TEST(DeviceBudgetTest, TheHostIsSharedWithEverything) {
  DeviceMemoryView host;
  host.total_bytes = 32 * kGiB;
  host.free_bytes = 16 * kGiB;
  host.arena_bytes = 2 * kGiB;
  host.overhead_bytes = kMiB;
  EXPECT_EQ(ArenaBudget(host, {}), 9 * kGiB);
  EXPECT_EQ(ArenaBudget(host, {.limit_bytes = kGiB}), kGiB - kMiB);
  EXPECT_EQ(LargestProcess(host, {}), 16 * kGiB + kMiB) << "the share that budgets have";
  EXPECT_EQ(LargestProcess(host, {.limit_bytes = 20 * kGiB}), 20 * kGiB);
  host.total_bytes = 0;
  EXPECT_EQ(LargestProcess(host, {}), 0) << "not known";
}

// Waiting is for those who can get it.
TEST(DeviceBudgetTest, WhatNeverFitsIsToldFromWhatWaits) {
  DeviceMemoryView host;
  host.total_bytes = 32 * kGiB;
  host.free_bytes = kGiB;
  EXPECT_EQ(NeverFits(host, {}, 16 * kGiB, 0), "") << "others may leave it as much";
  EXPECT_THAT(NeverFits(host, {}, 16 * kGiB + 1, 0),
              AllOf(HasSubstr(std::to_string(16 * kGiB)), HasSubstr("--device-memory-limit")));
  EXPECT_THAT(NeverFits(host, {}, 33 * kGiB, 0),
              AllOf(HasSubstr("the host has"), Not(HasSubstr("--device-memory-limit"))));
  EXPECT_EQ(NeverFits(host, {.limit_bytes = 20 * kGiB}, 20 * kGiB, 0), "");
  EXPECT_THAT(
      NeverFits(host, {.limit_bytes = kGiB}, 2 * kGiB, 0),
      AllOf(HasSubstr("--device-memory-limit of soupd allows 1073741824"), HasSubstr("raise it")));
  EXPECT_EQ(NeverFits(host, {}, 2 * kGiB, 2 * kGiB), "");
  EXPECT_THAT(NeverFits(host, {}, 2 * kGiB, kGiB),
              HasSubstr("resources.vram allows 1073741824: raise it"));
  EXPECT_THAT(NeverFits(host, {}, 17 * kGiB, kGiB), Not(HasSubstr("resources.vram")))
      << "raising it would not help";
  EXPECT_EQ(NeverFits(Card(4 * kGiB, 0), {}, 3 * kGiB, 0), "");
  EXPECT_THAT(NeverFits(Card(4 * kGiB, 4 * kGiB), {}, 4 * kGiB, 0), HasSubstr("the device has"));
}

// Whatever the card says: an arena of the budget fits, beside the overhead and the reserve.
TEST(DeviceBudgetTest, TheBudgetAlwaysFits) {
  const char* given = std::getenv("SOUP_TEST_SEED");
  const uint32_t seed =
      given != nullptr ? std::strtoul(given, nullptr, 10) : std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937_64 rng(seed);
  auto upto = [&rng](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(rng); };
  for (int i = 0; i < 10000; ++i) {
    DeviceMemoryView card = Card(1 + upto(160 * kGiB), 0);
    card.apart = upto(1) == 0;
    card.overhead_bytes = upto(card.total_bytes);
    card.arena_bytes = upto(card.total_bytes - card.overhead_bytes);
    card.free_bytes = upto(card.total_bytes - card.overhead_bytes - card.arena_bytes);
    const DeviceLimits limits = {.limit_bytes = upto(1) == 0 ? 0 : upto(2 * card.total_bytes),
                                 .reserve_bytes = upto(1) == 0 ? 0 : upto(card.total_bytes)};
    const int64_t budget = ArenaBudget(card, limits);
    ASSERT_GE(budget, 0);
    if (card.apart || limits.limit_bytes == 0) {
      ASSERT_LE(budget, card.free_bytes + card.arena_bytes) << "seed " << seed;
    }
    if (limits.limit_bytes > 0 && budget > 0) {
      ASSERT_LE(budget + card.overhead_bytes, limits.limit_bytes) << "seed " << seed;
    }
    const int64_t most = LargestProcess(card, limits);
    ASSERT_LE(budget, std::max(card.arena_bytes, most)) << "seed " << seed;
    if (!card.apart && budget > 0) {
      ASSERT_LE(budget + card.overhead_bytes, most) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace soup::daemon
