#include "cache/shard_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/cache/store_helpers.h"
#include "tests/support/temp_dir.h"

namespace soup::cache {
namespace {

namespace fs = std::filesystem;
using engine::BaseFormat;
using ::soup::testing::ExpectIntact;
using ::soup::testing::FilesEndingWith;
using ::soup::testing::FlipByte;
using ::soup::testing::FolderBytes;
using ::soup::testing::MakeKey;
using ::soup::testing::PutBase;
using ::soup::testing::ReadSlab;
using ::soup::testing::SlabBytes;
using ::soup::testing::TempDir;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

class ShardStoreTest : public ::testing::Test {
 protected:
  ShardStoreTest() { Reopen(); }
  void Reopen() {
    store_.reset();
    auto store = ShardStore::Open(options());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  ShardStoreOptions options() {
    ShardStoreOptions options;
    options.folder = dir_ / "cache";
    options.cap_bytes = cap_;
    options.clock = &clock_;
    return options;
  }
  BaseManifest Put(const BaseKey& key, const std::vector<int64_t>& slabs) {
    clock_.AdvanceNs(1'000'000'000);
    const auto found = PutBase(*store_, key, slabs);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? found->manifest : BaseManifest();
  }

  TempDir dir_;
  engine::FakeClock clock_;
  int64_t cap_ = 0;
  std::unique_ptr<ShardStore> store_;
};

TEST_F(ShardStoreTest, SlabsOfEverySizeComeBackAlsoAfterReopening) {
  const BaseManifest m = Put(MakeKey('a'), {1, 256, 8 * kMiB, 8 * kMiB + 1, 20 * kMiB});
  ExpectIntact(*store_, m);
  Reopen();
  const auto found = store_->Find(MakeKey('a'));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->manifest.ToText(), m.ToText());
  ExpectIntact(*store_, found->manifest);
}

TEST_F(ShardStoreTest, HitsAndMissesAreCounted) {
  EXPECT_TRUE(absl::IsNotFound(store_->Find(MakeKey('a')).status()));
  Put(MakeKey('a'), {1000});
  EXPECT_TRUE(store_->Find(MakeKey('a')).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Find(MakeKey('a', BaseFormat::kNf4)).status()));
  EXPECT_EQ(store_->counters().hits, 1);
  EXPECT_EQ(store_->counters().misses, 2);
}

TEST_F(ShardStoreTest, UnfinishedImportIsInvisibleAndLeavesNothing) {
  BaseManifest draft;
  draft.key = MakeKey('a');
  const int64_t before = FolderBytes(dir_ / "cache");
  {
    auto writer = store_->Begin(draft, 140 * kMiB, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(SlabBytes(draft.key, 0, 70 * kMiB)).ok());
    EXPECT_TRUE(store_->List().empty());
    EXPECT_GT(FolderBytes(dir_ / "cache"), before + 60 * kMiB);
  }
  EXPECT_TRUE(store_->List().empty());
  EXPECT_LT(FolderBytes(dir_ / "cache"), before + kMiB);
  Put(MakeKey('a'), {1000});
  Reopen();
  EXPECT_EQ(store_->List().size(), 1u);
}

TEST_F(ShardStoreTest, SecondImportOfABaseIsRefused) {
  Put(MakeKey('a'), {1000});
  EXPECT_TRUE(absl::IsAlreadyExists(PutBase(*store_, MakeKey('a'), {1000}).status()));
}

TEST_F(ShardStoreTest, ImportWaitsForTheOneBeforeAndCanBeCancelled) {
  BaseManifest draft;
  draft.key = MakeKey('a');
  auto writer = store_->Begin(draft, 1000, {});
  ASSERT_TRUE(writer.ok());
  TaskControl cancelled;
  cancelled.cancelled = [] { return true; };
  draft.key = MakeKey('b');
  EXPECT_TRUE(absl::IsCancelled(store_->Begin(draft, 1000, cancelled).status()));
  std::thread other([&] { EXPECT_TRUE(PutBase(*store_, MakeKey('b'), {1000}).ok()); });
  ASSERT_TRUE((*writer)->Append(SlabBytes(MakeKey('a'), 0, 1000)).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  writer->reset();
  other.join();
  EXPECT_EQ(store_->List().size(), 2u);
}

TEST_F(ShardStoreTest, EvictionFreesTheDiskAndOnlyThatBase) {
  const BaseManifest a = Put(MakeKey('a'), {30 * kMiB, 40 * kMiB, 10 * kMiB});
  const BaseManifest b = Put(MakeKey('b'), {20 * kMiB});
  const BaseManifest a4 = Put(MakeKey('a', BaseFormat::kNf4), {12 * kMiB});
  const int64_t before = FolderBytes(dir_ / "cache");
  const auto freed = store_->Evict(MakeKey('a'));
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_GE(*freed, 80 * kMiB);
  EXPECT_LT(*freed, 82 * kMiB);
  EXPECT_LT(FolderBytes(dir_ / "cache"), before - 79 * kMiB);
  EXPECT_EQ(store_->counters().evictions, 1);
  EXPECT_TRUE(absl::IsNotFound(store_->Find(MakeKey('a')).status()));
  ExpectIntact(*store_, b);
  ExpectIntact(*store_, a4);
  Reopen();
  EXPECT_EQ(store_->List().size(), 2u);
  ExpectIntact(*store_, b);
  EXPECT_TRUE(absl::IsNotFound(store_->Evict(MakeKey('a')).status()));
  // And the room can be used again.
  ExpectIntact(*store_, Put(MakeKey('a'), {kMiB}));
}

TEST_F(ShardStoreTest, EvictionDuringAnImportTouchesOnlyItsOwn) {
  Put(MakeKey('a'), {30 * kMiB});
  BaseManifest draft;
  draft.key = MakeKey('b');
  auto writer = store_->Begin(draft, 100 * kMiB, {});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(SlabBytes(draft.key, 0, 70 * kMiB)).ok());
  ASSERT_TRUE((*writer)->Append(SlabBytes(draft.key, 1, 10 * kMiB)).ok());
  const auto freed = store_->Evict(MakeKey('a'));
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_GE(*freed, 30 * kMiB);
  ASSERT_TRUE((*writer)->Append(SlabBytes(draft.key, 2, 20 * kMiB)).ok());
  const auto found = (*writer)->Commit();
  ASSERT_TRUE(found.ok()) << found.status();
  ExpectIntact(*store_, found->manifest);
}

TEST_F(ShardStoreTest, PinnedBaseIsNotEvicted) {
  Put(MakeKey('a'), {1000});
  {
    auto found = store_->Find(MakeKey('a'));
    ASSERT_TRUE(found.ok());
    ShardStore::Pin moved = std::move(found->pin);
    EXPECT_TRUE(store_->List()[0].in_use);
    const auto refused = store_->Evict(MakeKey('a'));
    EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  }
  EXPECT_FALSE(store_->List()[0].in_use);
  EXPECT_TRUE(store_->Evict(MakeKey('a')).ok());
}

TEST_F(ShardStoreTest, CapEvictsTheLeastRecentlyUsedThatIsNotInUse) {
  cap_ = 10 * kMiB;
  Reopen();
  Put(MakeKey('a'), {3 * kMiB});
  Put(MakeKey('b'), {3 * kMiB});
  Put(MakeKey('c'), {3 * kMiB});
  clock_.AdvanceNs(1'000'000'000);
  { ASSERT_TRUE(store_->Find(MakeKey('a')).ok()); }  // used after b and c
  Reopen();                                          // the order outlives the process
  const auto held = store_->Find(MakeKey('b'));      // oldest, but in use
  ASSERT_TRUE(held.ok());
  Put(MakeKey('d'), {3 * kMiB});
  std::vector<char> left;
  for (const StoredBase& base : store_->List()) left.push_back(base.manifest.key.fingerprint[0]);
  EXPECT_THAT(left, ::testing::ElementsAre('a', 'b', 'd'));
  EXPECT_EQ(store_->counters().evictions, 1);
  EXPECT_LE(store_->total_bytes(), cap_);

  const absl::Status too_large = PutBase(*store_, MakeKey('e'), {11 * kMiB}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(too_large)) << too_large;
  EXPECT_THAT(std::string(too_large.message()), HasSubstr(std::to_string(11 * kMiB)));
  EXPECT_THAT(std::string(too_large.message()), HasSubstr(std::to_string(10 * kMiB)));
  EXPECT_EQ(store_->List().size(), 3u) << "nothing is evicted for a base that cannot fit";
}

TEST_F(ShardStoreTest, EndOfALongUseIsAUse) {
  cap_ = 10 * kMiB;
  Reopen();
  {
    const auto long_use = PutBase(*store_, MakeKey('a'), {3 * kMiB});
    ASSERT_TRUE(long_use.ok());
    Put(MakeKey('b'), {3 * kMiB});
    clock_.AdvanceNs(1'000'000'000);
  }
  Put(MakeKey('c'), {6 * kMiB});
  std::vector<char> left;
  for (const StoredBase& base : store_->List()) left.push_back(base.manifest.key.fingerprint[0]);
  EXPECT_THAT(left, ::testing::ElementsAre('a', 'c'));
}

TEST_F(ShardStoreTest, CapThatOnlyBasesInUseFillRefuses) {
  cap_ = 4 * kMiB;
  Reopen();
  const auto held = PutBase(*store_, MakeKey('a'), {3 * kMiB});
  ASSERT_TRUE(held.ok());
  const absl::Status status = PutBase(*store_, MakeKey('b'), {3 * kMiB}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use"));
}

TEST_F(ShardStoreTest, DamagedChunkIsQuarantinedAndRepaired) {
  const BaseManifest m = Put(MakeKey('a'), {9 * kMiB, 9 * kMiB});
  store_.reset();
  const auto blobs = FilesEndingWith(dir_ / "cache", ".blob");
  ASSERT_EQ(blobs.size(), 1u);
  FlipByte(blobs[0], 12 * kMiB);  // in slab 1
  Reopen();
  std::vector<uint8_t> bytes;
  EXPECT_TRUE(ReadSlab(*store_, m, 0, &bytes).ok());
  const absl::Status bad = ReadSlab(*store_, m, 1, &bytes);
  EXPECT_TRUE(absl::IsDataLoss(bad)) << bad;
  EXPECT_THAT(std::string(bad.message()), HasSubstr("slab 1"));
  EXPECT_EQ(store_->counters().corruptions, 1);
  Reopen();  // the quarantine outlives the process
  EXPECT_THAT(store_->List()[0].bad_slabs, ::testing::ElementsAre(1));

  const absl::Status wrong = store_->Repair(m, 1, SlabBytes(m.key, 0, 9 * kMiB));
  EXPECT_TRUE(absl::IsFailedPrecondition(wrong)) << wrong;
  ASSERT_TRUE(store_->Repair(m, 1, SlabBytes(m.key, 1, 9 * kMiB)).ok());
  EXPECT_TRUE(store_->List()[0].bad_slabs.empty());
  ExpectIntact(*store_, m);
  Reopen();
  EXPECT_TRUE(store_->List()[0].bad_slabs.empty());
  ExpectIntact(*store_, m);
  EXPECT_TRUE(store_->Evict(m.key).ok());
}

TEST_F(ShardStoreTest, BlobFileThatIsGoneOrShortIsDamageNotDeath) {
  for (const bool remove : {false, true}) {
    const BaseKey key = MakeKey(remove ? 'a' : 'b');
    const BaseManifest m = Put(key, {3 * kMiB});
    store_.reset();
    for (const std::string& blob : FilesEndingWith(dir_ / "cache", ".blob")) {
      if (remove) {
        fs::remove(blob);
      } else {
        fs::resize_file(blob, kMiB);
      }
    }
    auto store = ShardStore::Open(options());
    if (!store.ok()) {  // RocksDB itself may refuse a file that its manifest names
      EXPECT_FALSE(store.status().message().empty());
      fs::remove_all(dir_ / "cache");
      Reopen();
      continue;
    }
    store_ = *std::move(store);
    std::vector<uint8_t> bytes;
    const absl::Status bad = ReadSlab(*store_, m, 0, &bytes);
    EXPECT_TRUE(absl::IsDataLoss(bad)) << bad;
    ASSERT_TRUE(store_->Repair(m, 0, SlabBytes(key, 0, 3 * kMiB)).ok());
    ExpectIntact(*store_, m);
    fs::remove_all(dir_ / "cache");
    store_.reset();
    Reopen();
  }
}

TEST_F(ShardStoreTest, DamageThatKeepsItShutIsToldWithTheRemedy) {
  Put(MakeKey('1'), {kMiB});
  Reopen();  // written to tables
  store_.reset();
  int removed = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(dir_ / "cache")) {
    removed += file.path().extension() == ".sst" && fs::remove(file.path());
  }
  ASSERT_GT(removed, 0);
  const absl::Status shut = ShardStore::Open(options()).status();
  EXPECT_THAT(std::string(shut.message()), HasSubstr("remove the folder"));
  fs::remove_all(dir_ / "cache");
  Reopen();
}

TEST_F(ShardStoreTest, ManifestThatCannotBeReadIsRemovedWithItsChunks) {
  Put(MakeKey('a'), {5 * kMiB});
  const BaseManifest b = Put(MakeKey('b'), {kMiB});
  store_.reset();
  {
    rocksdb::DB* db = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::ColumnFamilyOptions blobs;
    blobs.enable_blob_files = true;
    ASSERT_TRUE(
        rocksdb::DB::Open({}, dir_ / "cache", {{"default", {}}, {"shards", blobs}}, &handles, &db)
            .ok());
    const std::string key = "base/" + MakeKey('a').ToString();
    std::string text;
    ASSERT_TRUE(db->Get({}, key, &text).ok());
    ASSERT_TRUE(db->Put({}, key, "{\"version\":0}").ok());
    for (auto* handle : handles) ASSERT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
    delete db;
  }
  Reopen();
  ASSERT_EQ(store_->List().size(), 1u);
  ExpectIntact(*store_, b);
  EXPECT_LT(FolderBytes(dir_ / "cache"), 4 * kMiB);
  ExpectIntact(*store_, Put(MakeKey('a'), {kMiB}));
}

TEST_F(ShardStoreTest, FolderIsHeldByOneProcess) {
  const absl::Status second = ShardStore::Open(options()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("another soupd"));
}

TEST_F(ShardStoreTest, DigestsAreRemembered) {
  engine::FileStamp stamp{1, 2, 3, 4, 5};
  const std::string digest(kFingerprintChars, 'd');
  EXPECT_FALSE(store_->Recall(stamp).has_value());
  store_->Remember(stamp, digest);
  Reopen();
  EXPECT_EQ(store_->Recall(stamp), digest);
  stamp.ctime_ns = 6;
  EXPECT_FALSE(store_->Recall(stamp).has_value());
}

TEST_F(ShardStoreTest, ReadersImportsAndEvictionsTogether) {
  const BaseManifest a = Put(MakeKey('a'), {9 * kMiB, kMiB});
  const auto held = store_->Find(MakeKey('a'));
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop) ExpectIntact(*store_, a);
    });
  }
  for (int round = 0; round < 4; ++round) {
    std::thread evictor;
    { ASSERT_TRUE(PutBase(*store_, MakeKey('b'), {5 * kMiB}).ok()); }
    evictor = std::thread([&] {
      const auto freed = store_->Evict(MakeKey('b'));
      EXPECT_TRUE(freed.ok()) << freed.status();
    });
    { ASSERT_TRUE(PutBase(*store_, MakeKey('c'), {5 * kMiB}).ok()); }
    evictor.join();
    const auto freed = store_->Evict(MakeKey('c'));
    EXPECT_TRUE(freed.ok()) << freed.status();
  }
  stop = true;
  for (std::thread& t : readers) t.join();
  EXPECT_EQ(store_->counters().corruptions, 0);
}

}  // namespace
}  // namespace soup::cache
