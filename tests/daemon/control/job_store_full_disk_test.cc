// Case 17: a full disk under the job store. Nothing acknowledged is lost, errors name path and
// bytes, and it goes on without a restart when there is room. On a tmpfs of 1 MiB in a mount
// namespace of the test's own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "daemon/control/job_store.h"
#include "daemon/control/step_log.h"
#include "engine/base/clock.h"
#include "engine/base/file_system.h"
#include "tests/daemon/control/job_spec_for_tests.h"
#include "tests/support/temp_dir.h"

namespace soup::daemon {
namespace {

using ::testing::HasSubstr;

class FullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const bool own = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    if (!own || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
      GTEST_SKIP() << "no mount namespaces here";
    }
    mounted_ = true;
    JobStoreOptions options;
    options.path = dir_ / "soupd.db";
    options.reserve_bytes = 64 << 10;
    auto store = OpenJobStore(options, engine::RealClock());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void TearDown() override {
    store_.reset();
    if (mounted_) umount2(dir_.path().c_str(), MNT_DETACH);
  }

  void Fill() {
    const int fd = open((dir_ / "ballast").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600);
    ASSERT_GE(fd, 0);
    const std::string block(4096, 'b');
    while (write(fd, block.data(), block.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
    close(fd);
  }
  void Free() { ASSERT_EQ(unlink((dir_ / "ballast").c_str()), 0); }

  absl::StatusOr<JobStore::CreateResult> Create() {
    return store_->CreateJob("u", "", GoodSpec("n", "/m"), "/m", 0);
  }

  soup::testing::TempDir dir_;
  bool mounted_ = false;
  std::unique_ptr<JobStore> store_;
};

TEST_F(FullDiskTest, TheReserveTakesTheLastWordsThenErrorsAreToldAndRoomHeals) {
  const auto running = Create();
  ASSERT_TRUE(running.ok());
  ASSERT_TRUE(
      store_->Transition(running->job.id, JobTrigger::kRunStarted, soup::v1::REASON_UNSPECIFIED, "")
          .ok());
  Fill();
  // The one thing that must be written now.
  const auto paused = store_->Transition(running->job.id, JobTrigger::kPaused, soup::v1::STORAGE,
                                         "the disk is full");
  ASSERT_TRUE(paused.ok()) << paused.status();

  int64_t acknowledged = 1;
  absl::Status refused;
  for (int i = 0; i < 10'000 && refused.ok(); ++i) {
    const auto made = Create();
    refused = made.status();
    if (made.ok()) ++acknowledged;
  }
  ASSERT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(dir_.path()));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("free"));
  EXPECT_FALSE(store_->StorageStatus().ok());
  EXPECT_EQ(store_->GetJob(running->job.id)->state, soup::v1::PAUSED);  // reads go on

  Free();
  const auto healed = Create();
  ASSERT_TRUE(healed.ok()) << healed.status();
  EXPECT_TRUE(store_->StorageStatus().ok());
  EXPECT_EQ(store_->ListUnfinished()->size(), static_cast<size_t>(acknowledged + 1));
  // And the reserve is back: once more the last word is written.
  Fill();
  EXPECT_TRUE(
      store_->Transition(running->job.id, JobTrigger::kCancelRequested, soup::v1::USER_REQUEST, "")
          .ok());
  Free();
}

TEST_F(FullDiskTest, StepsAreHeldBackAndNoneIsLost) {
  StepLogs logs(dir_.path());
  const auto step = [](int64_t n) {
    soup::v1::StepRecord s;
    s.set_step(n);
    return s;
  };
  ASSERT_TRUE(logs.Append("j", step(1)).ok());
  Fill();
  absl::Status refused;
  int64_t n = 1;
  while (refused.ok() && n < 5000) refused = logs.Append("j", step(++n));
  ASSERT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("steps.bin"));
  EXPECT_FALSE(logs.Append("j", step(++n)).ok());
  EXPECT_EQ(logs.Read("j", 0, 10'000)->size(), static_cast<size_t>(n));
  Free();
  ASSERT_TRUE(logs.Append("j", step(++n)).ok());
  logs.Release("j");
  EXPECT_EQ(logs.Read("j", 0, 10'000)->size(), static_cast<size_t>(n));
}

}  // namespace
}  // namespace soup::daemon
