#include "cache/base_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cache/slab_assembler.h"
#include "tests/cache/store_helpers.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace soup::cache {
namespace {

namespace fs = std::filesystem;
using engine::BaseFormat;
using ::soup::testing::FilesEndingWith;
using ::soup::testing::FlipByte;
using ::soup::testing::FolderBytes;
using ::soup::testing::TempDir;
using ::soup::testing::TinyModel;
using ::testing::HasSubstr;

class BaseCacheTest : public ::testing::Test {
 protected:
  BaseCacheTest() : folder_(dir_ / "models/m") {
    TinyModel().Write(folder_);
    Reopen();
  }
  void Reopen() {
    cache_.reset();
    BaseCacheOptions options;
    options.shards.folder = dir_ / "cache";
    options.host.reserve_bytes = 0;
    options.model_roots = {dir_ / "models"};
    auto cache = BaseCache::Open(std::move(options));
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  BaseLease Acquire(BaseFormat format = BaseFormat::kNf4DoubleQuant) {
    auto lease = cache_->Acquire(folder_, format, {});
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *std::move(lease) : BaseLease();
  }
  void ExpectWhole(const BaseLease& lease, BaseFormat format) {
    const auto memory = MemoryBase::Assemble(folder_, {}, format);
    ASSERT_TRUE(memory.ok()) << memory.status();
    for (int64_t i = 0; i < memory->slabs(); ++i) {
      EXPECT_EQ(lease.base().slab(i), memory->slab(i));
    }
  }

  TempDir dir_;
  const std::string folder_;
  std::unique_ptr<BaseCache> cache_;
};

TEST_F(BaseCacheTest, FromFolderToHostMemory) {
  const BaseLease first = Acquire();
  ASSERT_TRUE(first);
  EXPECT_TRUE(first.imported());
  EXPECT_TRUE(first.loaded());
  ExpectWhole(first, BaseFormat::kNf4DoubleQuant);
  const BaseLease second = Acquire();
  EXPECT_FALSE(second.imported());
  EXPECT_FALSE(second.loaded());
  EXPECT_EQ(&first.base(), &second.base());
}

TEST_F(BaseCacheTest, AfterARestartTheShardStoreHasIt) {
  BaseKey key;
  { key = Acquire().manifest().key; }
  Reopen();
  {
    const BaseLease again = Acquire();
    EXPECT_FALSE(again.imported());
    EXPECT_TRUE(again.loaded());
  }
  Reopen();
  fs::rename(folder_, dir_ / "moved");
  const auto by_key = cache_->Acquire(key, {});
  ASSERT_TRUE(by_key.ok()) << by_key.status();
  EXPECT_EQ(by_key->manifest().key, key);
}

TEST_F(BaseCacheTest, SegmentsComeBackByDescriptor) {
  std::vector<engine::UniqueFd> fds;
  BaseKey key;
  {
    const BaseLease lease = Acquire();
    key = lease.manifest().key;
    for (int i = 0; i < lease.base().segments(); ++i) {
      fds.emplace_back(dup(lease.base().segment_fd(i)));
    }
  }
  Reopen();
  ASSERT_TRUE(cache_->Attach(key, std::move(fds), {}).ok());
  const BaseLease lease = Acquire();
  EXPECT_FALSE(lease.loaded());
  ExpectWhole(lease, BaseFormat::kNf4DoubleQuant);
}

TEST_F(BaseCacheTest, EvictionNeedsAnIdleBaseAndFreesDiskAndMemory) {
  BaseLease a = Acquire(BaseFormat::kBf16);
  { const BaseLease b = Acquire(BaseFormat::kNf4); }
  const std::string fingerprint = a.manifest().key.fingerprint;
  EXPECT_TRUE(absl::IsFailedPrecondition(cache_->Evict(fingerprint, std::nullopt).status()));
  EXPECT_EQ(cache_->shards().List().size(), 2u) << "all or nothing";
  a = BaseLease();
  const auto freed = cache_->Evict(fingerprint, std::nullopt);
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_GT(*freed, 100'000);
  EXPECT_EQ(cache_->host().pinned_bytes(), 0);
  EXPECT_TRUE(cache_->shards().List().empty());
  EXPECT_TRUE(absl::IsNotFound(cache_->Evict(fingerprint, std::nullopt).status()));
  EXPECT_TRUE(Acquire(BaseFormat::kBf16).imported());
}

TEST_F(BaseCacheTest, DamageOnDiskIsRepairedOnTheWay) {
  { Acquire(BaseFormat::kBf16); }
  cache_.reset();
  const auto blobs = FilesEndingWith(dir_ / "cache", ".blob");
  ASSERT_EQ(blobs.size(), 1u);
  for (int64_t at = 2000; at < FolderBytes(dir_ / "cache"); at += 50'000) {
    if (at < static_cast<int64_t>(fs::file_size(blobs[0]))) FlipByte(blobs[0], at);
  }
  Reopen();
  const BaseLease lease = Acquire(BaseFormat::kBf16);
  ASSERT_TRUE(lease);
  EXPECT_FALSE(lease.imported());
  ExpectWhole(lease, BaseFormat::kBf16);
  EXPECT_GE(cache_->shards().counters().corruptions, 1);
}

TEST_F(BaseCacheTest, DamageWithoutASourceIsTold) {
  BaseKey key;
  { key = Acquire(BaseFormat::kBf16).manifest().key; }
  cache_.reset();
  FlipByte(FilesEndingWith(dir_ / "cache", ".blob")[0], 3000);
  fs::remove_all(folder_);
  Reopen();
  const absl::Status status = cache_->Acquire(key, {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_));
}

TEST_F(BaseCacheTest, FolderOutsideTheRootsIsRefused) {
  TinyModel().Write(dir_ / "elsewhere");
  fs::create_symlink(dir_ / "elsewhere", dir_ / "models/link");
  for (const std::string& folder : {dir_ / "elsewhere", dir_ / "models/link"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(cache_->Inspect(folder, BaseFormat::kBf16).status()));
    EXPECT_TRUE(absl::IsPermissionDenied(cache_->Acquire(folder, BaseFormat::kBf16, {}).status()));
  }
}

TEST_F(BaseCacheTest, InspectTellsSizesAndRefusesWhatHeadersShow) {
  const auto model = cache_->Inspect(folder_, BaseFormat::kNf4);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->spec.hidden, 64);
  EXPECT_EQ(model->slab_bytes, Acquire(BaseFormat::kNf4).manifest().total_bytes());
  EXPECT_GT(model->checkpoint_bytes, model->slab_bytes / 2);
  fs::resize_file(folder_ + "/model.safetensors", 1000);
  EXPECT_TRUE(absl::IsInvalidArgument(cache_->Inspect(folder_, BaseFormat::kNf4).status()));
}

TEST_F(BaseCacheTest, CancelledLoadLeavesTheShardsAndNothingElse) {
  TaskControl control;
  bool loading = false;
  control.progress = [&](absl::string_view stage, int64_t, int64_t) { loading |= stage == "load"; };
  control.cancelled = [&] { return loading; };
  control.threads = 1;
  EXPECT_TRUE(absl::IsCancelled(cache_->Acquire(folder_, BaseFormat::kBf16, control).status()));
  EXPECT_EQ(cache_->shards().List().size(), 1u);
  EXPECT_FALSE(cache_->shards().List()[0].in_use);
  EXPECT_EQ(cache_->host().pinned_bytes(), 0);
  EXPECT_TRUE(Acquire(BaseFormat::kBf16).loaded());
}

}  // namespace
}  // namespace soup::cache
