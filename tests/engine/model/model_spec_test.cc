#include "engine/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/model/layer_layout.h"
#include "engine/model/rope_table.h"
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

Json GoldenConfig(const std::string& name) {
  return Json::parse(
      ReadWhole(std::string(SOUP_TEST_DATA_DIR) + "/golden/" + name + "/config.json"));
}
ModelSpec Golden(const std::string& name) { return Parsed(GoldenConfig(name)); }

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
    EXPECT_EQ(Golden(name).tied_head, std::string(name) == "smollm");
  }
}

TEST(Families, ReadTheGoldenConfigs) {
  const ModelSpec qwen2 = Golden("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && qwen2.tied_head);
  EXPECT_EQ(qwen2.kind(2).window, 0);
  const ModelSpec qwen3 = Golden("qwen3");
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 32);
  EXPECT_EQ(qwen3.qkv_row(), qwen3.qkv_width() + qwen3.q_width() + qwen3.kv_width());
  const ModelSpec mistral = Golden("mistral");
  for (int64_t l = 0; l < mistral.layers; ++l) EXPECT_EQ(mistral.kind(l).window, 8);
  const ModelSpec phi3 = Golden("phi3");
  EXPECT_TRUE(phi3.fused_projections);
  EXPECT_EQ(phi3.eos_token_id, -1) << "32000 is no token of this vocabulary";
  EXPECT_EQ(ModuleNames(AdaptableModules(phi3)), "o_proj, qkv_proj, down_proj, gate_up_proj");
  const ModelSpec gemma2 = Golden("gemma2");
  EXPECT_TRUE(gemma2.post_norms && gemma2.tied_head && !gemma2.qk_norm);
  EXPECT_EQ(gemma2.activation, Activation::kGeluTanh);
  EXPECT_EQ(gemma2.norm_offset, 1);
  EXPECT_EQ(gemma2.embedding_scale, 8);
  EXPECT_EQ(gemma2.attention_soft_cap, 50);
  EXPECT_EQ(gemma2.final_soft_cap, 30);
  EXPECT_DOUBLE_EQ(gemma2.attention_scale(), 1 / std::sqrt(24.0));
  EXPECT_EQ(gemma2.kind(0).window, 8);
  EXPECT_EQ(gemma2.kind(1).window, 0);
  const ModelSpec gemma3 = Golden("gemma3");
  EXPECT_TRUE(gemma3.post_norms && gemma3.qk_norm && gemma3.has_local_rope);
  EXPECT_EQ(gemma3.rope.theta, 1e6);
  EXPECT_EQ(gemma3.local_rope.theta, 1e4);
  EXPECT_TRUE(gemma3.kind(2).local_rope);
  EXPECT_EQ(gemma3.attention_soft_cap, 0) << "null: none";
  Json capped = GoldenConfig("gemma3");
  capped["attn_logit_softcapping"] = 50.0;
  capped["final_logit_softcapping"] = 30.0;
  EXPECT_EQ(Parsed(capped).attention_soft_cap, 0) << "transformers' Gemma 3 attention has none";
  EXPECT_EQ(Parsed(capped).final_soft_cap, 30);
  EXPECT_EQ(RopeTableFloats(gemma3), 2 * 16);
  EXPECT_EQ(RopeFor(gemma3, 0, 5).offset, 16);
}

TEST(Families, AnUnknownKeyThatSpeaksOfMathsIsRefused) {
  for (const char* name : {"llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3"}) {
    for (const char* key : {"residual_multiplier", "logit_scale", "qk_layernorm", "num_experts",
                            "attention_multiplier", "use_bidirectional_attention"}) {
      Json config = GoldenConfig(name);
      config[key] = 2.5;
      ExpectRefused(config, {key});
      config[key] = nullptr;
      EXPECT_TRUE(ParseModelSpec(config.dump()).ok()) << name << key;
    }
    Json config = GoldenConfig(name);
    config["transformers.js_config"] = {{"dtype", "q4"}};
    config["unsloth_fixed"] = true;
    EXPECT_TRUE(ParseModelSpec(config.dump()).ok()) << name;
  }
}

TEST(Families, WindowsByLayer) {
  const auto windows = [](const Json& config) {
    std::vector<int64_t> out;
    const ModelSpec spec = Parsed(config);
    for (int64_t l = 0; l < spec.layers; ++l) out.push_back(spec.kind(l).window);
    return out;
  };
  using Windows = std::vector<int64_t>;
  Json qwen = GoldenConfig("qwen2");
  qwen.erase("layer_types");
  qwen["sliding_window"] = 16;
  EXPECT_EQ(windows(qwen), Windows({0, 0, 0})) << "use_sliding_window is false";
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(windows(qwen), Windows({0, 0, 0})) << "max_window_layers is 28";
  qwen["max_window_layers"] = 1;
  EXPECT_EQ(windows(qwen), Windows({0, 16, 16}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(windows(qwen), Windows({16, 0, 0}));
  qwen["use_sliding_window"] = false;
  ExpectRefused(qwen, {"layer_types", "sliding_window"});
  qwen["layer_types"] = {"chunked_attention", "full_attention", "full_attention"};
  ExpectRefused(qwen, {"chunked_attention"});
  qwen["layer_types"] = {"full_attention"};
  ExpectRefused(qwen, {"layer_types has 1"});
  Json mistral = GoldenConfig("mistral");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows(mistral), Windows({0, 0, 0}));
  mistral.erase("sliding_window");
  EXPECT_EQ(windows(mistral), Windows({4096, 4096, 4096})) << "the class's default";
  Json gemma = GoldenConfig("gemma3");
  gemma.erase("layer_types");
  gemma.erase("_sliding_window_pattern");
  gemma["sliding_window_pattern"] = 2;
  EXPECT_EQ(windows(gemma), Windows({8, 0, 8}));
}

TEST(Families, Gemma3RopeInBothSpellings) {
  Json config = GoldenConfig("gemma3");
  config.erase("rope_parameters");
  config["rope_theta"] = 5e5;
  config["rope_local_base_freq"] = 2e4;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const ModelSpec spec = Parsed(config);
  EXPECT_EQ(spec.rope.theta, 5e5);
  EXPECT_EQ(spec.rope.type, RopeType::kLinear);
  EXPECT_EQ(spec.local_rope.theta, 2e4);
  EXPECT_EQ(spec.local_rope.type, RopeType::kDefault);
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  ExpectRefused(config, {"rope_parameters", "rope_scaling"});
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  ExpectRefused(config, {"rope_parameters", "full_attention"});
}

TEST(Families, BiasesByKey) {
  Json config = Llama();
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  const ModelSpec spec = Parsed(config);
  EXPECT_TRUE(spec.qkv_bias && spec.o_bias && spec.mlp_bias);
  Json phi = GoldenConfig("phi3");
  phi["attention_bias"] = true;
  ExpectRefused(phi, {"attention_bias"});
  phi["attention_bias"] = false;
  phi["resid_pdrop"] = 0.1;
  ExpectRefused(phi, {"resid_pdrop", "0.1"});
}

TEST(ModelSpec, AbsentAndNullKeysTakeTheLibrarysDefaults) {
  // phi3's attention factor under longrope comes from it.
  const std::pair<const char*, int64_t> positions[] = {
      {"llama", 2048},     {"qwen2", 32768},    {"qwen3", 32768},
      {"mistral", 131072}, {"phi3", 4096},      {"gemma2", 8192},
      {"gemma3", 131072},  {"mixtral", 131072}, {"qwen3_moe", 32768}};
  for (const auto& [name, most] : positions) {
    Json config = GoldenConfig(name);
    config.erase("max_position_embeddings");
    EXPECT_EQ(Parsed(config).max_position, most) << name;
  }
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
  ExpectRefused(with("sliding_window", 128), {"sliding_window", "128"});
  ExpectRefused(with("residual_multiplier", 0.22), {"residual_multiplier", "0.22"});
  ExpectRefused(with("mlp_bias", "no"), {"mlp_bias"});
  ExpectRefused(with("attention_dropout", 0.1), {"attention_dropout", "0.1"});
  EXPECT_TRUE(ParseModelSpec(with("attention_dropout", 0).dump()).ok());
  ExpectRefused(with("rope_interleaved", true), {"rope_interleaved"});
  ExpectRefused(with("quantization_config", {{"quant_method", "gptq"}}), {"quantization_config"});
  ExpectRefused(with("partial_rotary_factor", 0.5), {"partial_rotary_factor", "0.5"});
  ExpectRefused(with("num_key_value_heads", 3), {"num_key_value_heads 3"});
  ExpectRefused(with("num_attention_heads", 5), {"num_attention_heads 5"});
  ExpectRefused(with("head_dim", 15), {"head_dim 15"});
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
  const auto spec = ParseModelSpec(CaseConfig("unknown"));
  EXPECT_TRUE(absl::IsInvalidArgument(spec.status())) << spec.status();
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("rope_type"));
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("spiral"));
}

// Values of transformers 5: _compute_yarn_parameters of the same config.
TEST(Rope, YarnOfCase21IsComputed) {
  const auto spec = ParseModelSpec(CaseConfig("yarn"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->rope.type, RopeType::kYarn);
  EXPECT_NEAR(spec->rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  const std::vector<float> got = RopeInverseFrequencies(*spec);
  const float want[] = {1.0f,           0.237170815f,    0.049999997f,    0.00790569466f,
                        0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f};
  ASSERT_EQ(got.size(), std::size(want));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], want[i]) << i;
}

TEST(Rope, LongRopeTakesItsLongTableBeyondTheOriginalContext) {
  Json config = GoldenConfig("phi3");
  const std::vector<double> shorter(8, 1.5), longer(8, 6.0);
  config["original_max_position_embeddings"] = 16;
  config["rope_parameters"] = {
      {"rope_type", "su"}, {"rope_theta", 1e4}, {"short_factor", shorter}, {"long_factor", longer}};
  const ModelSpec spec = Parsed(config);
  EXPECT_EQ(spec.rope.type, RopeType::kLongRope);
  EXPECT_NEAR(spec.rope.attention_factor, std::sqrt(1 + std::log(32.0) / std::log(16.0)), 1e-12);
  EXPECT_EQ(RopeTableFloats(spec), 16);
  EXPECT_EQ(RopeFor(spec, 0, 16).offset, 0);
  EXPECT_EQ(RopeFor(spec, 0, 17).offset, 8);
  const std::vector<float> tables = RopeTables(spec);
  EXPECT_FLOAT_EQ(tables[0], 1 / 1.5f);
  EXPECT_FLOAT_EQ(tables[8], 1 / 6.0f);
  config["rope_parameters"]["long_factor"] = {1.0};
  ExpectRefused(config, {"long_factor"});
  config["rope_parameters"] = {{"rope_type", "llama3"}, {"rope_theta", 1e4}};
  ExpectRefused(config, {"rope_type", "llama3", "phi3"});
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
  Json gemma3 = GoldenConfig("gemma3");
  gemma3["rope_parameters"]["full_attention"] = {{"rope_type", "yarn"},
                                                 {"rope_theta", 1e6},
                                                 {"factor", 8},
                                                 {"original_max_position_embeddings", 64}};
  EXPECT_TRUE(Parsed(gemma3).rope.truncate);
  gemma3["rope_parameters"]["full_attention"]["truncate"] = false;
  ExpectRefused(gemma3, {"full_attention", "truncate"});
}

}  // namespace
}  // namespace soup::engine
