#include "engine/io/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/io/safetensors_reader.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::engine {
namespace {

using ::soup::testing::ReadWhole;
using ::soup::testing::TempDir;
using ::soup::testing::WriteWhole;

const std::vector<float> kF32 = {1, 2, 3, 4};
const std::vector<uint8_t> kU8 = {9, 8, 7};

TEST(SafetensorsWriter, RoundTripAndMetadata) {
  TempDir dir;
  ASSERT_TRUE(
      WriteSafetensors(RealFileSystem(), dir / "a.safetensors",
                       {{"z", DType::kU8, {3}, kU8}, {"a", DType::kF32, {2, 2}, AsBytes(kF32)}},
                       {{"note", "x"}})
          .ok());
  const auto file = SafetensorsFile::Open(dir / "a.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "x"}}));
  EXPECT_EQ(*(*file)->ReadF32("a"), kF32);
  EXPECT_EQ(*(*file)->ReadBytes("z"), kU8);
  EXPECT_EQ((*file)->Find("a")->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ((*file)->Find("a")->offset % 8, 0);
}

TEST(SafetensorsWriter, OrderOfTensorsDoesNotMatter) {
  const TensorToWrite a{"a", DType::kF32, {4}, AsBytes(kF32)}, z{"z", DType::kU8, {3}, kU8};
  EXPECT_EQ(*SerializeSafetensors({a, z}), *SerializeSafetensors({z, a}));
}

TEST(SafetensorsWriter, FileEqualsSerializedBytesAlsoWhenLarge) {
  const std::vector<float> large(3 << 20, 1.5f);
  const std::vector<TensorToWrite> tensors = {{"large", DType::kF32, {3 << 20}, AsBytes(large)},
                                              {"a", DType::kF32, {4}, AsBytes(kF32)},
                                              {"b", DType::kU8, {3}, kU8}};
  TempDir dir;
  ASSERT_TRUE(WriteSafetensors(RealFileSystem(), dir / "a", tensors).ok());
  EXPECT_TRUE(ReadWhole(dir / "a") == *SerializeSafetensors(tensors));
}

TEST(SafetensorsWriter, RefusesWrongSizesAndRepeatedNames) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      SerializeSafetensors({{"a", DType::kF32, {5}, AsBytes(kF32)}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      SerializeSafetensors({{"a", DType::kF32, {-4}, AsBytes(kF32)}}).status()));
  const TensorToWrite a{"a", DType::kF32, {4}, AsBytes(kF32)};
  EXPECT_TRUE(absl::IsInvalidArgument(SerializeSafetensors({a, a}).status()));
  TensorToWrite reserved = a;
  reserved.name = "__metadata__";
  EXPECT_TRUE(absl::IsInvalidArgument(SerializeSafetensors({reserved}).status()));
}

TEST(SafetensorsWriter, FailureLeavesTheOldFileAndNoTemporary) {
  TempDir dir;
  WriteWhole(dir / "a", "old");
  std::filesystem::create_directory(dir / "folder");
  const std::vector<TensorToWrite> bad = {{"a", DType::kF32, {5}, AsBytes(kF32)}};
  EXPECT_FALSE(WriteSafetensors(RealFileSystem(), dir / "a", bad).ok());
  EXPECT_EQ(ReadWhole(dir / "a"), "old");
  // A folder in the way: the rename fails.
  const std::vector<TensorToWrite> good = {{"a", DType::kF32, {4}, AsBytes(kF32)}};
  EXPECT_FALSE(WriteSafetensors(RealFileSystem(), dir / "folder", good).ok());
  EXPECT_EQ(RealFileSystem().ListDirectory(dir.path())->size(), 2u);
}

}  // namespace
}  // namespace soup::engine
