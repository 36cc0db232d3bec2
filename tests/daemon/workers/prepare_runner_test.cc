// Processes that prepare data and their runner: who tells of progress may take long, who falls
// silent is ended.
#include "daemon/control/prepare_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/time/clock.h"

namespace soup::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PrepareRunnerOptions Options(absl::Duration silence_limit) {
  PrepareRunnerOptions options;
  options.binary =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake_worker").string();
  options.max_at_once = 1;
  options.silence_limit = silence_limit;
  return options;
}

soup::worker::v1::PrepareRequest Request(const std::string& manner) {
  soup::worker::v1::PrepareRequest request;
  request.set_output_path(manner);
  return request;
}

TEST(PrepareRunnerTest, AChildThatFallsSilentIsEndedAndItsPlaceIsFree) {
  PrepareRunner runner(Options(absl::Milliseconds(1500)));
  Cancellation cancel;
  int told = 0;
  const auto count = [&told](const soup::v1::Progress&) { ++told; };
  const auto silent = runner.Run(Request("silent"), &cancel, absl::InfiniteFuture(), count);
  ASSERT_TRUE(silent.ok()) << silent.status();
  EXPECT_EQ(told, 10) << "ended before it fell silent";
  EXPECT_FALSE(silent->ok());
  EXPECT_EQ(silent->reason(), soup::v1::INVALID_INPUT);
  EXPECT_THAT(silent->error(),
              AllOf(HasSubstr("no sign of life for 1.5s"), HasSubstr("can be read")));
  const auto next = runner.Run(Request(""), &cancel, absl::InfiniteFuture());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->ok()) << next->error();
}

TEST(PrepareRunnerTest, AChildThatTellsOfProgressMayTakeLongerThanTheSilenceLimit) {
  PrepareRunner runner(Options(absl::Milliseconds(1500)));
  Cancellation cancel;
  const absl::Time begun = absl::Now();
  const auto reply = runner.Run(Request(""), &cancel, absl::InfiniteFuture());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->ok()) << reply->error();
  EXPECT_GT(absl::Now() - begun, absl::Milliseconds(1700));
}

TEST(PrepareRunnerTest, TheCallersDeadlineIsToldAsSuch) {
  PrepareRunner runner(Options(absl::Minutes(1)));
  Cancellation cancel;
  const auto late = runner.Run(Request("silent"), &cancel, absl::Now() + absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
}

}  // namespace
}  // namespace soup::daemon
