// Contract 4, nothing lost: kill -9 of a worker and of soupd at moments drawn at random, and the
// adapter has the bytes of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>

#include "daemon/control/spawn.h"
#include "tests/daemon/harness.h"

namespace soup::daemon {
namespace {

using soup::v1::Job;
using soup::v1::JobSpec;
using ::testing::HasSubstr;

std::string Records() {
  return ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl"));
}

uint32_t Seed() {
  const char* given = std::getenv("SOUP_TEST_SEED");
  return given != nullptr ? std::strtoul(given, nullptr, 10) : std::random_device{}();
}

JobSpec LongSpec(Harness& h, const std::string& name) {
  JobSpec spec = h.Spec(name, Records());
  spec.mutable_training()->set_epochs(40);  // 400 steps
  spec.mutable_training()->set_save_every(50);
  spec.mutable_data()->set_validation_fraction(0.1);
  return spec;
}

TEST(CrashTest, KilledWorkersCostNothing) {
  const uint32_t seed = Seed();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE("SOUP_TEST_SEED=" + std::to_string(seed));
  std::mt19937 rng(seed);
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job calm = h.Submit(LongSpec(h, "calm"));
  const int64_t total = h.WaitFor(calm.id(), {soup::v1::SUCCEEDED}).steps_total();
  const Job job = h.Submit(LongSpec(h, "killed"));
  pid_t last = 0;
  for (int kill = 1; kill <= 4; ++kill) {
    // A job that has made a step since does not count as one that kills its workers.
    h.WaitForStep(job.id(),
                  kill * total / 6 + std::uniform_int_distribution<int64_t>(0, total / 8)(rng));
    last = h.WorkerPid(last);
    ASSERT_GT(last, 0);
    ::kill(last, SIGKILL);
  }
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(h.Adapter(calm.id()), h.Adapter(job.id()));
  EXPECT_GT(done.attempts(), 1);
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

TEST(CrashTest, AKilledSoupdGoesOn) {
  const uint32_t seed = Seed();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE("SOUP_TEST_SEED=" + std::to_string(seed));
  std::mt19937 rng(seed);
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job calm = h.Submit(LongSpec(h, "calm"));
  const int64_t total = h.WaitFor(calm.id(), {soup::v1::SUCCEEDED}).steps_total();
  const Job job = h.Submit(LongSpec(h, "killed"));
  for (int kill = 1; kill <= 4; ++kill) {
    h.WaitForStep(job.id(),
                  kill * total / 6 + std::uniform_int_distribution<int64_t>(0, total / 8)(rng));
    const auto worker = MarkOf(h.WorkerPid());
    const auto told = h.Steps(job.id());
    h.KillSoupd();
    // No worker outlives its soupd.
    if (worker.has_value()) {
      EXPECT_TRUE(
          AwaitGone(*worker, absl::InfiniteDuration(), absl::Now() + absl::Seconds(5)).ok());
    }
    ASSERT_TRUE(h.Start().ok());
    // What was told stands: the same steps with the same values.
    h.WaitForStep(job.id(), static_cast<int64_t>(told.size()));
    const auto now = h.Steps(job.id());
    ASSERT_GE(now.size(), told.size());
    for (size_t i = 0; i < told.size(); ++i) {
      ASSERT_EQ(now[i].step(), told[i].step());
      ASSERT_EQ(now[i].loss(), told[i].loss());
    }
  }
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(h.Adapter(calm.id()), h.Adapter(job.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

TEST(CrashTest, SoupdKilledAtAnyMomentOfALifeLosesNoAcknowledgedJob) {
  const uint32_t seed = Seed();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE("SOUP_TEST_SEED=" + std::to_string(seed));
  std::mt19937 rng(seed);
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  std::vector<std::string> acknowledged;
  for (int round = 0; round < 6; ++round) {
    JobSpec spec = h.Spec("job-" + std::to_string(round), Records());
    spec.mutable_training()->set_max_steps(20);
    acknowledged.push_back(h.Submit(spec).id());
    // Killed within a while: while it prepares, runs, finalises, or after.
    const absl::Duration wait = absl::Milliseconds(std::uniform_int_distribution<int>(0, 700)(rng));
    h.WatchUntil(acknowledged.back(), wait, [](const auto&) { return false; });
    h.KillSoupd();
    ASSERT_TRUE(h.Start().ok());
  }
  std::string first;
  for (const std::string& id : acknowledged) {
    const Job done = h.WaitFor(id, {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
    EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
    ExpectWholeHistory(h, id, soup::v1::SUCCEEDED);
    if (first.empty()) first = h.Adapter(id);
    EXPECT_FALSE(first.empty());
    EXPECT_EQ(h.Adapter(id), first);
  }
}

TEST(CrashTest, AJobThatKillsItsWorkerThreeTimesIsPausedAndItsNeighbourIsNot) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec endless = h.Spec("endless", Records());
  endless.mutable_training()->set_epochs(100000);
  const Job job = h.Submit(endless);
  h.WaitForStep(job.id(), 1);
  // Killed as soon as it is up again, before a step is done: the job is seen to kill it. Steps are
  // quick here, so a kill may come late; what must never happen is that the job fails or loses.
  pid_t pid = 0;
  Job now;
  for (int i = 0; i < 30; ++i) {
    pid = h.WorkerPid(pid);
    ::kill(pid, SIGKILL);
    now = h.Get(job.id());
    if (now.state() == soup::v1::PAUSED) break;
    ASSERT_NE(now.state(), soup::v1::FAILED);
  }
  if (now.state() == soup::v1::PAUSED) {
    EXPECT_EQ(now.reason(), soup::v1::DEVICE_LOST);
    EXPECT_THAT(now.message(), HasSubstr("3 times"));
    ASSERT_TRUE(h.Resume(job.id()).ok());
  }
  const int64_t before = h.Get(job.id()).steps_done();
  h.WaitForStep(job.id(), before + 1);
  ASSERT_TRUE(h.Cancel(job.id()).ok());
  h.WaitFor(job.id(), {soup::v1::CANCELLED});
}

}  // namespace
}  // namespace soup::daemon
