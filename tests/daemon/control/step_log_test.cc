#include "daemon/control/step_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <string>

#include "engine/base/file_system.h"
#include "tests/support/temp_dir.h"

namespace soup::daemon {
namespace {

using soup::v1::StepRecord;

StepRecord Step(int64_t n) {
  StepRecord step;
  step.set_step(n);
  step.set_loss(4.0 / static_cast<double>(n));
  step.set_grad_norm(0.5);
  step.set_learning_rate(1e-4);
  step.set_tokens(100 + n);
  step.set_supervised_tokens(50 + n);
  step.set_step_seconds(0.25);
  step.set_stall_seconds(0.125);
  step.set_unix_ms(1'700'000'000'000 + n);
  step.set_copy_bytes(1 << 20);
  step.set_copy_seconds(0.0625);
  step.set_bucket_tail_tokens(7);
  step.set_padding_tokens(3);
  step.set_skipped(n % 3 == 0);
  step.set_has_validation_loss(n % 2 == 0);
  if (n % 2 == 0) step.set_validation_loss(2.5);
  return step;
}

std::vector<int64_t> NumbersOf(const std::vector<StepRecord>& steps) {
  std::vector<int64_t> numbers;
  for (const StepRecord& step : steps) numbers.push_back(step.step());
  return numbers;
}

class StepLogTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& job) const {
    return folder_.path() + "/" + job + "/steps.bin";
  }
  soup::testing::TempDir folder_{soup::testing::TempDir::kInMemory};
  StepLogs logs_{folder_.path()};
};

TEST_F(StepLogTest, AnAbsentLogIsEmpty) {
  EXPECT_TRUE(logs_.Read("j", 0, 10)->empty());
  EXPECT_EQ(logs_.Summary("j")->steps_done, 0);
  EXPECT_TRUE(std::isnan(logs_.Summary("j")->last_loss));
  EXPECT_FALSE(engine::RealFileSystem().Exists(PathOf("j")));  // reading makes nothing
}

TEST_F(StepLogTest, EveryFieldComesBackAndAnyStepCanBeReadFirst) {
  for (int64_t n = 1; n <= 600; ++n) ASSERT_TRUE(logs_.Append("j", Step(n)).ok());
  for (const bool closed : {false, true}) {
    if (closed) logs_.Release("j");
    const auto all = logs_.Read("j", 0, 10'000);
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->size(), 600u);
    for (int64_t n = 1; n <= 600; ++n) {
      EXPECT_EQ((*all)[static_cast<size_t>(n - 1)].SerializeAsString(),
                Step(n).SerializeAsString());
    }
    EXPECT_THAT(NumbersOf(*logs_.Read("j", 298, 3)), ::testing::ElementsAre(299, 300, 301));
    EXPECT_TRUE(logs_.Read("j", 600, 3)->empty());
    EXPECT_TRUE(logs_.Read("j", 1'000'000, 3)->empty());
    EXPECT_EQ(logs_.Summary("j")->steps_done, 600);
    EXPECT_DOUBLE_EQ(logs_.Summary("j")->last_loss, 4.0 / 600);
  }
}

TEST_F(StepLogTest, NanAndInfSurvive) {
  StepRecord step = Step(1);
  step.set_loss(std::numeric_limits<double>::quiet_NaN());
  step.set_grad_norm(std::numeric_limits<double>::infinity());
  ASSERT_TRUE(logs_.Append("j", step).ok());
  const auto back = logs_.Read("j", 0, 1);
  EXPECT_TRUE(std::isnan((*back)[0].loss()));
  EXPECT_TRUE(std::isinf((*back)[0].grad_norm()));
}

TEST_F(StepLogTest, AStepIsNeverToldTwice) {
  ASSERT_TRUE(logs_.Append("j", Step(1)).ok());
  ASSERT_TRUE(logs_.Append("j", Step(2)).ok());
  EXPECT_EQ(logs_.Append("j", Step(2)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(logs_.Append("j", Step(1)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StepLogTest, CutBackToTheMirrorsStepThenGoesOn) {
  for (int64_t n = 1; n <= 5; ++n) ASSERT_TRUE(logs_.Append("j", Step(n)).ok());
  logs_.Release("j");
  ASSERT_TRUE(logs_.CutAfter("j", 3).ok());
  EXPECT_EQ(logs_.Summary("j")->steps_done, 3);
  StepRecord again = Step(4);
  again.set_loss(99);
  ASSERT_TRUE(logs_.Append("j", again).ok());
  logs_.Release("j");
  const auto all = logs_.Read("j", 0, 10);
  EXPECT_THAT(NumbersOf(*all), ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_EQ((*all)[3].loss(), 99);
  ASSERT_TRUE(logs_.CutAfter("j", 0).ok());
  EXPECT_EQ(logs_.Summary("j")->steps_done, 0);
  ASSERT_TRUE(logs_.CutAfter("j", 7).ok());  // nothing to cut
}

TEST_F(StepLogTest, AHoleIsSkipped) {
  ASSERT_TRUE(logs_.Append("j", Step(1)).ok());
  ASSERT_TRUE(logs_.Append("j", Step(4)).ok());
  EXPECT_THAT(NumbersOf(*logs_.Read("j", 0, 10)), ::testing::ElementsAre(1, 4));
  EXPECT_THAT(NumbersOf(*logs_.Read("j", 2, 10)), ::testing::ElementsAre(4));
  ASSERT_TRUE(logs_.CutAfter("j", 3).ok());
  EXPECT_EQ(logs_.Summary("j")->steps_done, 1);
}

TEST_F(StepLogTest, ATornTailIsCutWhenTheLogIsWrittenAgain) {
  for (int64_t n = 1; n <= 3; ++n) ASSERT_TRUE(logs_.Append("j", Step(n)).ok());
  logs_.Release("j");
  ASSERT_EQ(truncate(PathOf("j").c_str(), 16 + 160 * 2 + 77), 0);
  EXPECT_THAT(NumbersOf(*logs_.Read("j", 0, 10)), ::testing::ElementsAre(1, 2));
  ASSERT_TRUE(logs_.Append("j", Step(3)).ok());
  logs_.Release("j");
  EXPECT_THAT(NumbersOf(*logs_.Read("j", 0, 10)), ::testing::ElementsAre(1, 2, 3));
}

TEST_F(StepLogTest, DamageInTheMiddleIsToldWithItsStep) {
  for (int64_t n = 1; n <= 3; ++n) ASSERT_TRUE(logs_.Append("j", Step(n)).ok());
  logs_.Release("j");
  const int fd = open(PathOf("j").c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(pwrite(fd, "x", 1, 16 + 160 + 20), 1);
  close(fd);
  const auto read = logs_.Read("j", 0, 10);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.status().message()), ::testing::HasSubstr("step 2"));
  EXPECT_THAT(NumbersOf(*logs_.Read("j", 2, 10)), ::testing::ElementsAre(3));
}

TEST_F(StepLogTest, AFileOfAnotherKindIsRefused) {
  ASSERT_TRUE(engine::RealFileSystem().CreateDirectories(folder_.path() + "/j").ok());
  ASSERT_TRUE(engine::RealFileSystem().WriteFileSynced(PathOf("j"), std::string(200, 'x')).ok());
  EXPECT_EQ(logs_.Append("j", Step(1)).code(), absl::StatusCode::kDataLoss);
}

TEST_F(StepLogTest, AFullDiskHoldsStepsBackAndLosesNone) {
  for (int64_t n = 1; n <= 2; ++n) ASSERT_TRUE(logs_.Append("j", Step(n)).ok());
  // A limit on the size of files stands in for the disk: EFBIG instead of ENOSPC, the same path.
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  signal(SIGXFSZ, SIG_IGN);
  rlimit tight = old;
  tight.rlim_cur = 16 + 160 * 2 + 50;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_FALSE(logs_.Append("j", Step(3)).ok());
  EXPECT_FALSE(logs_.Append("j", Step(4)).ok());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_THAT(NumbersOf(*logs_.Read("j", 0, 10)), ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(logs_.Summary("j")->steps_done, 4);
  EXPECT_EQ(engine::RealFileSystem().FileSize(PathOf("j")).value(), 16 + 160 * 2);
  ASSERT_TRUE(logs_.Flush("j").ok());
  logs_.Release("j");
  EXPECT_THAT(NumbersOf(*logs_.Read("j", 0, 10)), ::testing::ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace soup::daemon
