// The adapter's files as PEFT reads them.
#include "engine/train/peft_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/fault_file_system.h"
#include "nlohmann/json.hpp"
#include "tests/engine/train/state_fixture.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using nlohmann::json;
using ::soup::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PeftExportTest : public ::testing::Test {
 protected:
  absl::Status Export(FileSystem& fs, const std::vector<float>& weights) {
    return ExportPeftAdapter(fs, at_, layout_, weights, {}, config_);
  }
  absl::StatusOr<std::vector<float>> Read() {
    const auto file = SafetensorsFile::Open(at_ + "/adapter_model.safetensors");
    if (!file.ok()) return file.status();
    EXPECT_THAT((*file)->metadata(),
                ElementsAre(std::pair<const std::string, std::string>("format", "pt")));
    return LoadAdapterWeights(layout_, **file);
  }

  TempDir dir_{TempDir::kInMemory};
  const std::string at_ = dir_ / "artifacts/job-1";
  const AdapterLayout layout_ = TinyLayout();
  const std::vector<float> weights_ = StateOfStep(3, layout_.elements()).weights;
  PeftConfig config_{.base_model_name = "models/tiny", .alpha = 16, .dropout = 0, .rslora = true};
};

TEST_F(PeftExportTest, FilesAreInPeftsForm) {
  ASSERT_TRUE(Export(RealFileSystem(), weights_).ok());
  const auto names = RealFileSystem().ListDirectory(at_);
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(*names, ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  const auto read = Read();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, weights_);

  const auto text = RealFileSystem().ReadFile(at_ + "/adapter_config.json");
  ASSERT_TRUE(text.ok());
  const json j = json::parse(*text);
  EXPECT_EQ(j["peft_type"], "LORA");
  EXPECT_EQ(j["task_type"], "CAUSAL_LM");
  EXPECT_EQ(j["r"], 2);
  EXPECT_TRUE(j["lora_alpha"].is_number_integer());
  EXPECT_EQ(j["lora_alpha"], 16);
  EXPECT_EQ(j["use_rslora"], true);
  EXPECT_EQ(j["target_modules"], json({"q_proj", "v_proj", "down_proj"}));
  EXPECT_EQ(j["bias"], "none");
  EXPECT_TRUE(j["lora_dropout"].is_number_float());
  EXPECT_EQ(j["lora_dropout"], 0.0);
  EXPECT_EQ(j["fan_in_fan_out"], false);
  EXPECT_EQ(j["inference_mode"], true);
  EXPECT_EQ(j["base_model_name_or_path"], "models/tiny");
}

TEST_F(PeftExportTest, AFractionalAlphaStaysOne) {
  config_.alpha = 5.5;
  config_.rslora = false;
  const json j = json::parse(PeftConfigJson(layout_, config_));
  EXPECT_EQ(j["lora_alpha"], 5.5);
  EXPECT_EQ(j["use_rslora"], false);
}

TEST_F(PeftExportTest, ANonFiniteAdapterIsRefusedByName) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> weights = weights_;
    const AdapterTensor& t = layout_.tensor(1, Module::kDown, LoraPart::kB);
    weights[static_cast<size_t>(t.offset)] = bad;
    const absl::Status status = Export(RealFileSystem(), weights);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("layers.1.mlp.down_proj.lora_B"));
    EXPECT_FALSE(RealFileSystem().Exists(at_));
  }
}

TEST_F(PeftExportTest, AnInertAdapterIsRefused) {
  std::vector<float> weights = weights_;
  for (const AdapterTensor& t : layout_.tensors()) {
    if (t.part != LoraPart::kB) continue;
    std::fill_n(weights.begin() + t.offset, t.elements(), 0.0f);
  }
  const absl::Status status = Export(RealFileSystem(), weights);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("inert"));
  EXPECT_FALSE(RealFileSystem().Exists(at_));
  // One number of one B is enough.
  weights[static_cast<size_t>(layout_.tensor(0, Module::kV, LoraPart::kB).offset)] = 1e-30f;
  EXPECT_TRUE(Export(RealFileSystem(), weights).ok());
  // Training that went on from an earlier adapter and moved nothing.
  EXPECT_EQ(
      ExportPeftAdapter(RealFileSystem(), dir_ / "b", layout_, weights_, weights_, config_).code(),
      absl::StatusCode::kFailedPrecondition);
}

TEST_F(PeftExportTest, ItAppearsWholeOrNotAtAll) {
  FaultyFileSystem count(RealFileSystem());
  ASSERT_TRUE(Export(count, weights_).ok());
  for (int64_t times : {1, -1}) {
    for (int64_t after = 0; after < count.operations(); ++after) {
      ASSERT_TRUE(RealFileSystem().RemoveTree(at_).ok());
      FaultyFileSystem fs(RealFileSystem());
      fs.Fail(FileOperation::kAny, "", ENOSPC, {.after = after, .times = times});
      const absl::Status status = Export(fs, weights_);
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      if (RealFileSystem().Exists(at_)) {
        const auto read = Read();
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_TRUE(RealFileSystem().Exists(at_ + "/adapter_config.json"));
      }
      fs.Heal();
      ASSERT_TRUE(Export(fs, weights_).ok());
      const auto names = RealFileSystem().ListDirectory(dir_ / "artifacts");
      ASSERT_TRUE(names.ok());
      EXPECT_THAT(*names, ElementsAre("job-1"));
    }
  }
}

TEST_F(PeftExportTest, SizesAreChecked) {
  std::vector<float> weights = weights_;
  weights.pop_back();
  EXPECT_EQ(Export(RealFileSystem(), weights).code(), absl::StatusCode::kInvalidArgument);
  config_.base_model_name.clear();
  EXPECT_EQ(Export(RealFileSystem(), weights_).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace soup::engine
