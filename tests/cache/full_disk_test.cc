// Case 17, the shard store's part: a disk that fills, and a store that works again once there is
// room. Needs root for a tmpfs of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

#include "cache/importer.h"
#include "cache/shortage.h"
#include "engine/base/file_system.h"
#include "tests/cache/store_helpers.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace soup::cache {
namespace {

using engine::BaseFormat;
using ::soup::testing::ExpectIntact;
using ::soup::testing::MakeKey;
using ::soup::testing::PutBase;
using ::soup::testing::SlabBytes;
using ::soup::testing::TempDir;
using ::soup::testing::TinyModel;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

class FullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = dir_ / "disk";
    ASSERT_TRUE(engine::RealFileSystem().CreateDirectories(disk_).ok());
    if (geteuid() != 0 || mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=24m,mode=0700") != 0) {
      GTEST_SKIP() << "a tmpfs of its own needs root and CAP_SYS_ADMIN";
    }
    mounted_ = true;
    ShardStoreOptions options;
    options.folder = disk_ + "/cache";
    auto store = ShardStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void TearDown() override {
    store_.reset();
    if (mounted_) umount2(disk_.c_str(), MNT_DETACH);
  }
  int64_t FreeBytes() { return *engine::RealFileSystem().FreeBytes(disk_); }
  // Leaves `spare` bytes.
  void Fill(int64_t spare) {
    std::ofstream ballast(disk_ + "/ballast", std::ios::binary);
    const std::string page(4096, 'x');
    while (FreeBytes() > spare && ballast.write(page.data(), 4096).flush()) continue;
  }
  void Free() { ASSERT_EQ(unlink((disk_ + "/ballast").c_str()), 0); }
  void ExpectFullDisk(const absl::Status& status) {
    EXPECT_EQ(ShortageOf(status), Shortage::kDisk) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(disk_ + "/cache"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("bytes needed"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("bytes free"));
  }

  TempDir dir_;
  std::string disk_;
  bool mounted_ = false;
  std::unique_ptr<ShardStore> store_;
};

TEST_F(FullDiskTest, BaseThatCannotFitIsRefusedBeforeAnythingIsWritten) {
  const int64_t before = FreeBytes();
  const absl::Status status = PutBase(*store_, MakeKey('a'), {30 * kMiB}).status();
  ExpectFullDisk(status);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(317"));  // 30 MiB and what goes with them
  EXPECT_NEAR(static_cast<double>(FreeBytes()), static_cast<double>(before), 1e5);
  EXPECT_TRUE(store_->Health().healthy);
  EXPECT_TRUE(PutBase(*store_, MakeKey('a'), {5 * kMiB}).ok());
}

TEST_F(FullDiskTest, ReservationHoldsTheRoomAgainstOthers) {
  BaseManifest draft;
  draft.key = MakeKey('a');
  auto writer = store_->Begin(draft, 15 * kMiB, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  Fill(64 << 10);  // somebody takes all the rest
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE((*writer)->Append(SlabBytes(draft.key, i, 5 * kMiB)).ok());
  }
  const auto found = (*writer)->Commit();
  ASSERT_TRUE(found.ok()) << found.status();
  ExpectIntact(*store_, found->manifest);
}

TEST_F(FullDiskTest, DiskThatFillsInTheMiddleIsToldCleanedAndRecoveredFrom) {
  const auto kept = PutBase(*store_, MakeKey('d'), {2 * kMiB});
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (int round = 0; round < 3; ++round) {
    absl::Status failed;
    {
      BaseManifest draft;
      draft.key = MakeKey('a');
      auto writer = store_->Begin(draft, kMiB, {});  // reserves less than it will write
      ASSERT_TRUE(writer.ok()) << round << writer.status();
      Fill(2 * kMiB);
      for (int i = 0; i < 4 && failed.ok(); ++i) {
        failed = (*writer)->Append(SlabBytes(draft.key, i, 5 * kMiB));
      }
      if (failed.ok()) failed = (*writer)->Commit().status();
    }
    ExpectFullDisk(failed);
    ExpectIntact(*store_, kept->manifest);  // reading goes on
    EXPECT_EQ(store_->List().size(), 1u);
    Free();
    EXPECT_TRUE(store_->Health().healthy) << store_->Health().message;
    EXPECT_GT(FreeBytes(), 18 * kMiB) << "what was written before the disk was full is gone";
    auto later = PutBase(*store_, MakeKey('b'), {10 * kMiB});
    ASSERT_TRUE(later.ok()) << later.status();
    ExpectIntact(*store_, later->manifest);
    later = absl::UnknownError("released");
    ASSERT_TRUE(store_->Evict(MakeKey('b')).ok());
  }
}

TEST_F(FullDiskTest, HealthTellsWhileTheDiskIsFull) {
  BaseManifest draft;
  draft.key = MakeKey('a');
  {
    auto writer = store_->Begin(draft, kMiB, {});
    ASSERT_TRUE(writer.ok());
    Fill(0);
    ASSERT_TRUE((*writer)->Append(SlabBytes(draft.key, 0, 5 * kMiB)).ok());
    ExpectFullDisk((*writer)->Commit().status());
    Fill(0);
  }
  Fill(0);
  const StorageHealth sick = store_->Health();
  EXPECT_TRUE(sick.healthy || sick.message.find(disk_) != std::string::npos) << sick.message;
  const absl::Status refused = PutBase(*store_, MakeKey('b'), {5 * kMiB}).status();
  ExpectFullDisk(refused);
  Free();
  EXPECT_TRUE(store_->Health().healthy) << store_->Health().message;
  EXPECT_TRUE(PutBase(*store_, MakeKey('b'), {5 * kMiB}).ok());
}

TEST_F(FullDiskTest, StoreOpensOnAFullDiskAndHasItsBasesOnceThereIsRoomForItsOwnFiles) {
  const auto key = MakeKey('d');
  { ASSERT_TRUE(PutBase(*store_, key, {2 * kMiB}).ok()); }
  store_.reset();
  Fill(0);
  ShardStoreOptions options;
  options.folder = disk_ + "/cache";
  auto store = ShardStore::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  store_ = *std::move(store);
  EXPECT_TRUE(store_->List().empty());
  EXPECT_THAT(store_->Health().message, HasSubstr("bytes needed"));
  ExpectFullDisk(PutBase(*store_, MakeKey('e'), {kMiB}).status());
  EXPECT_TRUE(absl::IsResourceExhausted(store_->Evict(key).status()));
  Free();
  EXPECT_EQ(PutBase(*store_, key, {2 * kMiB}).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(store_->Health().healthy) << store_->Health().message;
  ASSERT_EQ(store_->List().size(), 1u);
  ExpectIntact(*store_, store_->List()[0].manifest);
}

TEST_F(FullDiskTest, ImportOfAModelAfterSpaceIsFreed) {
  TinyModel model;
  model.hidden = 512;
  model.intermediate = 1024;
  model.Write(dir_ / "model");
  Fill(kMiB);
  ExpectFullDisk(ImportBase(*store_, dir_ / "model", {}, BaseFormat::kBf16, {}).status());
  Free();
  EXPECT_TRUE(ImportBase(*store_, dir_ / "model", {}, BaseFormat::kBf16, {}).ok());
}

}  // namespace
}  // namespace soup::cache
