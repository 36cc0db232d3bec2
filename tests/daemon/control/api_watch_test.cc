#include <gmock/gmock.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/daemon/control/api_fixture.h"

namespace soup::daemon {
namespace {

using ::testing::ElementsAre;
using namespace soup::v1;

// One word an item: "QUEUED", "step 3", …; heartbeats and progress are left out.
std::string WordOf(const WatchReply& reply) {
  if (reply.has_event()) return JobStateName(reply.event().state());
  if (reply.has_step()) return "step " + std::to_string(reply.step().step());
  return "";
}

class ApiWatchTest : public ApiTest {
 protected:
  void SetUp() override {
    StartServer();
    alice_ = As("alice");
    job_ = Submit(*alice_, "n").id();
  }

  WatchRequest Request(int64_t after_sequence = 0, int64_t after_step = 0) const {
    WatchRequest request;
    request.set_job_id(job_);
    request.set_after_sequence(after_sequence);
    request.set_after_step(after_step);
    return request;
  }

  std::vector<std::string> WatchWhole(const WatchRequest& request) {
    Call call;
    auto reader = alice_->Watch(&call, request);
    std::vector<std::string> words;
    for (const WatchReply& reply : ReadAll(*reader)) {
      if (!WordOf(reply).empty()) words.push_back(WordOf(reply));
    }
    EXPECT_TRUE(reader->Finish().ok());
    return words;
  }

  std::unique_ptr<Soup::Stub> alice_;
  std::string job_;
};

TEST_F(ApiWatchTest, AnEndedJobIsToldWholeAndTheStreamEnds) {
  fake_->RunWhole(job_, 2);
  EXPECT_THAT(WatchWhole(Request()), ElementsAre("QUEUED", "PREPARING", "RUNNING", "step 1",
                                                 "step 2", "FINALIZING", "SUCCEEDED"));
  EXPECT_THAT(WatchWhole(Request(3, 1)), ElementsAre("step 2", "FINALIZING", "SUCCEEDED"));
  EXPECT_THAT(WatchWhole(Request(5, 2)), ElementsAre());
  EXPECT_THAT(WatchWhole(Request(5, 0)), ElementsAre("step 1", "step 2"));
}

TEST_F(ApiWatchTest, ALiveJobIsToldWithoutGapOrRepeatByManyWatchers) {
  constexpr int kSteps = 700;  // more than one page of steps
  std::vector<std::vector<std::string>> heard(4);
  std::vector<std::thread> watchers;
  for (auto& words : heard) {
    watchers.emplace_back([&] { words = WatchWhole(Request()); });
  }
  fake_->RunWhole(job_, kSteps);
  for (std::thread& watcher : watchers) watcher.join();
  std::vector<std::string> want = {"QUEUED", "PREPARING", "RUNNING"};
  for (int n = 1; n <= kSteps; ++n) want.push_back("step " + std::to_string(n));
  want.insert(want.end(), {"FINALIZING", "SUCCEEDED"});
  for (const auto& words : heard) EXPECT_EQ(words, want);
}

// More state events than are read at once: steps that come after them wait.
TEST_F(ApiWatchTest, StepsKeepTheirPlaceAmongManyEvents) {
  constexpr int kRuns = 30;                                          // three events each
  const auto apart = [] { absl::SleepFor(absl::Milliseconds(2)); };  // times tell what was first
  std::vector<std::string> want = {"QUEUED"};
  for (int n = 1; n <= kRuns; ++n) {
    fake_->StartRunning(job_, kRuns);
    apart();
    fake_->DoStep(job_, n);
    apart();
    if (n < kRuns) fake_->Move(job_, JobTrigger::kRequeued);
    want.insert(want.end(), {"PREPARING", "RUNNING", "step " + std::to_string(n)});
    if (n < kRuns) want.emplace_back("QUEUED");
  }
  fake_->Finish(job_);
  want.insert(want.end(), {"FINALIZING", "SUCCEEDED"});
  EXPECT_EQ(WatchWhole(Request()), want);
}

TEST_F(ApiWatchTest, ADisconnectedWatchGoesOnFromItsCursors) {
  fake_->StartRunning(job_, 10);
  std::vector<std::string> words;
  int64_t sequence = 0;
  int64_t step = 0;
  for (int n = 1; n <= 10; ++n) {
    fake_->DoStep(job_, n);
    if (n == 10) fake_->Finish(job_);
    Call call;
    auto reader = alice_->Watch(&call, Request(sequence, step));
    WatchReply reply;
    // Leaves after the step that was just done.
    while ((n == 10 || step < n) && reader->Read(&reply)) {
      if (WordOf(reply).empty()) continue;
      words.push_back(WordOf(reply));
      if (reply.has_event()) sequence = reply.event().sequence();
      if (reply.has_step()) step = reply.step().step();
    }
    call.TryCancel();
    reader->Finish();
  }
  EXPECT_THAT(words, ElementsAre("QUEUED", "PREPARING", "RUNNING", "step 1", "step 2", "step 3",
                                 "step 4", "step 5", "step 6", "step 7", "step 8", "step 9",
                                 "step 10", "FINALIZING", "SUCCEEDED"));
  EXPECT_EQ(store_->GetJob(job_)->state, SUCCEEDED);  // going away cancelled nothing
}

TEST_F(ApiWatchTest, HeartbeatsAndTheLatestProgressAreTold) {
  fake_->Move(job_, JobTrigger::kPrepareStarted);
  Progress progress;
  progress.set_stage("quantise");
  progress.set_done(5);
  hub_.SetProgress(job_, progress);
  Call call;
  auto reader = alice_->Watch(&call, Request());
  bool beat = false;
  bool progressed = false;
  WatchReply reply;
  while (!(beat && progressed) && reader->Read(&reply)) {
    if (reply.has_heartbeat()) {
      beat = true;
      EXPECT_EQ(reply.heartbeat().state(), PREPARING);
    }
    if (reply.has_progress()) {
      progressed = true;
      EXPECT_EQ(reply.progress().done(), 5);
    }
  }
  EXPECT_TRUE(beat && progressed);
  call.TryCancel();
}

TEST_F(ApiWatchTest, OthersCannotWatchAndBadCursorsAreRefused) {
  const auto bob = As("bob");
  Call call1, call2;
  auto foreign = bob->Watch(&call1, Request());
  ReadAll(*foreign);
  EXPECT_EQ(foreign->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  auto bad = alice_->Watch(&call2, Request(-1, 0));
  ReadAll(*bad);
  EXPECT_EQ(bad->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ApiWatchTest, WatchersAreBoundedAndFreedWhenTheyLeave) {
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<WatchReply>>> readers;
  WatchReply reply;
  for (int i = 0; i < 8; ++i) {  // the fixture's hub takes 8
    calls.push_back(std::make_unique<Call>());
    readers.push_back(alice_->Watch(calls.back().get(), Request()));
    ASSERT_TRUE(readers.back()->Read(&reply));
  }
  {
    Call call;
    auto ninth = alice_->Watch(&call, Request());
    ReadAll(*ninth);
    EXPECT_EQ(ninth->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  for (size_t i = 0; i < 8; ++i) {
    calls[i]->TryCancel();
    readers[i]->Finish();
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (hub_.watchers() > 0 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(hub_.watchers(), 0);
}

TEST_F(ApiWatchTest, DrainEndsWatchesWithUnavailable) {
  Call call;
  auto reader = alice_->Watch(&call, Request());
  WatchReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  server_->BeginDrain();
  while (reader->Read(&reply)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace soup::daemon
