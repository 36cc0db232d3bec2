// Adapter layout against the golden adapters, and LoRA's first weights.
#include "engine/train/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "engine/base/file_system.h"
#include "engine/io/safetensors_writer.h"
#include "engine/train/lora_init.h"
#include "tests/engine/train/state_fixture.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using ::soup::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

LoraShape AllLinear(int32_t r) {
  return {.r = r,
          .targets = {Module::kQ, Module::kK, Module::kV, Module::kO, Module::kGate, Module::kUp,
                      Module::kDown}};
}

TEST(AdapterLayoutTest, NamesAndShapesAreThoseOfTheGoldenAdapters) {
  for (const char* family : {"llama", "llama31", "smollm"}) {
    SCOPED_TRACE(family);
    const std::string folder = std::string(SOUP_TEST_DATA_DIR "/golden/") + family;
    const auto config = RealFileSystem().ReadFile(folder + "/config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    const auto model = ParseModelSpec(*config);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto layout = AdapterLayout::Create(*model, AllLinear(4));
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->elements(), AdapterElements(*model, AllLinear(4)));
    const auto file = SafetensorsFile::Open(folder + "/adapter_init.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    const auto weights = LoadAdapterWeights(*layout, **file);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const AdapterTensor& t = layout->tensor(2, Module::kUp, LoraPart::kB);
    EXPECT_EQ(t.name, "base_model.model.model.layers.2.mlp.up_proj.lora_B.weight");
    const auto values = (*file)->ReadF32(t.name);
    ASSERT_TRUE(values.ok());
    EXPECT_EQ(absl::MakeConstSpan(*values), layout->Slice(*weights, t));
  }
}

TEST(AdapterLayoutTest, TensorsLieOneAfterAnother) {
  const AdapterLayout layout = TinyLayout();
  int64_t at = 0;
  std::set<std::string> names;
  for (const AdapterTensor& t : layout.tensors()) {
    EXPECT_EQ(t.offset, at);
    at += t.elements();
    EXPECT_TRUE(names.insert(t.name).second);
    EXPECT_EQ(&layout.tensor(t.layer, t.module, t.part), &t);
    EXPECT_EQ(t.part == LoraPart::kA ? t.rows : t.cols, 2);
  }
  EXPECT_EQ(at, layout.elements());
  EXPECT_EQ(names.size(), 12u);
  EXPECT_TRUE(layout.adapts(Module::kV));
  EXPECT_FALSE(layout.adapts(Module::kK));
  const AdapterTensor& down = layout.tensor(1, Module::kDown, LoraPart::kA);
  EXPECT_EQ(down.cols, 12);
  EXPECT_EQ(layout.tensor(1, Module::kV, LoraPart::kB).rows, 4) << "kv width";
}

TEST(AdapterLayoutTest, ImpossibleShapesAreRefused) {
  const auto message = [](LoraShape lora) {
    const auto layout = AdapterLayout::Create(TinyModel(), lora);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(layout.status().message());
  };
  EXPECT_THAT(message({.r = 0, .targets = {Module::kQ}}), HasSubstr("lora.r is 0"));
  EXPECT_THAT(message({.r = 4, .targets = {}}), HasSubstr("lora.targets"));
  EXPECT_THAT(message({.r = 4, .targets = {Module::kQ, Module::kQ}}), HasSubstr("q_proj twice"));
}

class LoadAdapterTest : public ::testing::Test {
 protected:
  // Writes the tiny adapter after `edit` and loads it.
  template <typename Edit>
  absl::StatusOr<std::vector<float>> LoadAfter(const Edit& edit) {
    std::vector<float> weights = StateOfStep(1, layout_.elements()).weights;
    std::vector<TensorToWrite> tensors;
    for (const AdapterTensor& t : layout_.tensors()) {
      tensors.push_back(
          {t.name, DType::kF32, {t.rows, t.cols}, AsBytes(layout_.Slice(weights, t))});
    }
    edit(tensors, weights);
    const std::string path = dir_ / "adapter_model.safetensors";
    EXPECT_TRUE(WriteSafetensors(RealFileSystem(), path, tensors).ok());
    const auto file = SafetensorsFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    auto loaded = LoadAdapterWeights(layout_, **file);
    EXPECT_EQ(CheckAdapterWeights(layout_, **file), loaded.status());
    return loaded;
  }
  using Tensors = std::vector<TensorToWrite>;
  AdapterLayout layout_ = TinyLayout();
  TempDir dir_;
};

TEST_F(LoadAdapterTest, RoundTrip) {
  const auto loaded = LoadAfter([](Tensors&, std::vector<float>&) {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, StateOfStep(1, layout_.elements()).weights);
}

TEST_F(LoadAdapterTest, WhatDoesNotFitIsNamed) {
  const auto message = [](const absl::StatusOr<std::vector<float>>& loaded) {
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(loaded.status().message());
  };
  EXPECT_THAT(message(LoadAfter([](Tensors& t, std::vector<float>&) { t.erase(t.begin() + 3); })),
              AllOf(HasSubstr("layers.0.self_attn.v_proj.lora_B.weight is missing"),
                    HasSubstr("rank 2"), HasSubstr("q_proj, v_proj, down_proj")));
  EXPECT_THAT(message(LoadAfter([](Tensors& t, std::vector<float>&) {
                std::swap(t[0].shape[0], t[0].shape[1]);
              })),
              AllOf(HasSubstr("[8, 2]"), HasSubstr("not [2, 8]")));
  EXPECT_THAT(message(LoadAfter([](Tensors& t, std::vector<float>&) {
                t.push_back(t[0]);
                t.back().name = PeftTensorName(7, Module::kQ, LoraPart::kA);
              })),
              HasSubstr("layers.7.self_attn.q_proj.lora_A.weight has no place"));
  EXPECT_THAT(message(LoadAfter([this](Tensors&, std::vector<float>& w) {
                const AdapterTensor& t = layout_.tensor(1, Module::kV, LoraPart::kA);
                w[static_cast<size_t>(t.offset + 1)] = std::numeric_limits<float>::infinity();
              })),
              HasSubstr("layers.1.self_attn.v_proj.lora_A.weight holds a NaN or an infinity"));
}

TEST(LoraInitTest, AIsUniformAndBIsZero) {
  ModelSpec model = TinyModel();
  model.hidden = 400;
  const auto layout = AdapterLayout::Create(model, {.r = 64, .targets = {Module::kQ, Module::kO}});
  ASSERT_TRUE(layout.ok());
  const std::vector<float> weights = InitLoraWeights(*layout, 42);
  for (const AdapterTensor& t : layout->tensors()) {
    const auto values = layout->Slice(weights, t);
    const double bound = 1 / std::sqrt(static_cast<double>(t.cols));
    double sum = 0, squares = 0, most = 0;
    for (float x : values) {
      sum += x;
      squares += static_cast<double>(x) * x;
      most = std::max(most, static_cast<double>(std::fabs(x)));
    }
    if (t.part == LoraPart::kB) {
      EXPECT_EQ(squares, 0) << t.name;
      continue;
    }
    const auto n = static_cast<double>(values.size());
    EXPECT_LE(most, bound);
    EXPECT_GT(most, 0.95 * bound);
    // Five standard errors of mean and mean square of a uniform distribution.
    EXPECT_LT(std::fabs(sum / n), 5 * bound / std::sqrt(3 * n)) << t.name;
    EXPECT_LT(std::fabs(squares / n / (bound * bound) - 1.0 / 3), 5 * std::sqrt(4.0 / 45 / n));
  }
}

TEST(LoraInitTest, AFunctionOfSeedLayerAndModuleAlone) {
  const auto few = AdapterLayout::Create(TinyModel(), {.r = 3, .targets = {Module::kV}});
  const auto many = AdapterLayout::Create(TinyModel(), AllLinear(3));
  ASSERT_TRUE(few.ok() && many.ok());
  const auto a = InitLoraWeights(*few, 7), b = InitLoraWeights(*many, 7);
  const auto other = InitLoraWeights(*few, 8);
  const AdapterTensor& t0 = few->tensor(0, Module::kV, LoraPart::kA);
  const AdapterTensor& t1 = few->tensor(1, Module::kV, LoraPart::kA);
  EXPECT_EQ(few->Slice(a, t1), many->Slice(b, many->tensor(1, Module::kV, LoraPart::kA)));
  EXPECT_NE(few->Slice(a, t0), few->Slice(a, t1));
  EXPECT_NE(few->Slice(a, t0), few->Slice(other, t0));
  EXPECT_NE(many->Slice(b, many->tensor(0, Module::kQ, LoraPart::kA)),
            many->Slice(b, many->tensor(0, Module::kK, LoraPart::kA)));
}

}  // namespace
}  // namespace soup::engine
