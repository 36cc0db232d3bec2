#include "engine/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/data/data_test_util.h"

namespace soup::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TokenRecord Record(std::vector<int32_t> ids, std::vector<uint8_t> supervised) {
  return {std::move(ids), std::move(supervised), 1};
}

std::string WriteSmall(const TempDir& dir) {
  const std::string path = dir.path() + "/dataset.sds";
  auto writer = DatasetWriter::Create(path);
  EXPECT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE((*writer)->AddTrain(Record({1, 2, 3}, {0, 1, 1})).ok());
  EXPECT_TRUE((*writer)->AddValidation(Record({7, 8}, {0, 1})).ok());
  EXPECT_TRUE((*writer)->AddTrain(Record({4}, {1})).ok());
  const absl::Status finished = (*writer)->Finish("{\"records\":2}");
  EXPECT_TRUE(finished.ok()) << finished;
  return path;
}

TEST(DatasetTest, WhatIsWrittenIsReadBack) {
  const TempDir dir;
  const auto data = PreparedDataset::Open(WriteSmall(dir));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->train_records(), 2);
  EXPECT_EQ((*data)->validation_records(), 1);
  EXPECT_THAT((*data)->TrainLengths(), ElementsAre(3, 1));
  EXPECT_THAT((*data)->ValidationLengths(), ElementsAre(2));
  EXPECT_THAT((*data)->train(0).ids, ElementsAre(1, 2, 3));
  EXPECT_THAT((*data)->train(0).supervised, ElementsAre(0, 1, 1));
  EXPECT_THAT((*data)->train(1).ids, ElementsAre(4));
  EXPECT_THAT((*data)->validation(0).ids, ElementsAre(7, 8));
  EXPECT_THAT((*data)->validation(0).supervised, ElementsAre(0, 1));
  // Nothing but the dataset stays in the folder.
  EXPECT_THAT(*RealFileSystem().ListDirectory(dir.path()), ElementsAre("dataset.sds"));
}

TEST(DatasetTest, FromRecordsEqualsTheFile) {
  const auto data = PreparedDataset::FromRecords({Record({1, 2}, {0, 1})}, {Record({3}, {0})});
  EXPECT_THAT(data->TrainLengths(), ElementsAre(2));
  EXPECT_THAT(data->validation(0).ids, ElementsAre(3));
}

TEST(DatasetTest, ManyRecordsPassTheBuffer) {
  const TempDir dir;
  const std::string path = dir.path() + "/dataset.sds";
  auto writer = DatasetWriter::Create(path);
  ASSERT_TRUE(writer.ok());
  for (int32_t i = 0; i < 2000; ++i) {
    const std::vector<int32_t> ids(static_cast<size_t>(1 + i % 500), i);
    ASSERT_TRUE((*writer)->AddTrain(Record(ids, std::vector<uint8_t>(ids.size(), i % 2))).ok());
  }
  ASSERT_TRUE((*writer)->Finish("{}").ok());
  const auto data = PreparedDataset::Open(path);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->train_records(), 2000);
  for (int32_t i = 0; i < 2000; ++i) {
    const RecordView view = (*data)->train(i);
    ASSERT_EQ(view.ids.size(), static_cast<size_t>(1 + i % 500));
    ASSERT_EQ(view.ids.back(), i);
    ASSERT_EQ(view.supervised.back(), i % 2);
  }
}

TEST(DatasetTest, AnUnfinishedFileLeavesNothing) {
  const TempDir dir;
  const std::string path = dir.path() + "/dataset.sds";
  {
    auto writer = DatasetWriter::Create(path);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->AddTrain(Record({1}, {1})).ok());
  }
  EXPECT_TRUE(RealFileSystem().ListDirectory(dir.path())->empty());
}

TEST(DatasetTest, AFaultyRecordIsRefused) {
  const TempDir dir;
  auto writer = DatasetWriter::Create(dir.path() + "/dataset.sds");
  ASSERT_TRUE(writer.ok());
  EXPECT_FALSE((*writer)->AddTrain(Record({1, 2}, {1})).ok());
  EXPECT_FALSE((*writer)->AddTrain(Record({}, {})).ok());
}

TEST(DatasetTest, AMissingFileIsNotFound) {
  const TempDir dir;
  const auto data = PreparedDataset::Open(dir.path() + "/none.sds");
  EXPECT_EQ(data.status().code(), absl::StatusCode::kNotFound);
}

// Every truncation and every changed byte is noticed.
TEST(DatasetTest, DamageIsNoticed) {
  const TempDir dir;
  const std::string good = *RealFileSystem().ReadFile(WriteSmall(dir));
  for (size_t i = 0; i < good.size(); ++i) {
    for (std::string bad : {good.substr(0, i), good}) {
      if (bad.size() == good.size()) bad[i] = static_cast<char>(bad[i] ^ 0x40);
      const auto data = PreparedDataset::Open(dir.Write("bad.sds", bad));
      ASSERT_FALSE(data.ok()) << "byte " << i << " of " << bad.size();
      EXPECT_EQ(data.status().code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(data.status().message()), HasSubstr("bad.sds"));
    }
  }
}

}  // namespace
}  // namespace soup::engine
