// Case 17, the engine's part: a state directory on a disk that is really full. Needs root for a
// tmpfs of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "engine/train/checkpoint.h"
#include "engine/train/mirror.h"
#include "engine/train/peft_export.h"
#include "tests/engine/train/state_fixture.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using ::soup::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StateFullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = dir_ / "disk";
    ASSERT_TRUE(fs_.CreateDirectories(disk_).ok());
    if (geteuid() != 0 || mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=16m,mode=0700") != 0) {
      GTEST_SKIP() << "a tmpfs of its own needs root and CAP_SYS_ADMIN";
    }
    mounted_ = true;
    ModelSpec model = TinyModel();
    model.hidden = 2048;
    layout_ = std::make_unique<AdapterLayout>(
        *AdapterLayout::Create(model, {.r = 16, .targets = {Module::kQ, Module::kO}}));
  }
  void TearDown() override {
    if (mounted_) umount2(disk_.c_str(), MNT_DETACH);
  }
  AdapterState State(int64_t step) const { return StateOfStep(step, layout_->elements()); }
  void Fill() {
    std::ofstream ballast(disk_ + "/ballast", std::ios::binary);
    const std::string page(4096, 'x');
    while (ballast.write(page.data(), 4096).flush()) continue;
  }
  void MakeRoom() { ASSERT_TRUE(fs_.Remove(disk_ + "/ballast").ok()); }
  void ExpectFull(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(disk_), HasSubstr("bytes needed"), HasSubstr("bytes free")));
  }

  FileSystem& fs_ = RealFileSystem();
  TempDir dir_;
  std::string disk_;
  bool mounted_ = false;
  std::unique_ptr<AdapterLayout> layout_;
};

TEST_F(StateFullDiskTest, AMirrorThatExistsNeedsNoMoreRoom) {
  auto mirror = Mirror::Open(fs_, disk_ + "/mirror", layout_->elements());
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  Fill();
  for (int64_t step = 1; step <= 3; ++step) {  // both halves, all of their pages
    ASSERT_TRUE((*mirror)->Commit(State(step).view()).ok());
  }
  mirror->reset();
  mirror = Mirror::Open(fs_, disk_ + "/mirror", layout_->elements());
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  const auto state = (*mirror)->Read();
  ASSERT_TRUE(state.ok() && state->has_value());
  EXPECT_TRUE(SameState(**state, State(3)));
}

TEST_F(StateFullDiskTest, AMirrorThatDoesNotFitIsRefusedAndLeavesNothing) {
  Fill();
  ExpectFull(Mirror::Open(fs_, disk_ + "/mirror", layout_->elements()).status());
  MakeRoom();
  if (fs_.Exists(disk_ + "/mirror")) {
    EXPECT_THAT(*fs_.ListDirectory(disk_ + "/mirror"), IsEmpty());
  }
  EXPECT_TRUE(Mirror::Open(fs_, disk_ + "/mirror", layout_->elements()).ok());
}

TEST_F(StateFullDiskTest, ACheckpointThatDoesNotFitLeavesTheLastOne) {
  CheckpointStore store(&fs_, disk_ + "/checkpoints", layout_.get(), 1);
  ASSERT_TRUE(store.Save(State(1).view()).ok());
  Fill();
  ExpectFull(store.Save(State(2).view()).status());
  ExpectFull(store.Save(State(2).view()).status());
  auto loaded = store.LatestWhole();
  ASSERT_TRUE(loaded.ok());
  ASSERT_TRUE(loaded->state.has_value());
  EXPECT_TRUE(SameState(*loaded->state, State(1)));
  EXPECT_THAT(loaded->warnings, IsEmpty());
  EXPECT_THAT(*fs_.ListDirectory(disk_ + "/checkpoints"), ElementsAre("step-1"));
  MakeRoom();
  ASSERT_TRUE(store.Save(State(2).view()).ok());
  loaded = store.LatestWhole();
  ASSERT_TRUE(loaded.ok() && loaded->state.has_value());
  EXPECT_TRUE(SameState(*loaded->state, State(2)));
}

TEST_F(StateFullDiskTest, AnArtifactThatDoesNotFitIsNotSeen) {
  const PeftConfig config{.base_model_name = "m", .alpha = 16};
  Fill();
  const AdapterState state = State(1);
  const auto artifact = [&] {
    return ExportPeftAdapter(fs_, disk_ + "/artifact", *layout_, state.weights, {}, config);
  };
  ExpectFull(artifact());
  EXPECT_FALSE(fs_.Exists(disk_ + "/artifact"));
  MakeRoom();
  EXPECT_TRUE(artifact().ok());
  EXPECT_THAT(*fs_.ListDirectory(disk_ + "/artifact"),
              ElementsAre("adapter_config.json", "adapter_model.safetensors"));
}

}  // namespace
}  // namespace soup::engine
