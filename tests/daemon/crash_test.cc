// Contract 4, nothing lost: kill -9 of a worker and of soupd at moments drawn at random, and the
// adapter has the bytes of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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
  EXPECT_TRUE(h.Adapter(calm.id()) == h.Adapter(job.id()));
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
  EXPECT_TRUE(h.Adapter(calm.id()) == h.Adapter(job.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

TEST(CrashTest, AStoppedSoupdGoesOnToo) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job calm = h.Submit(LongSpec(h, "calm"));
  h.WaitFor(calm.id(), {soup::v1::SUCCEEDED});
  const Job job = h.Submit(LongSpec(h, "stopped"));
  h.WaitForStep(job.id(), 20);
  ASSERT_EQ(h.TerminateSoupd(), 0);
  ASSERT_TRUE(h.Start().ok());
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(done.attempts(), 2);
  EXPECT_TRUE(h.Adapter(calm.id()) == h.Adapter(job.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
  bool preempted = false;
  for (const auto& event : h.Events(job.id()))
    preempted = preempted || event.reason() == soup::v1::PREEMPTED;
  EXPECT_TRUE(preempted) << "it was given back in good order";
}

TEST(CrashTest, AWorkerThatDoesNotComeUpIsTold) {
  Harness h({.flags = {"--worker-binary=/bin/false"}, .state_dir = ""});
  ASSERT_TRUE(h.Start().ok());
  absl::Time until = absl::Now() + absl::Seconds(30);
  std::string state;
  while (state.find("exit status 1") == std::string::npos && absl::Now() < until) {
    grpc::ClientContext context;
    soup::v1::Node node;
    ASSERT_TRUE(h.stub()->GetNode(&context, {}, &node).ok());
    state = node.workers(0).state();
  }
  EXPECT_THAT(state, HasSubstr("exit status 1"));
  // Data cannot be prepared either, since the same program does it: the job says so.
  const Job job = h.Submit(h.Spec("stuck", Records()));
  const Job done = h.WaitFor(job.id(), {soup::v1::FAILED});
  EXPECT_THAT(done.message(), HasSubstr("exit status 1"));
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
    EXPECT_TRUE(h.Adapter(id) == first);
  }
}

std::string DyingWorker(const std::string& dir, const std::string& death) {
  return WorkerWithHook(dir, "--test-die=" + death);
}

TEST(CrashTest, AJobThatKillsItsWorkerThreeTimesIsPausedAndItsNeighbourIsNot) {
  std::string pattern = "/tmp/dyingXXXXXX";
  const std::string dir = ::mkdtemp(pattern.data());
  {
    Harness h(
        {.flags = {"--worker-binary=" + DyingWorker(dir, "killer:30:before")}, .state_dir = ""});
    ASSERT_TRUE(h.Start().ok());
    JobSpec spec = h.Spec("calm", Records());
    spec.mutable_training()->set_epochs(20);
    const Job calm = h.Submit(spec);
    h.WaitFor(calm.id(), {soup::v1::SUCCEEDED});
    JobSpec neighbour = spec;
    neighbour.set_name("neighbour");
    spec.set_name("killer");
    const Job killer = h.Submit(spec);
    const Job beside = h.Submit(neighbour);
    const Job paused =
        h.WaitFor(killer.id(), {soup::v1::PAUSED, soup::v1::FAILED, soup::v1::SUCCEEDED});
    EXPECT_EQ(paused.state(), soup::v1::PAUSED);
    EXPECT_EQ(paused.reason(), soup::v1::DEVICE_LOST);
    EXPECT_THAT(paused.message(), HasSubstr("3 times"));
    EXPECT_EQ(paused.steps_done(), 29) << "what was done is kept";
    const Job done =
        h.WaitFor(beside.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
    EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
    EXPECT_TRUE(h.Adapter(calm.id()) == h.Adapter(beside.id()));
    ExpectWholeHistory(h, beside.id(), soup::v1::SUCCEEDED);
  }
  std::filesystem::remove_all(dir);
}

TEST(CrashTest, AStepThatWasCommittedButNotToldIsToldOnceByTheNextWorker) {
  std::string pattern = "/tmp/dyingXXXXXX";
  const std::string dir = ::mkdtemp(pattern.data());
  // Step 7 in the middle of an epoch; step 9 ends one, so its validation is still to come.
  for (const std::string step : {"7", "9"}) {
    Harness h({.flags = {"--worker-binary=" + DyingWorker(dir, "dies:" + step + ":committed")},
               .state_dir = ""});
    ASSERT_TRUE(h.Start().ok());
    JobSpec spec = h.Spec("calm", Records());
    spec.mutable_data()->set_validation_fraction(0.1);
    const Job calm = h.Submit(spec);
    h.WaitFor(calm.id(), {soup::v1::SUCCEEDED});
    spec.set_name("dies");
    const Job job = h.Submit(spec);
    const Job done = h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::FAILED, soup::v1::SUCCEEDED});
    EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
    EXPECT_EQ(done.attempts(), 2);
    EXPECT_TRUE(h.Adapter(calm.id()) == h.Adapter(job.id()));
    const auto expected = h.Steps(calm.id()), steps = h.Steps(job.id());
    ASSERT_EQ(steps.size(), expected.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i].step(), expected[i].step());
      EXPECT_EQ(steps[i].loss(), expected[i].loss());
      EXPECT_EQ(steps[i].has_validation_loss(), expected[i].has_validation_loss());
      EXPECT_EQ(steps[i].validation_loss(), expected[i].validation_loss());
    }
    ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace soup::daemon
