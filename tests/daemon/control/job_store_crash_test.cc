// kill -9 at random moments: what was acknowledged is there, whole and in order; what was not may
// be there or not, whole.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "daemon/control/job_store.h"
#include "engine/base/clock.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/temp_dir.h"

extern char** environ;

namespace soup::daemon {
namespace {

struct Acknowledged {
  int64_t sequence = 1;
  std::map<int64_t, int> states;  // by sequence
};

// Starts the writer, kills it after about `lines` lines, and returns all that it said.
std::string RunAndKill(const std::string& db, uint64_t seed, int64_t lines) {
  int pipe_fds[2];
  EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  std::string program = SOUP_BINARY_DIR "/tests/job_store_writer";
  std::string seed_text = std::to_string(seed);
  std::string db_text = db;
  char* args[] = {program.data(), db_text.data(), seed_text.data(), nullptr};
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, args, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  std::string said;
  bool killed = false;
  while (true) {
    char buffer[4096];
    const ssize_t n = read(pipe_fds[0], buffer, sizeof buffer);
    if (n <= 0) break;
    said.append(buffer, static_cast<size_t>(n));
    if (!killed && std::count(said.begin(), said.end(), '\n') >= lines) {
      kill(pid, SIGKILL);
      killed = true;
    }
  }
  close(pipe_fds[0]);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself, status " << status;
  return said;
}

TEST(JobStoreCrash, AcknowledgedWritesSurviveKill9) {
  soup::testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  const soup::testing::TempDir dir;
  const std::string db = dir / "soupd.db";
  std::map<std::string, Acknowledged> known;
  for (int round = 0; round < 8; ++round) {
    std::istringstream said(
        RunAndKill(db, static_cast<uint64_t>(rng.Int(1, 1 << 30)), rng.Int(1, 120)));
    std::string kind, id;
    while (said >> kind >> id) {
      Acknowledged& job = known[id];
      if (kind == "C") continue;
      int state = 0;
      said >> job.sequence >> state;
      job.states[job.sequence] = state;
    }
    JobStoreOptions options;
    options.path = db;
    auto store = OpenJobStore(options, engine::RealClock());
    ASSERT_TRUE(store.ok()) << store.status();
    for (const auto& [job_id, job] : known) {
      const auto record = (*store)->GetJob(job_id);
      ASSERT_TRUE(record.ok()) << "acknowledged job lost: " << record.status();
      // At most the transition in flight when it was killed is on top.
      EXPECT_GE(record->last_sequence, job.sequence);
      EXPECT_LE(record->last_sequence, job.sequence + 1);
      const auto events = (*store)->EventsAfter(job_id, 0, 10'000);
      ASSERT_EQ(static_cast<int64_t>(events->size()), record->last_sequence);
      for (size_t i = 0; i < events->size(); ++i) {
        EXPECT_EQ((*events)[i].sequence(), static_cast<int64_t>(i) + 1);
        const auto said_state = job.states.find((*events)[i].sequence());
        if (said_state != job.states.end()) {
          EXPECT_EQ((*events)[i].state(), said_state->second);
        }
      }
      EXPECT_EQ(events->back().state(), record->state);
      known[job_id].sequence = record->last_sequence;
    }
    const auto counts = (*store)->CountByState();
    int64_t total = 0;
    for (const auto& [state, count] : *counts) total += count;
    EXPECT_GE(total, static_cast<int64_t>(known.size()));
    EXPECT_LE(total,
              static_cast<int64_t>(known.size()) + 4 * (round + 1));  // one a thread in flight
  }
  EXPECT_GT(known.size(), 0u);
}

}  // namespace
}  // namespace soup::daemon
