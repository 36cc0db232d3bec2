#include "engine/train/peft_import.h"

#include <cmath>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace soup::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr LoraScale kJob = {8, 16, true};

// As peft 0.21 writes it.
Json Config() {
  return Json::parse(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
    "auto_mapping": null, "base_model_name_or_path": "models/tiny", "bias": "none",
    "corda_config": null, "ensure_weight_tying": false, "eva_config": null,
    "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
    "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16, "lora_bias": false,
    "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core",
    "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.21.2",
    "qalora_group_size": 16, "r": 8, "rank_pattern": {}, "revision": null,
    "target_modules": ["q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
    "trainable_token_indices": null, "use_bdlora": null, "use_dora": false, "use_qalora": false,
    "use_rslora": true})");
}

std::string Error(const Json& config, const LoraScale& job = kJob) {
  const absl::Status status = CheckPeftConfig(config.dump(), job);
  return status.ok() ? "no error" : std::string(status.message());
}

TEST(PeftImportTest, WhatPeftWritesIsTaken) {
  EXPECT_EQ(Error(Config()), "no error");
  Json old = Config();
  for (const char* key : {"use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "peft_version",
                          "task_type", "init_lora_weights"})
    old.erase(key);
  EXPECT_EQ(Error(old, {8, 16, false}), "no error");
  // Another spelling of the same scale.
  EXPECT_EQ(Error(old, {8, 2 * std::sqrt(8.0), true}), "no error");
}

TEST(PeftImportTest, AnotherScaleOrRankIsRefused) {
  EXPECT_THAT(Error(Config(), {8, 32, true}),
              AllOf(HasSubstr("scales it by 5.65685"), HasSubstr("set lora.alpha: 16")));
  EXPECT_THAT(Error(Config(), {8, 16, false}), HasSubstr("lora.rslora: true"));
  EXPECT_THAT(Error(Config(), {4, 16, true}), AllOf(HasSubstr("r is 8"), HasSubstr("lora.r is 4")));
}

TEST(PeftImportTest, WhatPlainLoraHasNotIsRefusedByName) {
  const std::pair<const char*, Json> others[] = {{"use_dora", true},
                                                 {"bias", "lora_only"},
                                                 {"lora_bias", true},
                                                 {"modules_to_save", {"lm_head"}},
                                                 {"rank_pattern", {{"q_proj", 4}}},
                                                 {"alpha_pattern", {{"q_proj", 4}}},
                                                 {"fan_in_fan_out", true},
                                                 {"layers_to_transform", {0}},
                                                 {"layer_replication", {{0, 2}}},
                                                 {"trainable_token_indices", {5}},
                                                 {"init_lora_weights", "pissa"},
                                                 {"task_type", "SEQ_CLS"},
                                                 {"peft_type", "IA3"},
                                                 {"r", "8"},
                                                 {"r", 0},
                                                 {"lora_alpha", nullptr},
                                                 {"lora_alpha", -1},
                                                 {"use_rslora", "yes"},
                                                 {"use_novel", true}};
  for (const auto& [key, value] : others) {
    Json config = Config();
    config[key] = value;
    EXPECT_THAT(Error(config), HasSubstr(key)) << value;
  }
  for (const std::string text : {"", "[]", "{"})
    EXPECT_THAT(std::string(CheckPeftConfig(text, kJob).message()), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace soup::engine
