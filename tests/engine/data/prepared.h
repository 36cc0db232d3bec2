// Data prepared in a folder of its own with the byte tokenizer of tests/cases, for the tests of
// formats and of preparation.
#ifndef SOUP_TESTS_ENGINE_DATA_PREPARED_H_
#define SOUP_TESTS_ENGINE_DATA_PREPARED_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/prepare.h"
#include "tests/engine/data/data_test_util.h"

namespace soup::engine {

// A base folder (the byte tokenizer: id = byte, BOS 256, <|end|> 258) and what is prepared with it.
class Prepared {
 public:
  explicit Prepared(absl::string_view case_name = "") {
    base_.MakeBase(case_name);
    options.tokenizer_dir = base_.path();
    options.max_length = 512;
    options.vocab_size = 264;
    options.output_path = out_.path() + "/dataset.sds";
  }

  absl::Status RunFile(absl::string_view train) {
    options.train = {
        {TestFile(absl::StrCat("cases/", train)), std::string(train.substr(train.rfind('/') + 1))}};
    return Run();
  }
  absl::Status RunText(absl::string_view train, const std::string& name = "train.jsonl") {
    options.train = {{base_.Write(name, train), name}};
    return Run();
  }
  // options.train as it is.
  absl::Status RunSources() { return Run(); }
  std::string Refusal(absl::string_view train, const std::string& name = "train.jsonl") {
    data.reset();
    EXPECT_TRUE(RealFileSystem().Remove(out_.path() + "/dataset.sds").ok());
    const absl::Status status = RunText(train, name);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(*RealFileSystem().ListDirectory(out_.path()), ::testing::IsEmpty());
    return std::string(status.message());
  }

  const DatasetReport& dataset() const { return report.dataset; }
  std::vector<int32_t> Ids(int64_t record) const {
    const auto ids = data->train(record).ids;
    return {ids.begin(), ids.end()};
  }
  const TempDir& base() const { return base_; }

  PrepareOptions options;
  PrepareReport report;
  std::unique_ptr<PreparedDataset> data;

 private:
  absl::Status Run() {
    auto made = PrepareDataset(options);
    if (!made.ok()) return made.status();
    report = *std::move(made);
    auto opened = PreparedDataset::Open(options.output_path);
    if (!opened.ok()) return opened.status();
    data = *std::move(opened);
    EXPECT_EQ(data->TrainLengths(), report.lengths);
    EXPECT_EQ(data->ValidationLengths(), report.validation_lengths);
    return absl::OkStatus();
  }

  TempDir base_, out_;
};

inline nlohmann::json Expected(absl::string_view case_name) {
  return nlohmann::json::parse(ReadTestFile(absl::StrCat("cases/", case_name, "/expected.json")));
}

#define ASSERT_PREPARED(expression)          \
  do {                                       \
    const absl::Status status_ = expression; \
    ASSERT_TRUE(status_.ok()) << status_;    \
  } while (0)

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_DATA_PREPARED_H_
