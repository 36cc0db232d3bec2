#include "engine/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/seeded_rng.h"
#include "tests/support/whole_file.h"

namespace soup::engine {
namespace {

using ::soup::testing::ReadWhole;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Llama() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": false, "mlp_bias": false,
    "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": [2, 3]})");
}

void ExpectRefused(const Json& config, std::vector<std::string> named) {
  const auto spec = ParseModelSpec(config.dump());
  EXPECT_TRUE(absl::IsInvalidArgument(spec.status())) << config.dump() << spec.status();
  for (const std::string& name : named) {
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(name));
  }
}

ModelSpec Parsed(const Json& config) {
  const auto spec = ParseModelSpec(config.dump());
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec();
}

std::string CaseConfig(const std::string& variant) {
  return ReadWhole(std::string(SOUP_TEST_DATA_DIR) + "/cases/21-llama3-rope/over-" + variant +
                   "/config.json");
}

TEST(ModelSpec, ReadsALlamaConfig) {
  const ModelSpec spec = Parsed(Llama());
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.hidden, 64);
  EXPECT_EQ(spec.intermediate, 160);
  EXPECT_EQ(spec.layers, 3);
  EXPECT_EQ(spec.heads, 4);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.vocab, 320);
  EXPECT_EQ(spec.max_position, 512);
  EXPECT_EQ(spec.rms_eps, 1e-5);
  EXPECT_FALSE(spec.tied_head);
  EXPECT_EQ(spec.bos_token_id, 1);
  EXPECT_EQ(spec.eos_token_id, 2);
  EXPECT_EQ(spec.rope.type, RopeType::kDefault);
  EXPECT_EQ(spec.qkv_width(), 128);
}

TEST(ModelSpec, ReadsTheGoldenConfigs) {
  for (const char* name : {"llama", "llama31", "smollm"}) {
    const auto spec = ParseModelSpec(
        ReadWhole(std::string(SOUP_TEST_DATA_DIR) + "/golden/" + name + "/config.json"));
    ASSERT_TRUE(spec.ok()) << name << spec.status();
    EXPECT_EQ(spec->tied_head, std::string(name) == "smollm");
  }
}

TEST(ModelSpec, AbsentAndNullKeysTakeTheLibrarysDefaults) {
  Json config = Llama();
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "bos_token_id",
                          "max_position_embeddings", "attention_bias", "tie_word_embeddings"}) {
    config[key] = nullptr;
  }
  config.erase("eos_token_id");
  config["head_dim"] = nullptr;
  config["rope_scaling"] = nullptr;
  const ModelSpec spec = Parsed(config);
  EXPECT_EQ(spec.kv_heads, 4);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.rms_eps, 1e-6);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_EQ(spec.bos_token_id, -1);
  EXPECT_EQ(spec.eos_token_id, -1);
  EXPECT_EQ(spec.max_position, 2048);
}

TEST(ModelSpec, WhatIsNotSupportedIsRefusedByName) {
  const auto with = [](const char* key, Json value) {
    Json config = Llama();
    config[key] = std::move(value);
    return config;
  };
  ExpectRefused(with("model_type", "qwen3_next"), {"qwen3_next", "supported families: llama"});
  ExpectRefused(with("architectures", {"LlamaForSequenceClassification"}),
                {"LlamaForSequenceClassification", "LlamaForCausalLM"});
  ExpectRefused(with("hidden_act", "gelu"), {"hidden_act", "gelu", "silu"});
  ExpectRefused(with("attention_bias", true), {"attention_bias"});
  ExpectRefused(with("mlp_bias", true), {"mlp_bias"});
  ExpectRefused(with("mlp_bias", "no"), {"mlp_bias"});
  ExpectRefused(with("attention_dropout", 0.1), {"attention_dropout", "0.1"});
  EXPECT_TRUE(ParseModelSpec(with("attention_dropout", 0).dump()).ok());
  ExpectRefused(with("rope_interleaved", true), {"rope_interleaved"});
  ExpectRefused(with("quantization_config", {{"quant_method", "gptq"}}), {"quantization_config"});
  ExpectRefused(with("partial_rotary_factor", 0.5), {"partial_rotary_factor", "0.5"});
  ExpectRefused(with("num_key_value_heads", 3), {"num_key_value_heads 3"});
  ExpectRefused(with("num_attention_heads", 5), {"num_attention_heads 5"});
  ExpectRefused(with("head_dim", 15), {"head_dim 15"});
  ExpectRefused(with("eos_token_id", 320), {"eos_token_id", "320"});
  ExpectRefused(with("eos_token_id", "</s>"), {"eos_token_id"});
  ExpectRefused(with("tie_word_embeddings", "yes"), {"tie_word_embeddings"});
}

TEST(ModelSpec, HostileNumbersAreRefused) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
                          "num_attention_heads", "num_key_value_heads", "head_dim"}) {
    for (const Json& value :
         {Json(0), Json(-1), Json(1.5), Json("64"), Json(INT64_MAX), Json(UINT64_MAX),
          Json(int64_t{1} << 40), Json(true), Json::array({1})}) {
      Json config = Llama();
      config[key] = value;
      ExpectRefused(config, {key});
    }
    Json config = Llama();
    config.erase(key);
    if (std::string(key) != "num_key_value_heads" && std::string(key) != "head_dim") {
      ExpectRefused(config, {key, "absent"});
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    for (const Json& value : {Json(0), Json(-1e-5), Json("1"), Json(1e300)}) {
      Json config = Llama();
      config[key] = value;
      ExpectRefused(config, {key});
    }
  }
}

TEST(ModelSpec, TextThatIsNoConfigIsRefused) {
  for (const std::string text : {"", "[]", "{", "null", "{\"model_type\":1}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseModelSpec(text).status())) << text;
  }
  const std::string deep(3'000'000, '[');
  EXPECT_TRUE(absl::IsInvalidArgument(ParseModelSpec("{\"a\":" + deep).status()));
}

TEST(ModelSpec, DamagedConfigNeverCrashes) {
  soup::testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  const std::string whole = CaseConfig("new");
  for (int round = 0; round < 3000; ++round) {
    std::string text = whole;
    for (int64_t i = rng.Int(1, 4); i > 0; --i) {
      text[static_cast<size_t>(rng.Int(0, static_cast<int64_t>(text.size()) - 1))] =
          static_cast<char>(rng.Chance(0.5) ? rng.Int(48, 57) : rng.Int(0, 255));
    }
    const auto spec = ParseModelSpec(text);
    EXPECT_TRUE(spec.ok() || absl::IsInvalidArgument(spec.status()));
    if (!spec.ok()) continue;
    EXPECT_EQ(RopeInverseFrequencies(*spec).size(), static_cast<size_t>(spec->head_dim / 2));
  }
}

// Case 21: the same block in four spellings.
TEST(Rope, EverySpellingOfLlama3GivesTheFrequenciesOfCase21) {
  const Json expected = Json::parse(
      ReadWhole(std::string(SOUP_TEST_DATA_DIR) + "/cases/21-llama3-rope/expected.json"));
  for (const char* variant : {"new", "old", "oldest", "int"}) {
    const auto spec = ParseModelSpec(CaseConfig(variant));
    ASSERT_TRUE(spec.ok()) << variant << spec.status();
    EXPECT_EQ(spec->rope.type, RopeType::kLlama3) << variant;
    const std::vector<float> got = RopeInverseFrequencies(*spec);
    const std::vector<double> want = expected["inv_freq"];
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_FLOAT_EQ(got[i], static_cast<float>(want[i])) << variant << " " << i;
    }
  }
}

TEST(Rope, OtherTypesOfCase21AreRefusedByName) {
  for (const auto& [variant, name] : {std::pair("yarn", "yarn"), std::pair("unknown", "spiral")}) {
    const auto spec = ParseModelSpec(CaseConfig(variant));
    EXPECT_TRUE(absl::IsInvalidArgument(spec.status())) << spec.status();
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr("rope_type"));
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(name));
  }
}

TEST(Rope, DefaultAndLinear) {
  ModelSpec spec = Parsed(Llama());
  const std::vector<float> plain = RopeInverseFrequencies(spec);
  ASSERT_EQ(plain.size(), 8u);
  EXPECT_FLOAT_EQ(plain[0], 1.0f);
  EXPECT_FLOAT_EQ(plain[4], 0.01f);
  Json config = Llama();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  spec = Parsed(config);
  const std::vector<float> scaled = RopeInverseFrequencies(spec);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 4);
}

TEST(Rope, TwoSpellingsInOneFileMustAgree) {
  const Json block = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  Json config = Llama();
  config.erase("rope_theta");
  config["rope_parameters"] = block;
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2}, {"rope_theta", 5e5}};
  EXPECT_EQ(Parsed(config).rope.theta, 5e5);
  config["rope_scaling"]["factor"] = 3;
  ExpectRefused(config, {"rope_parameters", "rope_scaling", "differ"});
  config.erase("rope_scaling");
  config["rope_theta"] = 1e4;
  ExpectRefused(config, {"rope_theta"});
  config["rope_theta"] = 5e5;
  EXPECT_EQ(Parsed(config).rope.type, RopeType::kLinear);
  config["rope_parameters"]["type"] = "llama3";
  ExpectRefused(config, {"linear", "llama3", "agree"});
}

TEST(Rope, IncompleteOrImpossibleBlocksAreRefused) {
  const Json whole = {{"rope_type", "llama3"},
                      {"factor", 8},
                      {"low_freq_factor", 1},
                      {"high_freq_factor", 4},
                      {"original_max_position_embeddings", 8192}};
  Json config = Llama();
  config["rope_scaling"] = whole;
  EXPECT_EQ(Parsed(config).rope.original_max_position, 8192);
  for (const auto& [key, value] : whole.items()) {
    config["rope_scaling"] = whole;
    config["rope_scaling"].erase(key);
    ExpectRefused(config, {key == "rope_type" ? "no rope_type" : key});
    if (key == "rope_type") continue;
    config["rope_scaling"][key] = 0;
    ExpectRefused(config, {key});
  }
  config["rope_scaling"] = whole;
  config["rope_scaling"]["high_freq_factor"] = 1;
  ExpectRefused(config, {"high_freq_factor"});
  config["rope_scaling"] = "llama3";
  ExpectRefused(config, {"rope_scaling"});
}

}  // namespace
}  // namespace soup::engine
