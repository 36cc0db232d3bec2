#include "engine/train/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace soup::engine {
namespace {

// Values of transformers' get_cosine_schedule_with_warmup and get_linear_schedule_with_warmup for
// 3 warm-up and 10 training steps at peak 1.
TEST(LrSchedule, WarmUpIsLinearFromZero) {
  for (const auto kind : {LrScheduler::kConstant, LrScheduler::kLinear, LrScheduler::kCosine}) {
    const LrSchedule s = MakeLrSchedule(kind, 1.0, 0.3, 10);
    EXPECT_EQ(s.warmup_steps, 3);
    EXPECT_DOUBLE_EQ(s.At(0), 0.0);
    EXPECT_DOUBLE_EQ(s.At(1), 1.0 / 3);
    EXPECT_DOUBLE_EQ(s.At(2), 2.0 / 3);
    EXPECT_DOUBLE_EQ(s.At(3), 1.0);
  }
}

TEST(LrSchedule, Decay) {
  const LrSchedule linear = MakeLrSchedule(LrScheduler::kLinear, 1.0, 0.3, 10);
  const LrSchedule cosine = MakeLrSchedule(LrScheduler::kCosine, 1.0, 0.3, 10);
  const LrSchedule constant = MakeLrSchedule(LrScheduler::kConstant, 1.0, 0.3, 10);
  EXPECT_DOUBLE_EQ(linear.At(6), 4.0 / 7);
  EXPECT_DOUBLE_EQ(linear.At(9), 1.0 / 7);
  EXPECT_NEAR(cosine.At(6), 0.6112604669781572, 1e-15);
  EXPECT_NEAR(cosine.At(9), 0.04951556604879043, 1e-15);
  EXPECT_DOUBLE_EQ(constant.At(9), 1.0);
  EXPECT_DOUBLE_EQ(linear.At(20), 0.0);
}

TEST(LrSchedule, WarmUpIsRoundedUp) {
  EXPECT_EQ(MakeLrSchedule(LrScheduler::kCosine, 1.0, 0.03, 100).warmup_steps, 3);
  EXPECT_EQ(MakeLrSchedule(LrScheduler::kCosine, 1.0, 0.03, 101).warmup_steps, 4);
  EXPECT_EQ(MakeLrSchedule(LrScheduler::kCosine, 1.0, 0.0, 101).warmup_steps, 0);
}

TEST(LrSchedule, Names) {
  EXPECT_EQ(*ParseLrScheduler("linear"), LrScheduler::kLinear);
  const auto bad = ParseLrScheduler("cosin");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("cosin"), std::string::npos);
}

}  // namespace
}  // namespace soup::engine
