#include "cache/importer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <thread>

#include "cache/slab_assembler.h"
#include "tests/cache/store_helpers.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::cache {
namespace {

namespace fs = std::filesystem;
using engine::BaseFormat;
using ::soup::testing::CaseFolder;
using ::soup::testing::FilesEndingWith;
using ::soup::testing::FlipByte;
using ::soup::testing::ReadSlab;
using ::soup::testing::TempDir;
using ::soup::testing::TinyModel;
using ::testing::HasSubstr;

class ImporterTest : public ::testing::Test {
 protected:
  ImporterTest() : folder_(dir_ / "model") {
    TinyModel model;
    model.shards = 2;
    model.Write(folder_);
    Reopen();
  }
  void Reopen() {
    store_.reset();
    ShardStoreOptions options;
    options.folder = dir_ / "cache";
    auto store = ShardStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  absl::StatusOr<ImportResult> Import(BaseFormat format, const TaskControl& control = {}) {
    return ImportBase(*store_, folder_, {}, format, control);
  }

  TempDir dir_;
  const std::string folder_;
  std::unique_ptr<ShardStore> store_;
};

TEST_F(ImporterTest, StoredSlabsAreTheAssembledOnesInEveryFormat) {
  for (BaseFormat format : {BaseFormat::kBf16, BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    const auto result = Import(format);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->imported);
    const BaseManifest& m = result->found.manifest;
    EXPECT_EQ(m.source_folder, folder_);
    const auto memory = MemoryBase::Assemble(folder_, {}, format);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(m.config_json, memory->config_json());
    ASSERT_EQ(static_cast<int64_t>(m.slabs.size()), memory->slabs());
    for (int64_t i = 0; i < memory->slabs(); ++i) {
      std::vector<uint8_t> bytes;
      ASSERT_TRUE(ReadSlab(*store_, m, i, &bytes).ok());
      EXPECT_EQ(absl::MakeConstSpan(bytes), memory->slab(i));
    }
  }
  EXPECT_EQ(store_->List().size(), 3u);
}

TEST_F(ImporterTest, SecondImportIsAHitAlsoFromACopyAndAfterAReopening) {
  ASSERT_TRUE(Import(BaseFormat::kNf4).ok());
  Reopen();
  fs::copy(folder_, dir_ / "copy");
  for (const std::string& folder : {folder_, dir_ / "copy"}) {
    const auto again = ImportBase(*store_, folder, {}, BaseFormat::kNf4, {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_FALSE(again->imported);
  }
  EXPECT_EQ(store_->counters().hits, 2);
  EXPECT_EQ(store_->counters().misses, 0);
}

TEST_F(ImporterTest, TwoAtOnceShareOneImport) {
  std::atomic<int> imported{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto result = Import(BaseFormat::kNf4DoubleQuant);
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok() && result->imported) ++imported;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(imported, 1);
  EXPECT_EQ(store_->List().size(), 1u);
}

TEST_F(ImporterTest, ProgressIsTold) {
  TaskControl control;
  int64_t done = 0, total = -1;
  control.progress = [&](absl::string_view stage, int64_t d, int64_t t) {
    if (stage != "import") return;
    EXPECT_GT(d, done);
    done = d;
    total = t;
  };
  const auto result = Import(BaseFormat::kBf16, control);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, result->found.manifest.total_bytes());
}

TEST_F(ImporterTest, CancelledImportLeavesNothing) {
  TaskControl control;
  std::atomic<bool> stop{false};
  control.progress = [&](absl::string_view stage, int64_t, int64_t) {
    if (stage == "import") stop = true;
  };
  control.cancelled = [&] { return stop.load(); };
  EXPECT_TRUE(absl::IsCancelled(Import(BaseFormat::kBf16, control).status()));
  EXPECT_TRUE(store_->List().empty());
  EXPECT_TRUE(Import(BaseFormat::kBf16).ok());
}

TEST_F(ImporterTest, ModelThatChangesMeanwhileIsNotCommitted) {
  TaskControl control;
  bool changed = false;
  control.progress = [&](absl::string_view stage, int64_t, int64_t) {
    if (stage != "import" || std::exchange(changed, true)) return;
    TinyModel other;
    other.shards = 2;
    other.seed = 9;
    other.Write(folder_);
  };
  const absl::Status status = Import(BaseFormat::kBf16, control).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_TRUE(store_->List().empty());
  EXPECT_TRUE(Import(BaseFormat::kBf16).ok());
}

// Case 19: nothing of a bad base stays, and once mended the same path works.
TEST_F(ImporterTest, MendedModelImportsFromTheSamePath) {
  const std::string base = dir_ / "base";
  fs::copy(CaseFolder("19-shard-missing/base-whole"), base);
  const std::string shard = base + "/model-00002-of-00003.safetensors";
  fs::rename(shard, dir_ / "aside");
  EXPECT_FALSE(ImportBase(*store_, base, {}, BaseFormat::kBf16, {}).ok());
  EXPECT_TRUE(store_->List().empty());
  fs::rename(dir_ / "aside", shard);
  const auto result = ImportBase(*store_, base, {}, BaseFormat::kBf16, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->imported);
}

// Case 15: refused in the middle of the import, and nothing stays.
TEST_F(ImporterTest, PoisonedModelLeavesNothing) {
  const auto result =
      ImportBase(*store_, CaseFolder("15-nan-poison/base"), {}, BaseFormat::kNf4, {});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("row 7"));
  EXPECT_TRUE(store_->List().empty());
  Reopen();
  EXPECT_TRUE(store_->List().empty());
}

class RepairTest : public ImporterTest {
 protected:
  // Imports and damages one byte of what was written.
  void ImportAndDamage() {
    auto result = Import(BaseFormat::kNf4);
    ASSERT_TRUE(result.ok());
    manifest_ = result->found.manifest;
    result = absl::UnknownError("released");
    store_.reset();
    const auto blobs = FilesEndingWith(dir_ / "cache", ".blob");
    ASSERT_EQ(blobs.size(), 1u);
    FlipByte(blobs[0], 3000);
    Reopen();
    for (int64_t i = 0; i < static_cast<int64_t>(manifest_.slabs.size()); ++i) {
      std::vector<uint8_t> bytes;
      ReadSlab(*store_, manifest_, i, &bytes).IgnoreError();
    }
    ASSERT_EQ(store_->counters().corruptions, 1);
  }
  BaseManifest manifest_;
};

TEST_F(RepairTest, DamagedSlabIsRebuiltFromTheSource) {
  ImportAndDamage();
  ASSERT_TRUE(RepairBase(*store_, manifest_, folder_, {}, {}).ok());
  EXPECT_TRUE(store_->List()[0].bad_slabs.empty());
  const auto memory = MemoryBase::Assemble(folder_, {}, BaseFormat::kNf4);
  for (int64_t i = 0; i < memory->slabs(); ++i) {
    std::vector<uint8_t> bytes;
    ASSERT_TRUE(ReadSlab(*store_, manifest_, i, &bytes).ok());
    EXPECT_EQ(absl::MakeConstSpan(bytes), memory->slab(i));
  }
}

TEST_F(RepairTest, AnotherModelOrNoneInItsPlaceIsRefused) {
  ImportAndDamage();
  TinyModel other;
  other.shards = 2;
  other.seed = 9;
  other.Write(folder_);
  absl::Status status = RepairBase(*store_, manifest_, folder_, {}, {});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another one now"));
  fs::remove_all(folder_);
  status = RepairBase(*store_, manifest_, folder_, {}, {});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bring the model back"));
}

}  // namespace
}  // namespace soup::cache
