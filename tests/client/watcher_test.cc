// Watching across broken connections: no gap, no repeat, no endless trying.
#include "client/watcher.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_soup.h"
#include "tests/client/test_files.h"

namespace soup::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Recorder final : public WatchObserver {
 public:
  void OnEvent(const soup::v1::JobEvent& e) override {
    told.push_back(absl::StrCat("e", e.sequence()));
    states.push_back(e.state());
  }
  void OnStep(const soup::v1::StepRecord& s) override {
    told.push_back(absl::StrCat("s", s.step()));
  }
  void OnDisconnected(const absl::Status&, absl::Duration) override { ++disconnects; }
  void OnReconnected() override { ++reconnects; }
  std::vector<std::string> told;
  std::vector<soup::v1::JobState> states;
  int disconnects = 0, reconnects = 0;
};

class WatcherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string socket = folder_ / "s";
    soup_.ServeUnix(socket);
    auto api = Api::Create({.endpoint = "unix:" + socket}, absl::Seconds(20));
    ASSERT_TRUE(api.ok()) << api.status();
    api_ = *std::move(api);
    soup_.AddJob("j1", "n", soup::v1::QUEUED);
    soup_.AddEvent("j1", soup::v1::QUEUED);
    soup_.AddEvent("j1", soup::v1::RUNNING);
    for (int step = 1; step <= 4; ++step) soup_.AddStep("j1", step, 2.0 / step);
  }

  TempDir folder_;
  FakeSoup soup_;
  std::unique_ptr<Api> api_;
  Recorder recorder_;
};

TEST_F(WatcherTest, TellsEverythingOnceToTheEnd) {
  soup_.AddEvent("j1", soup::v1::SUCCEEDED);
  const auto job = WatchJob(api_.get(), "j1", {}, &recorder_);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), soup::v1::SUCCEEDED);
  EXPECT_THAT(recorder_.told, ElementsAre("e1", "e2", "s1", "s2", "s3", "s4", "e3"));
  EXPECT_EQ(recorder_.disconnects, 0);
}

TEST_F(WatcherTest, BrokenConnectionsLeaveNoGapAndNoRepeat) {
  soup_.AddEvent("j1", soup::v1::SUCCEEDED);
  soup_.WithFaults([](auto& f) { f.cut_watch_after = {0, 1, 3, 1}; });
  const auto job = WatchJob(api_.get(), "j1", {}, &recorder_);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(recorder_.told, ElementsAre("e1", "e2", "s1", "s2", "s3", "s4", "e3"));
  EXPECT_EQ(recorder_.disconnects, 4);
  EXPECT_EQ(recorder_.reconnects, 4);
  const auto watches = soup_.seen().watches;
  ASSERT_EQ(watches.size(), 5u);
  EXPECT_EQ(watches[3].after_sequence(), 2);
  EXPECT_EQ(watches[3].after_step(), 2);
}

TEST_F(WatcherTest, BeginsAfterTheCursors) {
  soup_.AddEvent("j1", soup::v1::SUCCEEDED);
  const auto job = WatchJob(api_.get(), "j1", {.after_sequence = 2, .after_step = 3}, &recorder_);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(recorder_.told, ElementsAre("s4", "e3"));
}

TEST_F(WatcherTest, AStreamThatEndsBeforeTheJobIsTakenUpAgain) {
  soup_.WithFaults([](auto& f) { f.watch_ends_early = true; });
  std::thread later([this] {
    EXPECT_TRUE(soup_.AwaitWatches(2));
    soup_.AddEvent("j1", soup::v1::FAILED, "out of luck");
  });
  const auto job = WatchJob(api_.get(), "j1", {}, &recorder_);
  later.join();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(ExitCodeOf(JobOutcome(*job)), ExitCode::kJobFailed);
  EXPECT_THAT(std::string(JobOutcome(*job).message()), HasSubstr("out of luck"));
  EXPECT_THAT(recorder_.told, ElementsAre("e1", "e2", "s1", "s2", "s3", "s4", "e3"));
}

TEST_F(WatcherTest, ASilentStreamIsGivenUpForAnother) {
  soup_.WithFaults([](auto& f) { f.silent_watch = true; });
  soup_.AddEvent("j1", soup::v1::CANCELLED);
  const auto job =
      WatchJob(api_.get(), "j1", {.silence_limit = absl::Milliseconds(300)}, &recorder_);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_GE(recorder_.disconnects, 1);
  EXPECT_GE(soup_.seen().watches.size(), 2u);
}

TEST_F(WatcherTest, AServerThatStaysAwayEndsTheWatch) {
  soup_.WithFaults(
      [](auto& f) { f.every_call = grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining"); });
  const auto job =
      WatchJob(api_.get(), "j1", {.reconnect_limit = absl::Milliseconds(500)}, &recorder_);
  EXPECT_EQ(ExitCodeOf(job.status()), ExitCode::kUnavailable);
  EXPECT_THAT(std::string(job.status().message()), HasSubstr("draining"));
  EXPECT_GE(recorder_.disconnects, 1);
}

TEST_F(WatcherTest, RefusalsAreNotRetried) {
  EXPECT_EQ(ExitCodeOf(WatchJob(api_.get(), "none", {}, &recorder_).status()), ExitCode::kNotFound);
  soup_.WithFaults([](auto& f) {
    f.every_call = grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not yours");
  });
  EXPECT_EQ(ExitCodeOf(WatchJob(api_.get(), "j1", {}, &recorder_).status()), ExitCode::kAuth);
  EXPECT_EQ(recorder_.disconnects, 0);
}

TEST_F(WatcherTest, AJobThatSoupdPausedIsNotWaitedFor) {
  soup_.AddEvent("j1", soup::v1::PAUSED, "the disk is full", soup::v1::STORAGE);
  const absl::Time begun = absl::Now();
  const auto job =
      WatchJob(api_.get(), "j1", {.deadline = begun + absl::Seconds(60), .stop_when_paused = true},
               &recorder_);
  EXPECT_LT(absl::Now(), begun + absl::Seconds(50))
      << "a soupd with frequent heartbeats hides no pause";
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), soup::v1::PAUSED);
  EXPECT_EQ(recorder_.told.size(), 7u) << "what there was has been told";
  EXPECT_EQ(ExitCodeOf(JobOutcome(*job)), ExitCode::kPaused);
  EXPECT_THAT(std::string(JobOutcome(*job).message()),
              AllOf(HasSubstr("the disk is full"), HasSubstr("soupctl resume j1")));
}

TEST_F(WatcherTest, APauseThatIsHistoryOrAUsersIsNoEnd) {
  soup_.AddEvent("j1", soup::v1::PAUSED, "the disk is full", soup::v1::STORAGE);
  soup_.AddEvent("j1", soup::v1::QUEUED, "resumed", soup::v1::USER_REQUEST);
  soup_.AddEvent("j1", soup::v1::PAUSED, "as asked", soup::v1::USER_REQUEST);
  const auto waits =
      WatchJob(api_.get(), "j1",
               {.deadline = absl::Now() + absl::Seconds(3), .stop_when_paused = true}, &recorder_);
  EXPECT_EQ(ExitCodeOf(waits.status()), ExitCode::kWaitTimeout);
  soup_.AddEvent("j1", soup::v1::SUCCEEDED);
  const auto job = WatchJob(api_.get(), "j1", {.stop_when_paused = true}, &recorder_);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), soup::v1::SUCCEEDED);
}

TEST_F(WatcherTest, TheDeadlineHasAnExitCodeOfItsOwn) {
  const auto job =
      WatchJob(api_.get(), "j1", {.deadline = absl::Now() + absl::Seconds(3)}, &recorder_);
  EXPECT_EQ(ExitCodeOf(job.status()), ExitCode::kWaitTimeout);
  EXPECT_EQ(recorder_.told.size(), 6u) << "what there was has been told";
}

}  // namespace
}  // namespace soup::client
