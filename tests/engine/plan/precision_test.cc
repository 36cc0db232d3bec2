#include "engine/plan/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace soup::engine {
namespace {

using ::testing::HasSubstr;

ModelSpec Dense(int64_t hidden) {
  ModelSpec model;
  model.hidden = hidden;
  model.layers = 2;
  return model;
}

ModelSpec Sparse(int64_t hidden) {
  ModelSpec model = Dense(hidden);
  model.experts = {.count = 8, .per_token = 2, .intermediate = 64};
  model.kinds = {LayerKind(), LayerKind{.sparse = true}};
  return model;
}

TEST(Precision, NamesRoundTripAndOthersAreRefused) {
  for (const Precision p : {Precision::kAuto, Precision::kBf16, Precision::kFp32}) {
    const auto back = ParsePrecision(PrecisionName(p));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, p);
  }
  for (const char* wrong : {"", "fp16", "BF16", "f32", "float32"}) {
    const absl::Status status = ParsePrecision(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("use auto, bf16 or fp32"));
  }
}

TEST(Precision, AutoGoesByExpertsAndHiddenSize) {
  EXPECT_TRUE(AutoPrecisionIsFp32(Dense(64)));
  EXPECT_TRUE(AutoPrecisionIsFp32(Dense(kTinyHidden)));
  EXPECT_FALSE(AutoPrecisionIsFp32(Dense(kTinyHidden + 8)));
  EXPECT_FALSE(AutoPrecisionIsFp32(Dense(4096)));
  EXPECT_TRUE(AutoPrecisionIsFp32(Sparse(4096)));  // one sparse layer is enough
}

TEST(Precision, OnCudaAWordIsTakenAndAutoSaysWhy) {
  for (const ModelSpec& model : {Dense(64), Dense(4096), Sparse(4096)}) {
    for (const Precision asked : {Precision::kBf16, Precision::kFp32}) {
      const auto choice = ChoosePrecision(asked, model, "cuda");
      ASSERT_TRUE(choice.ok()) << choice.status();
      EXPECT_EQ(choice->precision, asked);
      EXPECT_EQ(choice->why, "the job asks for it");
    }
  }
  const auto choose = [](const ModelSpec& model) {
    return *ChoosePrecision(Precision::kAuto, model, "cuda");
  };
  EXPECT_EQ(choose(Dense(64)).precision, Precision::kFp32);
  EXPECT_EQ(choose(Dense(64)).why, "auto: hidden size 64 is at most 256");
  EXPECT_EQ(choose(Dense(4096)).precision, Precision::kBf16);
  EXPECT_EQ(choose(Dense(4096)).why, "auto: hidden size 4096 is above 256, no experts");
  EXPECT_EQ(choose(Sparse(4096)).precision, Precision::kFp32);
  EXPECT_EQ(choose(Sparse(4096)).why, "auto: the model has experts");
}

TEST(Precision, TheCpuHasFp32AloneAndRefusesBf16) {
  for (const Precision asked : {Precision::kAuto, Precision::kFp32}) {
    const auto choice = ChoosePrecision(asked, Dense(4096), "cpu");
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->precision, Precision::kFp32);
  }
  const absl::Status status = ChoosePrecision(Precision::kBf16, Dense(4096), "cpu").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("training.precision is bf16"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("use auto or fp32"));
}

}  // namespace
}  // namespace soup::engine
