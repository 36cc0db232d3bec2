#include "engine/io/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/gguf_tokenizer.h"
#include "engine/io/safetensors_reader.h"

namespace soup::engine {
namespace {

using ::testing::HasSubstr;

constexpr char kGguf[] = SOUP_TEST_DATA_DIR "/golden/gguf/llama.gguf";
constexpr char kFolder[] = SOUP_TEST_DATA_DIR "/golden/llama";

// The golden llama's own weights, through GGUF's names and its order of q's and k's rows.
TEST(GgufModelTest, WeightsAreTheHuggingFaceFolders) {
  const auto model = GgufModel::Open(kGguf);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto folder = SafetensorsCheckpoint::Open(kFolder);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_EQ((*model)->weights().size(), (*folder)->Names().size());
  for (const std::string& name : (*folder)->Names()) {
    const GgufModel::Weight* weight = (*model)->Find(name);
    ASSERT_NE(weight, nullptr) << name;
    const SafetensorsCheckpoint::Located at = (*folder)->Find(name);
    ASSERT_EQ(weight->shape, at.tensor->shape) << name;
    const auto expected = at.file->ReadF32(name);
    ASSERT_TRUE(expected.ok());
    std::vector<float> values(expected->size());
    const auto n = static_cast<int64_t>(values.size());
    ASSERT_TRUE((*model)->Read(*weight, 0, n, values.data()).ok());
    EXPECT_EQ(values, *expected) << name;
    // In two parts that meet within a row.
    const int64_t cut = n / 3 + 1;
    ASSERT_TRUE((*model)->Read(*weight, 0, cut, values.data()).ok());
    ASSERT_TRUE((*model)->Read(*weight, cut, n - cut, values.data() + cut).ok());
    EXPECT_EQ(values, *expected) << name;
  }
}

TEST(GgufModelTest, TheConfigSaysWhatTheFoldersSays) {
  const auto model = GgufModel::Open(kGguf);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto config = nlohmann::json::parse((*model)->config_json());
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(config["num_hidden_layers"], 3);
  EXPECT_EQ(config["vocab_size"], 320);
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["rope_scaling"], nullptr);
}

TEST(GgufModelTest, WhatIsNoModelIsRefused) {
  const auto model = GgufModel::Open(SOUP_TEST_DATA_DIR "/golden/gguf/quants.gguf");
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("lacks llama.block_count"));
}

TEST(GgufTokenizerTest, ByteLevelByItsName) {
  const auto file = GgufFile::Open(kGguf);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto files = ReadGgufTokenizer(**file);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto tokenizer = nlohmann::json::parse(files->tokenizer_json);
  EXPECT_EQ(tokenizer["pre_tokenizer"]["pretokenizers"][0]["type"], "Digits");
  EXPECT_EQ(tokenizer["model"]["vocab"]["the"], 259);
  EXPECT_EQ(tokenizer["model"]["merges"][1], "th e");
  EXPECT_EQ(tokenizer["added_tokens"].size(), 2u);
  EXPECT_EQ(tokenizer["added_tokens"][0]["content"], "<s>");
  const auto config = nlohmann::json::parse(files->tokenizer_config_json);
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(config["add_bos_token"], false);
  EXPECT_THAT(config["chat_template"].get<std::string>(), HasSubstr("m.content"));
}

}  // namespace
}  // namespace soup::engine
