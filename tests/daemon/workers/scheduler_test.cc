#include "daemon/control/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

namespace soup::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SchedulerJob Job(const std::string& id, const std::string& user, int64_t order,
                 const std::string& base = "b", Priority priority = Priority::kNormal) {
  SchedulerJob job;
  job.id = id;
  job.user = user;
  job.order = order;
  job.base_key = base;
  job.priority = priority;
  return job;
}

bool Always(const std::vector<std::string>&) { return true; }
bool Alone(const std::vector<std::string>& jobs) { return jobs.size() == 1; }

TEST(SchedulerTest, OneUsersJobsGoInOrderOfSubmission) {
  FairShare share;
  const std::vector<SchedulerJob> jobs = {Job("c", "u", 3), Job("a", "u", 1), Job("b", "u", 2)};
  EXPECT_THAT(QueueOrder(jobs, share, 600), ElementsAre("a", "b", "c"));
  EXPECT_THAT(NextPass(jobs, share, {}, "", 0, Alone).job_ids, ElementsAre("a"));
}

TEST(SchedulerTest, PriorityComesFirstWithinAUserAndAgeRaisesIt) {
  FairShare share;
  std::vector<SchedulerJob> jobs = {Job("low", "u", 1, "b", Priority::kLow), Job("mid", "u", 2),
                                    Job("high", "u", 3, "b", Priority::kHigh)};
  EXPECT_THAT(QueueOrder(jobs, share, 600), ElementsAre("high", "mid", "low"));
  jobs[0].waited_seconds = 1300;  // two spans: as high as high, and earlier
  EXPECT_THAT(QueueOrder(jobs, share, 600), ElementsAre("low", "high", "mid"));
}

TEST(SchedulerTest, PriorityOfOneUserDoesNotStandAboveAnother) {
  FairShare share;
  share.SetActive({"greedy", "modest"});
  share.Charge("greedy", Priority::kHigh, 10);
  const std::vector<SchedulerJob> jobs = {Job("g", "greedy", 1, "b", Priority::kHigh),
                                          Job("m", "modest", 2, "b", Priority::kLow)};
  EXPECT_THAT(NextPass(jobs, share, {}, "", 0, Alone).job_ids, ElementsAre("m"));
}

TEST(SchedulerTest, JobsOfOneBaseShareAPassWhileTheyFit) {
  FairShare share;
  const std::vector<SchedulerJob> jobs = {Job("a1", "u", 1, "a"), Job("b1", "v", 2, "b"),
                                          Job("a2", "v", 3, "a"), Job("a3", "u", 4, "a")};
  const PassChoice all = NextPass(jobs, share, {}, "", 0, Always);
  EXPECT_EQ(all.base_key, "a");
  EXPECT_THAT(all.job_ids, ::testing::UnorderedElementsAre("a1", "a2", "a3"));
  EXPECT_EQ(all.job_ids[0], "a1");
  const PassChoice two =
      NextPass(jobs, share, {}, "", 0, [](const auto& j) { return j.size() <= 2; });
  EXPECT_EQ(two.job_ids.size(), 2u);
  PassLimits one;
  one.jobs_per_pass = 1;
  EXPECT_THAT(NextPass(jobs, share, one, "", 0, Always).job_ids, ElementsAre("a1"));
}

TEST(SchedulerTest, ALoadedBaseKeepsItsTurnForItsQuantumOnly) {
  FairShare share;
  const std::vector<SchedulerJob> jobs = {Job("a", "u", 1, "a"), Job("b", "v", 2, "b")};
  PassLimits limits;
  limits.base_quantum_seconds = 5;
  EXPECT_EQ(NextPass(jobs, share, limits, "b", 4.9, Alone).base_key, "b");
  EXPECT_EQ(NextPass(jobs, share, limits, "b", 5.0, Alone).base_key, "a");
}

TEST(SchedulerTest, AJobThatDoesNotFitIsNamedAndBlocksNobody) {
  FairShare share;
  const std::vector<SchedulerJob> jobs = {Job("big", "u", 1), Job("small", "u", 2)};
  const PassChoice c = NextPass(jobs, share, {}, "", 0, [](const auto& j) {
    return std::find(j.begin(), j.end(), "big") == j.end();
  });
  EXPECT_THAT(c.job_ids, ElementsAre("small"));
  EXPECT_THAT(c.unfit, ElementsAre("big"));
  EXPECT_TRUE(NextPass({}, share, {}, "", 0, Always).empty());
}

TEST(SchedulerTest, AdmissionKeepsTheQuotas) {
  FairShare share;
  const std::vector<SchedulerJob> queued = {Job("a", "u", 1), Job("b", "u", 2), Job("c", "v", 3),
                                            Job("d", "v", 4)};
  AdmissionLimits limits;
  limits.running_per_user = 1;
  EXPECT_THAT(AdmitJobs(queued, {}, share, limits), ElementsAre("a", "c"));
  EXPECT_THAT(AdmitJobs(queued, {{"u", 1}}, share, limits), ElementsAre("c"));
  limits.running = 1;
  EXPECT_THAT(AdmitJobs(queued, {{"u", 1}}, share, limits), IsEmpty());
  limits = {};
  limits.running = 3;
  EXPECT_THAT(AdmitJobs(queued, {}, share, limits), ElementsAre("a", "c", "b"));
}

TEST(SchedulerTest, WhoWasAwayGetsNoCredit) {
  FairShare share;
  share.SetActive({"worker"});
  share.Charge("worker", Priority::kNormal, 1000);
  share.SetActive({"worker", "late"});
  EXPECT_EQ(share.Service("late"), 1000);
  share.Charge("late", Priority::kNormal, 5);
  share.SetActive({"worker"});
  share.Charge("worker", Priority::kNormal, 1);
  share.SetActive({"worker", "late"});
  EXPECT_EQ(share.Service("late"), 1005) << "nor does leaving wipe what was used";
}

TEST(SchedulerTest, IdleAccountsAreBounded) {
  FairShare share;
  for (int i = 0; i < 3000; ++i) share.SetActive({"u" + std::to_string(i)});
  share.Charge("u2999", Priority::kNormal, 7);
  EXPECT_EQ(share.Service("u2999"), 7);
}

// Properties over random workloads -------------------------------------------------------------

uint32_t Seed() {
  const char* given = std::getenv("SOUP_TEST_SEED");
  return given != nullptr ? std::strtoul(given, nullptr, 10) : std::random_device{}();
}

struct Simulation {
  explicit Simulation(uint32_t seed) : rng(seed) {}
  std::mt19937 rng;
  int Uniform(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); }
};

TEST(SchedulerPropertyTest, EveryPassIsLawfulAndEveryJobIsServed) {
  const uint32_t seed = Seed();
  SCOPED_TRACE("SOUP_TEST_SEED=" + std::to_string(seed));
  std::printf("seed %u\n", seed);
  Simulation sim(seed);
  for (int round = 0; round < 60; ++round) {
    struct State {
      SchedulerJob job;
      int memory = 0;
      int steps_left = 0;
      double last_served = 0;
    };
    std::map<std::string, State> jobs;
    const int users = sim.Uniform(1, 5), bases = sim.Uniform(1, 3), count = sim.Uniform(1, 14);
    const int budget = sim.Uniform(10, 30);
    for (int i = 0; i < count; ++i) {
      State s;
      s.job = Job("j" + std::to_string(i), "u" + std::to_string(sim.Uniform(1, users)), i,
                  "b" + std::to_string(sim.Uniform(1, bases)),
                  static_cast<Priority>(sim.Uniform(0, 2)));
      s.memory = sim.Uniform(1, 10);
      s.steps_left = sim.Uniform(1, 30);
      jobs[s.job.id] = s;
    }
    PassLimits limits;
    limits.base_quantum_seconds = sim.Uniform(0, 4);
    limits.aging_seconds = 20;
    limits.jobs_per_pass = sim.Uniform(1, 6);
    FairShare share;
    double now = 0, loaded_since = 0;
    std::string loaded;
    int passes = 0;
    int total_steps = 0;
    for (const auto& [id, s] : jobs) total_steps += s.steps_left;
    while (!jobs.empty()) {
      ASSERT_LE(++passes, total_steps)
          << "a pass in which nothing ran, or a job served after its end";
      std::vector<SchedulerJob> runnable;
      std::set<std::string> active;
      for (auto& [id, s] : jobs) {
        s.job.waited_seconds = now - s.last_served;
        runnable.push_back(s.job);
        active.insert(s.job.user);
        // Nobody waits longer than all others' work could excuse.
        ASSERT_LE(s.job.waited_seconds, 20.0 * 3 * jobs.size() + 100) << id << " starves";
      }
      share.SetActive({active.begin(), active.end()});
      auto fits = [&](const std::vector<std::string>& ids) {
        int sum = 0;
        for (const auto& id : ids) sum += jobs.at(id).memory;
        return sum <= budget;
      };
      const PassChoice c = NextPass(runnable, share, limits, loaded, now - loaded_since, fits);
      const PassChoice again = NextPass(runnable, share, limits, loaded, now - loaded_since, fits);
      ASSERT_EQ(c.job_ids, again.job_ids);
      ASSERT_FALSE(c.empty());
      ASSERT_TRUE(fits(c.job_ids));
      ASSERT_TRUE(c.unfit.empty());
      ASSERT_LE(static_cast<int>(c.job_ids.size()), limits.jobs_per_pass);
      ASSERT_EQ(std::set<std::string>(c.job_ids.begin(), c.job_ids.end()).size(), c.job_ids.size());
      for (const auto& id : c.job_ids) ASSERT_EQ(jobs.at(id).job.base_key, c.base_key);
      // The head is the first of its user, priority and base that waits.
      const SchedulerJob& head = jobs.at(c.job_ids[0]).job;
      for (const SchedulerJob& other : runnable) {
        if (other.user == head.user && other.base_key == head.base_key &&
            other.priority == head.priority && other.waited_seconds >= head.waited_seconds) {
          ASSERT_GE(other.order, head.order);
        }
      }
      if (c.base_key != loaded) {
        loaded = c.base_key;
        loaded_since = now;
      }
      const double seconds = sim.Uniform(1, 10) / 10.0;
      now += seconds;
      for (const auto& id : c.job_ids) {
        State& s = jobs.at(id);
        share.Charge(s.job.user, s.job.priority, seconds / c.job_ids.size());
        s.last_served = now;
        if (--s.steps_left == 0) jobs.erase(id);
      }
    }
  }
}

TEST(SchedulerPropertyTest, UsersWithEndlessWorkGetEqualTime) {
  const uint32_t seed = Seed();
  SCOPED_TRACE("SOUP_TEST_SEED=" + std::to_string(seed));
  std::printf("seed %u\n", seed);
  Simulation sim(seed);
  for (int round = 0; round < 20; ++round) {
    const int users = sim.Uniform(2, 5);
    std::vector<SchedulerJob> jobs;
    for (int u = 0; u < users; ++u)
      for (int j = sim.Uniform(1, 6); j > 0; --j)
        jobs.push_back(Job("j" + std::to_string(jobs.size()), "u" + std::to_string(u),
                           static_cast<int64_t>(jobs.size()), "b" + std::to_string(u % 2)));
    FairShare share;
    std::vector<std::string> names;
    for (int u = 0; u < users; ++u) names.push_back("u" + std::to_string(u));
    share.SetActive(names);
    std::map<std::string, double> had;
    PassLimits limits;
    limits.base_quantum_seconds = 2;
    double now = 0, loaded_since = 0;
    std::string loaded;
    for (int pass = 0; pass < 2000; ++pass) {
      const PassChoice c = NextPass(jobs, share, limits, loaded, now - loaded_since, Alone);
      if (c.base_key != loaded) {
        loaded = c.base_key;
        loaded_since = now;
      }
      const double seconds = sim.Uniform(1, 10) / 10.0;
      now += seconds;
      const auto& job = *std::find_if(jobs.begin(), jobs.end(),
                                      [&](const auto& j) { return j.id == c.job_ids[0]; });
      share.Charge(job.user, job.priority, seconds);
      had[job.user] += seconds;
    }
    double least = 1e9, most = 0;
    for (const auto& [user, t] : had) {
      least = std::min(least, t);
      most = std::max(most, t);
    }
    EXPECT_EQ(had.size(), static_cast<size_t>(users));
    EXPECT_LE(most - least, 2 * limits.base_quantum_seconds + 4) << "round " << round;
  }
}

}  // namespace
}  // namespace soup::daemon
