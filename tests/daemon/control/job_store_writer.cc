// The victim of job_store_crash_test: writes to a job store from several threads and says on
// standard output what was acknowledged, one write(2) a line, until it is killed.
//   job_store_writer DB SEED
// Lines: "C <id>" a job was created; "T <id> <sequence> <state>" a transition returned.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/control/job_store.h"
#include "engine/base/clock.h"
#include "tests/daemon/control/job_spec_for_tests.h"
#include "tests/support/seeded_rng.h"

namespace {

using soup::daemon::JobRecord;
using soup::daemon::JobStore;
using soup::daemon::JobTrigger;

void Say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) exit(3);
}

void Work(JobStore& store, uint64_t seed) {
  soup::testing::SeededRng rng(seed);
  std::vector<JobRecord> jobs;
  while (true) {
    if (jobs.empty() || rng.Chance(0.3)) {
      auto made = store.CreateJob("u", absl::StrCat(seed, "-", jobs.size()),
                                  soup::daemon::GoodSpec("n", "/m"), "/m", 0);
      if (!made.ok()) exit(4);
      Say(absl::StrCat("C ", made->job.id));
      jobs.push_back(made->job);
      continue;
    }
    JobRecord& job = jobs[static_cast<size_t>(rng.Int(0, static_cast<int64_t>(jobs.size()) - 1))];
    const auto& all = soup::daemon::kAllJobTriggers;
    const JobTrigger trigger = all[static_cast<size_t>(rng.Int(0, all.size() - 1))];
    const auto reason = static_cast<soup::v1::Reason>(rng.Int(0, soup::v1::Reason_MAX));
    const auto moved = store.Transition(job.id, trigger, reason, "m");
    if (!moved.ok()) continue;
    job = *moved;
    Say(absl::StrCat("T ", job.id, " ", job.last_sequence, " ", static_cast<int>(job.state)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  soup::daemon::JobStoreOptions options;
  options.path = argv[1];
  auto store = soup::daemon::OpenJobStore(options, soup::engine::RealClock());
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 5;
  }
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { Work(**store, seed * 1000 + t); });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
