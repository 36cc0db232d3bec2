// The mirror: what is read back is always a whole state, whatever happened in between.
#include "engine/train/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/fault_file_system.h"
#include "tests/engine/train/state_fixture.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;
using ::soup::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kElements = 5;

std::unique_ptr<Mirror> MustOpen(const std::string& directory, int64_t elements = kElements) {
  auto mirror = Mirror::Open(RealFileSystem(), directory, elements);
  EXPECT_TRUE(mirror.ok()) << mirror.status();
  return mirror.ok() ? std::move(*mirror) : nullptr;
}

void CommitStep(Mirror& mirror, int64_t step, int64_t elements = kElements) {
  const absl::Status status = mirror.Commit(StateOfStep(step, elements).view());
  ASSERT_TRUE(status.ok()) << status;
}

// The step of what the mirror holds, 0 when nothing, -1 after DataLoss; fails on anything that is
// not exactly the state of a step.
int64_t StepIn(const std::string& directory, int64_t elements = kElements) {
  const auto mirror = MustOpen(directory, elements);
  if (mirror == nullptr) return -2;
  const auto state = mirror->Read();
  if (!state.ok()) {
    EXPECT_EQ(state.status().code(), absl::StatusCode::kDataLoss) << state.status();
    return -1;
  }
  if (!state->has_value()) return 0;
  EXPECT_TRUE(SameState(**state, StateOfStep((*state)->step, elements)));
  return (*state)->step;
}

std::string Image(const std::string& directory) {
  const auto bytes = RealFileSystem().ReadFile(directory + "/mirror.bin");
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *bytes : "";
}

void PutImage(const std::string& directory, const std::string& image) {
  ASSERT_TRUE(RealFileSystem().CreateDirectories(directory).ok());
  ASSERT_TRUE(RealFileSystem().WriteFileSynced(directory + "/mirror.bin", image).ok());
}

TEST(MirrorTest, HoldsTheNewestState) {
  TempDir dir;
  const std::string at = dir / "mirror/job-1";
  EXPECT_EQ(StepIn(at), 0) << "a new one holds nothing";
  for (int64_t step = 1; step <= 5; ++step) {
    const auto mirror = MustOpen(at);
    EXPECT_EQ(mirror->sequence(), static_cast<uint64_t>(step - 1));
    CommitStep(*mirror, step);
    const auto now = mirror->Read();
    ASSERT_TRUE(now.ok() && now->has_value());
    EXPECT_EQ((*now)->step, step);
  }
  EXPECT_EQ(StepIn(at), 5);
}

TEST(MirrorTest, ATornCommitIsTheStepBefore) {
  TempDir dir(TempDir::kInMemory);
  const std::string at = dir / "m";
  for (int64_t first : {1, 2, 3}) {  // into a fresh half, then into each half over an old state
    std::string before, after;
    {
      const auto mirror = MustOpen(at);
      CommitStep(*mirror, first);
      before = Image(at);
      CommitStep(*mirror, first + 1);
      after = Image(at);
    }
    ASSERT_EQ(before.size(), after.size());
    // Cut at every byte that the commit changed, the new bytes before the cut or behind it.
    int cuts = 0;
    for (size_t cut = 0; cut < before.size(); ++cut) {
      if (before[cut] == after[cut]) continue;
      ++cuts;
      for (bool new_first : {true, false}) {
        std::string torn = new_first ? after.substr(0, cut) + before.substr(cut)
                                     : before.substr(0, cut) + after.substr(cut);
        const bool whole = torn == after;
        PutImage(dir / "torn", torn);
        ASSERT_EQ(StepIn(dir / "torn"), whole ? first + 1 : first) << "cut at byte " << cut;
      }
    }
    EXPECT_GT(cuts, 50);
    std::filesystem::remove_all(at);
  }
}

TEST(MirrorTest, PagesWrittenBackInAnyOrderNeverMix) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  TempDir dir(TempDir::kInMemory);
  constexpr int64_t kMany = 3000;  // several pages a half
  std::vector<std::string> images;
  {
    const auto mirror = MustOpen(dir / "m", kMany);
    for (int64_t step = 1; step <= 6; ++step) {
      CommitStep(*mirror, step, kMany);
      images.push_back(Image(dir / "m"));
    }
  }
  for (int round = 0; round < 300; ++round) {
    // A power loss: each page is of one of the last states, one or several commits apart.
    const int64_t depth = rng.Int(1, 4);
    std::string mixed = images.back();
    for (size_t page = 1; page * 4096 < mixed.size(); ++page) {
      const auto& from = images[images.size() - 1 - static_cast<size_t>(rng.Int(0, depth))];
      mixed.replace(page * 4096, 4096, from, page * 4096, 4096);
    }
    PutImage(dir / "mixed", mixed);
    const int64_t step = StepIn(dir / "mixed", kMany);  // checks that it is one state
    EXPECT_TRUE(step == -1 || (step >= 1 && step <= 6)) << step;
    if (depth == 1) {
      EXPECT_GE(step, 5);
    }
  }
}

TEST(MirrorTest, AFlippedByteIsNoticed) {
  TempDir dir(TempDir::kInMemory);
  std::string image;
  {
    const auto mirror = MustOpen(dir / "m");
    CommitStep(*mirror, 1);
    CommitStep(*mirror, 2);
    image = Image(dir / "m");
  }
  const size_t half = (image.size() - 4096) / 2;
  const size_t newest = 4096 + half;  // step 2 lies in the second half
  int noticed = 0;
  for (size_t at = newest; at < image.size(); at += at < newest + 64 ? 1 : 37) {
    std::string bad = image;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    PutImage(dir / "bad", bad);
    const int64_t step = StepIn(dir / "bad");
    ASSERT_TRUE(step == 1 || step == 2);
    if (step == 1) ++noticed;
  }
  EXPECT_GT(noticed, 100);
  // Both halves: told, not read.
  std::string bad = image;
  bad[4096 + 100] ^= 1;
  bad[newest + 100] ^= 1;
  PutImage(dir / "bad", bad);
  const auto mirror = MustOpen(dir / "bad");
  const auto state = mirror->Read();
  EXPECT_EQ(state.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("last checkpoint"));
  // And it can be used again.
  CommitStep(*mirror, 9);
  const auto again = mirror->Read();
  ASSERT_TRUE(again.ok() && again->has_value());
  EXPECT_EQ((*again)->step, 9);
}

// Commits steps from the mirror's on and tells each to the pipe, until it is killed.
[[noreturn]] void CommitForEver(const std::string& directory, int64_t elements, int pipe_fd) {
  auto mirror = Mirror::Open(RealFileSystem(), directory, elements);
  if (!mirror.ok()) _exit(3);
  const auto state = (*mirror)->Read();
  if (!state.ok()) _exit(4);
  for (int64_t step = state->has_value() ? (*state)->step + 1 : 1;; ++step) {
    if (!(*mirror)->Commit(StateOfStep(step, elements).view()).ok()) _exit(5);
    if (write(pipe_fd, &step, sizeof step) != sizeof step) _exit(6);
  }
}

TEST(MirrorTest, SurvivesKillAtAnyInstant) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  TempDir dir(TempDir::kInMemory);
  constexpr int64_t kMany = 20'000;
  int64_t least = 0;
  for (int round = 0; round < 30; ++round) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(fds[0]);
      CommitForEver(dir / "m", kMany, fds[1]);
    }
    close(fds[1]);
    int64_t told = 0;
    for (int64_t acks = rng.Int(1, 5); acks > 0; --acks) {
      ASSERT_EQ(read(fds[0], &told, sizeof told), static_cast<ssize_t>(sizeof told));
    }
    // Somewhere inside the next commits.
    volatile int64_t spin = rng.Int(0, 300'000);
    while (spin > 0) spin = spin - 1;
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
    int64_t more;
    while (read(fds[0], &more, sizeof more) == static_cast<ssize_t>(sizeof more)) told = more;
    close(fds[0]);
    const int64_t step = StepIn(dir / "m", kMany);
    EXPECT_GE(step, told) << "a told step is lost";
    EXPECT_LE(step, told + 1);
    EXPECT_GE(step, least);
    least = step;
  }
}

TEST(MirrorTest, AFullDiskIsMetWhenItIsMade) {
  for (FileOperation operation :
       {FileOperation::kReserve, FileOperation::kMkdir, FileOperation::kRename}) {
    for (int error : {ENOSPC, EDQUOT}) {
      TempDir dir;
      FaultyFileSystem fs(RealFileSystem());
      fs.Fail(operation, "", error);
      const auto mirror = Mirror::Open(fs, dir / "m", 1000);
      EXPECT_EQ(mirror.status().code(), absl::StatusCode::kResourceExhausted) << mirror.status();
      EXPECT_THAT(std::string(mirror.status().message()),
                  AllOf(HasSubstr(dir / "m"), HasSubstr("bytes free")));
      fs.Heal();
      if (RealFileSystem().Exists(dir / "m")) {
        const auto left = RealFileSystem().ListDirectory(dir / "m");
        ASSERT_TRUE(left.ok());
        EXPECT_THAT(*left, ::testing::IsEmpty());
      }
      EXPECT_TRUE(Mirror::Open(fs, dir / "m", 1000).ok());
    }
  }
}

TEST(MirrorTest, ItsBlocksAreReserved) {
  TempDir dir;
  const auto mirror = MustOpen(dir / "m", 100'000);
  struct stat st;
  ASSERT_EQ(stat(mirror->path().c_str(), &st), 0);
  EXPECT_EQ(st.st_size, mirror->file_bytes());
  EXPECT_GE(st.st_blocks * 512, mirror->file_bytes());
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST(MirrorTest, OneProcessHoldsIt) {
  TempDir dir;
  auto first = MustOpen(dir / "m");
  const auto second = Mirror::Open(RealFileSystem(), dir / "m", kElements);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("held by another process"));
  first.reset();
  EXPECT_TRUE(Mirror::Open(RealFileSystem(), dir / "m", kElements).ok());
}

TEST(MirrorTest, WhatIsNotTheJobsIsRefused) {
  TempDir dir;
  { CommitStep(*MustOpen(dir / "m"), 1); }
  const auto other = Mirror::Open(RealFileSystem(), dir / "m", kElements + 1);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()),
              AllOf(HasSubstr("5 elements"), HasSubstr("6")));
  std::string image = Image(dir / "m");
  image[9] ^= 1;
  PutImage(dir / "m", image);
  EXPECT_EQ(Mirror::Open(RealFileSystem(), dir / "m", kElements).status().code(),
            absl::StatusCode::kDataLoss);
  PutImage(dir / "m", image.substr(0, 100));
  EXPECT_EQ(Mirror::Open(RealFileSystem(), dir / "m", kElements).status().code(),
            absl::StatusCode::kDataLoss);
  ASSERT_TRUE(RemoveMirror(RealFileSystem(), dir / "m").ok());
  const auto mirror = MustOpen(dir / "m");
  AdapterState state = StateOfStep(1, kElements);
  state.exp_avg.pop_back();
  EXPECT_EQ(mirror->Commit(state.view()).code(), absl::StatusCode::kInvalidArgument);
  state = StateOfStep(1, kElements);
  state.stats.assign(Mirror::kMaxStatsBytes + 1, 'x');
  EXPECT_EQ(mirror->Commit(state.view()).code(), absl::StatusCode::kInvalidArgument);
  state.stats.pop_back();
  EXPECT_TRUE(mirror->Commit(state.view()).ok());
}

}  // namespace
}  // namespace soup::engine
