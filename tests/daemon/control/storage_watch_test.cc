// What makes storage unhealthy, and when it is healthy again.
#include "daemon/control/storage_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "engine/base/fault_file_system.h"
#include "tests/support/temp_dir.h"

namespace soup::daemon {
namespace {

using engine::FileOperation;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StorageWatchTest : public ::testing::Test {
 protected:
  std::string Message() const { return std::string(watch_.status().message()); }

  soup::testing::TempDir dir_;
  engine::FaultyFileSystem fs_{engine::RealFileSystem()};
  StorageWatch watch_{&fs_, {dir_.path()}};
};

TEST_F(StorageWatchTest, AFailedWriteIsToldUntilThereIsRoomAgain) {
  watch_.Probe();
  EXPECT_TRUE(watch_.status().ok());
  fs_.Fail(FileOperation::kReserve, dir_.path(), ENOSPC);
  EXPECT_TRUE(watch_.status().ok()) << "nothing was written since";
  watch_.Failed("write /state/jobs/j: No space left on device");
  EXPECT_EQ(watch_.status().code(), absl::StatusCode::kUnavailable);
  watch_.Probe();
  EXPECT_THAT(Message(), HasSubstr("/state/jobs/j")) << "the job's path, not the probe's";
  fs_.Heal();
  EXPECT_FALSE(watch_.status().ok());
  watch_.Probe();
  EXPECT_TRUE(watch_.status().ok());
  EXPECT_THAT(*fs_.ListDirectory(dir_.path()), IsEmpty());
}

TEST_F(StorageWatchTest, AJobsWriteThatGoesThroughMakesItHealthy) {
  watch_.Failed("write /state/jobs/j: No space left on device");
  watch_.Wrote();
  EXPECT_TRUE(watch_.status().ok());
}

TEST_F(StorageWatchTest, ADiskThatIsFullFromTheStartIsTold) {
  fs_.Fail(FileOperation::kReserve, "", ENOSPC, {.times = 1});
  watch_.Probe();
  EXPECT_THAT(Message(), HasSubstr(dir_.path()));
  watch_.Probe();
  EXPECT_TRUE(watch_.status().ok());
}

TEST_F(StorageWatchTest, ProbesOnlyWhereSomethingFailed) {
  watch_.Probe();
  const int64_t operations = fs_.operations();
  watch_.Probe();
  EXPECT_EQ(fs_.operations(), operations);
}

}  // namespace
}  // namespace soup::daemon
