// Checkpoints under failing disks, corruption and kills.
#include "engine/train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/base/fault_file_system.h"
#include "tests/engine/train/state_fixture.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;
using ::soup::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointStore Store(FileSystem& fs, int32_t keep_last = 2) {
    return CheckpointStore(&fs, at_, &layout_, keep_last);
  }
  CheckpointStore Store() { return Store(RealFileSystem()); }
  AdapterState State(int64_t step) const { return StateOfStep(step, layout_.elements()); }
  void MustSave(int64_t step) {
    const auto saved = Store().Save(State(step).view());
    ASSERT_TRUE(saved.ok()) << saved.status();
  }
  // The newest whole step, 0: none; fails when it is not exactly that step's state.
  int64_t Latest(std::vector<std::string>* warnings = nullptr) {
    const auto loaded = Store().LatestWhole();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return -1;
    if (warnings != nullptr) *warnings = loaded->warnings;
    if (!loaded->state.has_value()) return 0;
    EXPECT_TRUE(SameState(*loaded->state, State(loaded->state->step)));
    return loaded->state->step;
  }
  std::vector<std::string> Names() {
    const auto names = RealFileSystem().ListDirectory(at_);
    return names.ok() ? *names : std::vector<std::string>();
  }

  TempDir dir_{TempDir::kInMemory};
  const std::string at_ = dir_ / "checkpoints";
  const AdapterLayout layout_ = TinyLayout();
};

TEST_F(CheckpointTest, KeepsTheLastAndReadsTheNewest) {
  EXPECT_EQ(Latest(), 0) << "no directory yet";
  for (int64_t step : {5, 10, 15, 20}) {
    MustSave(step);
    EXPECT_EQ(Latest(), step);
  }
  EXPECT_THAT(Names(), ElementsAre("step-15", "step-20"));
  const auto saved = Store(RealFileSystem(), 1).Save(State(100).view());
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(*saved, at_ + "/step-100");
  EXPECT_THAT(Names(), ElementsAre("step-100"));
}

TEST_F(CheckpointTest, AStepSavedAgainReplacesItself) {
  MustSave(5);
  MustSave(5);
  EXPECT_THAT(Names(), ElementsAre("step-5"));
  EXPECT_EQ(Latest(), 5);
}

TEST_F(CheckpointTest, EveryFailureAtEveryOperationLeavesAWholeCheckpoint) {
  int64_t operations = 0;
  {
    MustSave(1);
    MustSave(2);
    FaultyFileSystem fs(RealFileSystem());
    ASSERT_TRUE(Store(fs).Save(State(3).view()).ok());
    operations = fs.operations();
  }
  ASSERT_GT(operations, 8);
  for (int error : {ENOSPC, EDQUOT, EIO}) {
    for (int64_t times : {1, -1}) {  // one failure, or a disk that stays full
      for (int64_t after = 0; after < operations; ++after) {
        SCOPED_TRACE("errno " + std::to_string(error) + " after " + std::to_string(after) +
                     (times < 0 ? " for ever" : " once"));
        ASSERT_TRUE(RealFileSystem().RemoveTree(at_).ok());
        MustSave(1);
        MustSave(2);
        FaultyFileSystem fs(RealFileSystem());
        fs.Fail(FileOperation::kAny, "", error, {.after = after, .times = times});
        const auto saved = Store(fs).Save(State(3).view());
        EXPECT_GT(fs.failures(), 0);
        if (!saved.ok() && error != EIO) {
          EXPECT_EQ(saved.status().code(), absl::StatusCode::kResourceExhausted);
          EXPECT_THAT(std::string(saved.status().message()),
                      AllOf(HasSubstr(at_), HasSubstr("bytes free")));
        }
        // Whatever has a final name is whole.
        std::vector<std::string> warnings;
        const int64_t latest = Latest(&warnings);
        EXPECT_THAT(warnings, IsEmpty());
        EXPECT_TRUE(latest == 3 || (!saved.ok() && latest == 2)) << latest;
        // With room again the same save succeeds, and nothing is left lying about.
        fs.Heal();
        const auto again = Store(fs).Save(State(3).view());
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_EQ(Latest(), 3);
        EXPECT_THAT(Names(), ElementsAre("step-2", "step-3"));
      }
    }
  }
}

TEST_F(CheckpointTest, FailuresWhileReplacingLeaveTheOldOrTheNew) {
  MustSave(1);
  FaultyFileSystem count(RealFileSystem());
  ASSERT_TRUE(Store(count).Save(State(1).view()).ok());
  for (int64_t times : {1, -1}) {
    for (int64_t after = 0; after < count.operations(); ++after) {
      SCOPED_TRACE(std::to_string(after) + (times < 0 ? " for ever" : " once"));
      FaultyFileSystem fs(RealFileSystem());
      fs.Fail(FileOperation::kAny, "", ENOSPC, {.after = after, .times = times});
      const auto saved = Store(fs).Save(State(1).view());
      fs.Heal();
      std::vector<std::string> warnings;
      EXPECT_EQ(Latest(&warnings), 1);
      EXPECT_THAT(warnings, IsEmpty());
      ASSERT_TRUE(Store(fs).Save(State(1).view()).ok());
      EXPECT_EQ(Latest(), 1);
      EXPECT_THAT(Names(), ElementsAre("step-1"));
    }
  }
}

TEST_F(CheckpointTest, AReplacementCutShortIsPutRight) {
  MustSave(1);
  auto& fs = RealFileSystem();
  // As a kill between the two renames leaves it.
  ASSERT_TRUE(fs.RenameSynced(at_ + "/step-1", at_ + "/.replaced.step-1").ok());
  ASSERT_TRUE(fs.CreateDirectories(at_ + "/.staged.step-1").ok());
  EXPECT_EQ(Latest(), 1);
  EXPECT_THAT(Names(), ElementsAre("step-1"));
}

TEST_F(CheckpointTest, BrokenOnesAreSkippedAndTold) {
  MustSave(1);
  MustSave(2);
  auto& fs = RealFileSystem();
  for (const char* name : {"state.safetensors", "state.json"}) {
    const std::string path = at_ + "/step-2/" + name;
    const auto good = fs.ReadFile(path);
    ASSERT_TRUE(good.ok());
    const auto expect_skipped = [&](const std::string& bytes) {
      ASSERT_TRUE(fs.WriteFileSynced(path, bytes).ok());
      std::vector<std::string> warnings;
      ASSERT_EQ(Latest(&warnings), 1);
      ASSERT_EQ(warnings.size(), 1u);
      EXPECT_THAT(warnings[0], AllOf(HasSubstr("step 2"), HasSubstr(name)));
    };
    for (size_t at = 0; at < good->size(); at += 1 + good->size() / 300) {
      SCOPED_TRACE(std::string(name) + " byte " + std::to_string(at));
      std::string bad = *good;
      // White space in JSON may change without harm: make it something else.
      bad[at] = bad[at] == 'x' ? 'y' : 'x';
      expect_skipped(bad);
      if (HasFatalFailure()) return;
    }
    for (size_t length : {size_t{0}, size_t{1}, good->size() / 2, good->size() - 2}) {
      expect_skipped(good->substr(0, length));
    }
    ASSERT_TRUE(fs.Remove(path).ok());
    std::vector<std::string> warnings;
    EXPECT_EQ(Latest(&warnings), 1);
    EXPECT_EQ(warnings.size(), 1u);
    ASSERT_TRUE(fs.WriteFileSynced(path, *good).ok());
    EXPECT_EQ(Latest(), 2);
  }
}

TEST_F(CheckpointTest, AnotherAdaptersCheckpointIsNotTaken) {
  MustSave(1);
  const auto other = AdapterLayout::Create(TinyModel(), {.r = 2, .targets = {Module::kK}});
  ASSERT_TRUE(other.ok());
  const auto loaded = CheckpointStore(&RealFileSystem(), at_, &*other, 2).LatestWhole();
  ASSERT_TRUE(loaded.ok());
  EXPECT_FALSE(loaded->state.has_value());
  EXPECT_EQ(loaded->warnings.size(), 1u);
}

TEST_F(CheckpointTest, ANonFiniteStateIsNeverWritten) {
  MustSave(1);
  for (auto vector : {&AdapterState::weights, &AdapterState::exp_avg, &AdapterState::exp_avg_sq}) {
    AdapterState bad = State(2);
    (bad.*vector)[7] = std::numeric_limits<float>::quiet_NaN();
    const auto saved = Store().Save(bad.view());
    EXPECT_EQ(saved.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(saved.status().message()), HasSubstr("q_proj.lora_A"));
  }
  EXPECT_THAT(Names(), ElementsAre("step-1"));
}

TEST_F(CheckpointTest, SurvivesKillAtAnyInstant) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  int64_t least = 0;
  for (int round = 0; round < 20; ++round) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(fds[0]);
      for (int64_t step = least + 1;; ++step) {
        if (!Store().Save(State(step).view()).ok()) _exit(3);
        if (write(fds[1], &step, sizeof step) != sizeof step) _exit(4);
      }
    }
    close(fds[1]);
    int64_t told = 0;
    for (int64_t acks = rng.Int(1, 4); acks > 0; --acks) {
      ASSERT_EQ(read(fds[0], &told, sizeof told), static_cast<ssize_t>(sizeof told));
    }
    volatile int64_t spin = rng.Int(0, 1'000'000);
    while (spin > 0) spin = spin - 1;
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
    int64_t more;
    while (read(fds[0], &more, sizeof more) == static_cast<ssize_t>(sizeof more)) told = more;
    close(fds[0]);
    std::vector<std::string> warnings;
    const int64_t latest = Latest(&warnings);
    EXPECT_THAT(warnings, IsEmpty());
    EXPECT_GE(latest, told);
    EXPECT_LE(latest, told + 1);
    least = latest;
  }
  MustSave(least + 1);
  for (const std::string& name : Names()) EXPECT_TRUE(absl::StartsWith(name, "step-")) << name;
}

}  // namespace
}  // namespace soup::engine
