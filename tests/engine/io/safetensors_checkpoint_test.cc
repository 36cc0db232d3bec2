// Checkpoints of several shards: the faults of case 19, and links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/io/safetensors_reader.h"
#include "engine/io/safetensors_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::engine {
namespace {

namespace fs = std::filesystem;
using ::soup::testing::ReadWhole;
using ::soup::testing::TempDir;
using ::soup::testing::WriteWhole;
using ::testing::HasSubstr;

constexpr char kThird[] = "model-00003-of-00003.safetensors";
constexpr char kSecond[] = "model-00002-of-00003.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() : base_(dir_ / "base") {
    fs::copy(std::string(SOUP_TEST_DATA_DIR) + "/cases/19-shard-missing/base-whole", base_,
             fs::copy_options::recursive);
  }
  absl::Status Open() { return SafetensorsCheckpoint::Open(base_).status(); }
  void ExpectRefused(absl::StatusCode code, std::vector<std::string> named) {
    const absl::Status status = Open();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& name : named) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    }
  }
  std::string File(const std::string& name) { return base_ + "/" + name; }
  void ReplaceInIndex(const std::string& from, const std::string& to) {
    std::string text = ReadWhole(File(kIndex));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    WriteWhole(File(kIndex), text.replace(at, from.size(), to));
  }

  TempDir dir_;
  const std::string base_;
};

TEST_F(CheckpointTest, WholeOneOpens) {
  const auto checkpoint = SafetensorsCheckpoint::Open(base_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->shard_names().size(), 3u);
  EXPECT_NE((*checkpoint)->Find("model.norm.weight").tensor, nullptr);
  EXPECT_EQ((*checkpoint)->Find("nothing").tensor, nullptr);
  EXPECT_TRUE((*checkpoint)->warnings().empty());
}

TEST_F(CheckpointTest, MissingShardIsNamed) {
  fs::remove(File(kSecond));
  ExpectRefused(absl::StatusCode::kNotFound, {kSecond, "the download looks incomplete"});
}

TEST_F(CheckpointTest, ShardThatIsALinkToNowhereIsNamed) {
  fs::remove(File(kSecond));
  fs::create_symlink("blobs/gone", File(kSecond));
  ExpectRefused(absl::StatusCode::kNotFound, {kSecond});
}

TEST_F(CheckpointTest, ShortShardsAreRefusedWithBothSizes) {
  const auto size = static_cast<int64_t>(fs::file_size(File(kThird)));
  for (const int64_t missing : {1, 1000}) {
    ASSERT_EQ(truncate(File(kThird).c_str(), size - missing), 0);
    ExpectRefused(absl::StatusCode::kInvalidArgument,
                  {kThird, std::to_string(size), std::to_string(size - missing),
                   "the download looks incomplete"});
  }
}

TEST_F(CheckpointTest, StrayModelFileIsNotMerged) {
  const std::vector<float> poison = {1};
  ASSERT_TRUE(WriteSafetensors(RealFileSystem(), File("model.safetensors"),
                               {{"model.norm.weight", DType::kF32, {1}, AsBytes(poison)},
                                {"other", DType::kF32, {1}, AsBytes(poison)}})
                  .ok());
  const auto checkpoint = SafetensorsCheckpoint::Open(base_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->Find("other").tensor, nullptr);
  EXPECT_THAT((*checkpoint)->Find("model.norm.weight").file->path(), HasSubstr(kThird));
  ASSERT_EQ((*checkpoint)->warnings().size(), 1u);
  EXPECT_THAT((*checkpoint)->warnings()[0], HasSubstr("was ignored"));
}

TEST_F(CheckpointTest, StrayModelFileThatIsDamagedDoesNoHarm) {
  WriteWhole(File("model.safetensors"), "junk");
  EXPECT_TRUE(Open().ok());
}

TEST_F(CheckpointTest, TensorInAnotherShardThanTheIndexSays) {
  ReplaceInIndex("\"model.norm.weight\": \"model-00003", "\"model.norm.weight\": \"model-00001");
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                {"model.norm.weight", "model-00001-of-00003.safetensors"});
}

TEST_F(CheckpointTest, HostileHeaderLengthIsRefusedAtOnce) {
  std::string shard = ReadWhole(File("model-00001-of-00003.safetensors"));
  shard.replace(0, 8, std::string("\377\377\377\377\377\377\377\177", 8));
  WriteWhole(File("model-00001-of-00003.safetensors"), shard);
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                {"model-00001-of-00003.safetensors", "9223372036854775807"});
}

TEST_F(CheckpointTest, IndexThatNamesAPathIsRefused) {
  ReplaceInIndex("model-00003-of-00003.safetensors", "../model-00003-of-00003.safetensors");
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"not a plain file name"});
}

TEST_F(CheckpointTest, DamagedIndexIsRefused) {
  for (const char* text : {"", "[", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":""}})"}) {
    WriteWhole(File(kIndex), text);
    EXPECT_TRUE(absl::IsInvalidArgument(Open())) << text;
  }
}

TEST_F(CheckpointTest, DanglingIndexIsNotTakenForNoIndex) {
  fs::copy(File("model-00001-of-00003.safetensors"), File("model.safetensors"));
  fs::remove(File(kIndex));
  fs::create_symlink("gone", File(kIndex));
  ExpectRefused(absl::StatusCode::kNotFound, {kIndex});
}

TEST_F(CheckpointTest, TensorInTwoShardsIsRefused) {
  const std::vector<float> other = {1};
  // A fourth shard that the index names, with a tensor that the third has too.
  ASSERT_TRUE(WriteSafetensors(RealFileSystem(), File("extra.safetensors"),
                               {{"model.norm.weight", DType::kF32, {1}, AsBytes(other)},
                                {"extra", DType::kF32, {1}, AsBytes(other)}})
                  .ok());
  ReplaceInIndex("\"weight_map\": {", "\"weight_map\": {\"extra\": \"extra.safetensors\", ");
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                {"model.norm.weight", "extra.safetensors", kThird});
}

TEST_F(CheckpointTest, FolderWithoutWeightsSaysWhatItHolds) {
  TempDir empty;
  WriteWhole(empty / "pytorch_model.bin", "x");
  const absl::Status status = SafetensorsCheckpoint::Open(empty.path()).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pytorch_model.bin"));
}

TEST_F(CheckpointTest, LinksInsideTheRootWorkAndLinksOutAreRefused) {
  // As a Hugging Face cache lies: snapshots/<rev>/name -> ../../blobs/<hash>.
  fs::create_directories(dir_ / "hub/blobs");
  fs::create_directories(dir_ / "hub/snapshots/rev");
  for (const auto& entry : fs::directory_iterator(base_)) {
    const std::string name = entry.path().filename();
    fs::copy(entry.path(), dir_ / ("hub/blobs/" + name));
    fs::create_symlink("../../blobs/" + name, dir_ / ("hub/snapshots/rev/" + name));
  }
  const std::string snapshot = dir_ / "hub/snapshots/rev";
  EXPECT_TRUE(SafetensorsCheckpoint::Open(snapshot, {dir_ / "hub"}).ok());
  // The same with only the snapshots as a root: the blobs lie outside.
  absl::Status status = SafetensorsCheckpoint::Open(snapshot, {dir_ / "hub/snapshots"}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("hub/blobs/"));
  fs::remove(snapshot + "/" + kThird);
  fs::create_symlink(File(kThird), snapshot + "/" + kThird);
  status = SafetensorsCheckpoint::Open(snapshot, {dir_ / "hub"}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kThird));
}

}  // namespace
}  // namespace soup::engine
