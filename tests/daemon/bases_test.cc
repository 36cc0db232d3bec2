// Bases in host memory: dropped when room is needed, waited for when they are in use, and taking
// turns on the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/daemon/harness.h"

namespace soup::daemon {
namespace {

using soup::v1::Job;
using soup::v1::JobSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Records() {
  return ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl"));
}

// A second model: another config (and so another fingerprint), the same weights.
std::string SecondBase(const Harness& h) {
  const std::string path = h.dir() + "/second";
  std::filesystem::copy(h.dir() + "/base", path);
  std::string config = ReadFileOrEmpty(path + "/config.json");
  const std::string theta = "\"rope_theta\": 10000.0";
  const size_t at = config.find(theta);
  EXPECT_NE(at, std::string::npos);
  config.replace(at, theta.size(), "\"rope_theta\": 20000.0");
  std::ofstream(path + "/config.json") << config;
  return path;
}

// One base takes 6 MiB here (slabs begin at multiples of 2 MiB): room for one, not for two.
const char kRoomForOne[] = "--host-store-limit=8MiB";

TEST(BasesTest, AnIdleBaseMakesRoomForAnother) {
  Harness h({.flags = {kRoomForOne}, .state_dir = ""});
  const std::string second = SecondBase(h);
  ASSERT_TRUE(h.Start().ok());
  JobSpec a = h.Spec("a", Records());
  JobSpec b = h.Spec("b", Records(), second);
  std::string adapter;
  for (int round = 0; round < 2; ++round) {
    for (const JobSpec& spec : {a, b}) {
      const Job job = h.Submit(spec);
      const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
      ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
      if (spec.name() != "a") continue;
      if (adapter.empty()) adapter = h.Adapter(job.id());
      EXPECT_TRUE(h.Adapter(job.id()) == adapter);
    }
  }
  grpc::ClientContext context;
  soup::v1::Node node;
  ASSERT_TRUE(h.stub()->GetNode(&context, {}, &node).ok());
  ASSERT_EQ(node.bases_size(), 1) << "the first one was let go";
}

TEST(BasesTest, AJobWaitsForMemoryThatAnotherHolds) {
  Harness h({.flags = {kRoomForOne}, .state_dir = ""});
  const std::string second = SecondBase(h);
  ASSERT_TRUE(h.Start().ok());
  JobSpec endless = h.Spec("endless", Records());
  endless.mutable_training()->set_epochs(100000);
  const Job holder = h.Submit(endless);
  h.WaitForStep(holder.id(), 1);
  const Job waiter = h.Submit(h.Spec("waits", Records(), second));
  const bool waits = h.WatchUntil(waiter.id(), absl::Seconds(60), [](const auto& reply) {
    return reply.item_case() == soup::v1::WatchReply::kEvent &&
           reply.event().state() == soup::v1::QUEUED &&
           reply.event().reason() == soup::v1::OUT_OF_MEMORY;
  });
  EXPECT_TRUE(waits);
  ASSERT_TRUE(h.Cancel(holder.id()).ok());
  const Job done = h.WaitFor(waiter.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  ExpectWholeHistory(h, waiter.id(), soup::v1::SUCCEEDED);
}

TEST(BasesTest, AUsersQuotaOfPinnedBytesHolds) {
  Harness h({.flags = {"--quota-pinned=8MiB"}, .state_dir = ""});
  const std::string second = SecondBase(h);
  ASSERT_TRUE(h.Start().ok());
  JobSpec endless = h.Spec("endless", Records());
  endless.mutable_training()->set_epochs(100000);
  const Job holder = h.Submit(endless);
  h.WaitForStep(holder.id(), 1);
  EXPECT_GT(h.Get(holder.id()).planned_arena_bytes(), 0);
  const Job waiter = h.Submit(h.Spec("waits", Records(), second));
  std::string message;
  h.WatchUntil(waiter.id(), absl::Seconds(60), [&](const auto& reply) {
    if (reply.item_case() != soup::v1::WatchReply::kEvent ||
        reply.event().reason() != soup::v1::OUT_OF_MEMORY)
      return false;
    message = reply.event().message();
    return true;
  });
  EXPECT_THAT(message, HasSubstr("quota"));
  ASSERT_TRUE(h.Cancel(holder.id()).ok());
  const Job done = h.WaitFor(waiter.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
}

TEST(BasesTest, ABaseInUseIsNotEvictedAndAnIdleOneIs) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec endless = h.Spec("endless", Records());
  endless.mutable_training()->set_epochs(100000);
  const Job job = h.Submit(endless);
  h.WaitForStep(job.id(), 1);
  soup::v1::EvictCacheRequest request;
  request.set_request_id("evict-1");
  request.set_fingerprint(h.Get(job.id()).base_fingerprint());
  {
    grpc::ClientContext context;
    soup::v1::EvictCacheReply reply;
    const grpc::Status status = h.stub()->EvictCache(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr(job.id()));
  }
  ASSERT_TRUE(h.Cancel(job.id()).ok());
  h.WaitFor(job.id(), {soup::v1::CANCELLED});
  // Told CANCELLED a moment before its place is cleared.
  request.set_request_id("evict-2");
  grpc::Status status;
  soup::v1::EvictCacheReply reply;
  for (const absl::Time until = absl::Now() + absl::Seconds(20); absl::Now() < until;) {
    grpc::ClientContext context;
    status = h.stub()->EvictCache(&context, request, &reply);
    if (status.ok()) break;
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(reply.freed_bytes(), 0);
}

TEST(BasesTest, AMoreUrgentJobOnAnotherBaseHasItsTurnAndNoBitChanges) {
  Harness h;
  const std::string second = SecondBase(h);
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("alone", Records());
  spec.mutable_training()->set_epochs(40);
  spec.mutable_resources()->set_priority("low");
  const Job alone = h.Submit(spec);
  h.WaitFor(alone.id(), {soup::v1::SUCCEEDED});
  spec.set_name("interrupted");
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 10);
  JobSpec urgent = h.Spec("urgent", Records(), second);
  urgent.mutable_resources()->set_priority("high");
  const Job other = h.Submit(urgent);
  h.WaitFor(other.id(), {soup::v1::SUCCEEDED});
  h.WaitFor(job.id(), {soup::v1::SUCCEEDED});
  EXPECT_TRUE(h.Adapter(alone.id()) == h.Adapter(job.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

TEST(BasesTest, ADeviceTooSmallIsToldWithBothNumbers) {
  Harness h({.flags = {"--device-memory-limit=64KiB"}, .state_dir = ""});
  ASSERT_TRUE(h.Start().ok());
  const Job job = h.Submit(h.Spec("large", Records()));
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::FAILED);
  EXPECT_EQ(done.reason(), soup::v1::OUT_OF_MEMORY);
  EXPECT_THAT(done.message(), HasSubstr("--device-memory-limit of soupd allows 65536"));
  const auto plan = h.TryPlan(h.Spec("large", Records()));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->fits());
  EXPECT_THAT(plan->verdict(), AllOf(HasSubstr("does not fit: the job needs"),
                                     HasSubstr("--device-memory-limit of soupd allows 65536"),
                                     Not(HasSubstr("resources.vram"))));
}

// The base takes 42752 bytes. What can never hold it is told by plan and by submit alike.
TEST(BasesTest, ABaseThatIsLargerThanALimitIsRefusedAtPlanAndSubmit) {
  for (const std::string flag : {"--host-store-limit", "--quota-pinned", "--cache-cap"}) {
    SCOPED_TRACE(flag);
    Harness h({.flags = {flag + "=40KiB"}, .state_dir = ""});
    ASSERT_TRUE(h.Start().ok());
    const JobSpec spec = h.Spec("large", Records());
    const auto plan = h.TryPlan(spec);
    const auto job = h.TrySubmit(spec);
    ASSERT_FALSE(plan.ok()) << plan->verdict();
    ASSERT_FALSE(job.ok()) << job->id();
    EXPECT_EQ(plan.status(), job.status());
    EXPECT_THAT(std::string(job.status().message()),
                AllOf(HasSubstr("42752"), HasSubstr("40960"), HasSubstr(flag)));
  }
}

TEST(BasesTest, ABaseThatWasStoredUnderALargerCapIsUsed) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  h.WaitFor(h.Submit(h.Spec("first", Records())).id(), {soup::v1::SUCCEEDED});
  ASSERT_EQ(h.TerminateSoupd(), 0);
  Harness small(
      {.flags = {"--cache-cap=40KiB", "--model-root=" + h.dir()}, .state_dir = h.state_dir()});
  ASSERT_TRUE(small.Start().ok());
  const JobSpec spec = small.Spec("second", Records(), h.dir() + "/base");
  EXPECT_TRUE(small.TryPlan(spec).ok());
  const auto job = small.TrySubmit(spec, "second");
  ASSERT_TRUE(job.ok()) << job.status();
  const Job done = small.WaitFor(job->id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(small.TerminateSoupd(), 0);
}

// Queued under one cap, prepared under a smaller one: making room would not help.
TEST(BasesTest, AJobWhoseBaseOutgrewTheCapFails) {
  Harness h({.flags = {"--quota-running=1"}, .state_dir = ""});
  const std::string second = SecondBase(h);
  ASSERT_TRUE(h.Start().ok());
  JobSpec endless = h.Spec("endless", Records());
  endless.mutable_training()->set_epochs(100000);
  const Job holder = h.Submit(endless);
  h.WaitForStep(holder.id(), 1);
  const Job job = h.Submit(h.Spec("waits", Records(), second));
  h.KillSoupd();
  Harness small(
      {.flags = {"--cache-cap=40KiB", "--model-root=" + h.dir()}, .state_dir = h.state_dir()});
  ASSERT_TRUE(small.Start().ok());
  const Job done =
      small.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  EXPECT_EQ(done.state(), soup::v1::FAILED);
  EXPECT_THAT(done.message(), AllOf(HasSubstr("--cache-cap"), Not(HasSubstr("free some room"))));
  EXPECT_EQ(small.TerminateSoupd(), 0);
}

TEST(BasesTest, AReserveOfACardIsToldToBeOfNoUseOnTheCpu) {
  if (BackendForTests() != "cpu") GTEST_SKIP() << "for the CPU backend";
  Harness h({.flags = {"--device-reserve=1GiB"}, .state_dir = ""});
  ASSERT_TRUE(h.Start().ok());
  h.WaitForNode([](const soup::v1::Node& node) { return node.workers(0).up(); });
  EXPECT_THAT(h.log(), AllOf(HasSubstr("--device-reserve"), HasSubstr("--device-memory-limit")));
}

}  // namespace
}  // namespace soup::daemon
