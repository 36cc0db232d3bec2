#include "engine/data/tokenizer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/engine/data/data_test_util.h"

namespace soup::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<TokenizerConfig> Load(const std::string& config,
                                     const char* chat_template = nullptr) {
  const TempDir dir;
  if (!config.empty()) dir.Write("tokenizer_config.json", config);
  if (chat_template != nullptr) dir.Write("chat_template.jinja", chat_template);
  return LoadTokenizerConfig(dir.path());
}

TEST(TokenizerConfigTest, SpecialTokensAsTextOrObject) {
  const auto config = Load(
      R"({"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},"pad_token":null,
"add_bos_token":true,"model_max_length":1e30})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config->Token("bos_token"), "<s>");
  EXPECT_EQ(*config->Token("eos_token"), "</s>");
  EXPECT_EQ(config->Token("pad_token"), nullptr);
  EXPECT_EQ(config->add_bos_token, true);
  EXPECT_FALSE(config->add_eos_token.has_value());
}

// Templates see a model's own tokens, and those that older folders keep in another file.
TEST(TokenizerConfigTest, EveryTokenThatATemplateMayName) {
  const TempDir dir;
  dir.Write("tokenizer_config.json",
            R"({"eos_token":"</s>","pad_token":null,"turn_token":"<turn>","add_bos_token":false,
"extra_special_tokens":{"image_token":{"content":"<image>"},"eos_token":"<not this>"}})");
  dir.Write("special_tokens_map.json",
            R"({"bos_token":{"content":"<s>"},"eos_token":"<this>","pad_token":"<pad>",
"additional_special_tokens":["<a>"]})");
  const auto config = LoadTokenizerConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->special_tokens, (std::map<std::string, std::string>{{"bos_token", "<s>"},
                                                                        {"eos_token", "<this>"},
                                                                        {"image_token", "<image>"},
                                                                        {"pad_token", "<pad>"},
                                                                        {"turn_token", "<turn>"}}));
  EXPECT_THAT(config->unnamed_tokens, ElementsAre("<a>"));
  // With added_tokens_decoder transformers does not look at the other file.
  dir.Write("tokenizer_config.json", R"({"eos_token":"</s>","added_tokens_decoder":{}})");
  const auto newer = LoadTokenizerConfig(dir.path());
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ(newer->special_tokens, (std::map<std::string, std::string>{{"eos_token", "</s>"}}));
  dir.Write("tokenizer_config.json", "{}");
  dir.Write("special_tokens_map.json", "[]");
  EXPECT_THAT(std::string(LoadTokenizerConfig(dir.path()).status().message()),
              HasSubstr("special_tokens_map.json"));
}

TEST(TokenizerConfigTest, TemplatesOneOrNamedOrInAFileOfTheirOwn) {
  EXPECT_EQ(Load(R"({"chat_template":"a"})")->chat_template, "a");
  const auto named = Load(
      R"({"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"}]})");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->chat_template, "d");
  EXPECT_EQ(named->tool_template, "t");
  const auto file = Load(R"({"chat_template":"a"})", "from file");
  EXPECT_EQ(file->chat_template, "from file");
  EXPECT_EQ(file->tool_template, "from file");
  EXPECT_EQ(file->template_file, "chat_template.jinja");
  EXPECT_EQ(Load("")->chat_template, "");
}

TEST(TokenizerConfigTest, FaultsAreNamed) {
  EXPECT_THAT(std::string(Load("{").status().message()),
              HasSubstr("tokenizer_config.json: not valid JSON at line 1"));
  EXPECT_THAT(std::string(Load(R"({"eos_token":3})").status().message()), HasSubstr("/eos_token"));
  EXPECT_THAT(
      std::string(Load(R"({"chat_template":[{"name":"x","template":"t"}]})").status().message()),
      HasSubstr("no template named 'default'"));
  EXPECT_THAT(std::string(Load("{}", "\xff").status().message()), HasSubstr("not UTF-8"));
}

// The kind of case 03: flags that one of two files has.
TEST(TokenizerConfigTest, AddedTokensOfBothFilesMustAgree) {
  const auto tokenizer = Tokenizer::Load(TestFile("cases/03-strip-flags/tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto check = [&](const std::string& tokens, std::vector<std::string>* warnings) {
    const auto config = Load("{\"added_tokens_decoder\":" + tokens + "}");
    EXPECT_TRUE(config.ok()) << config.status();
    return CheckAgreement(*config, **tokenizer, warnings);
  };
  std::vector<std::string> warnings;
  EXPECT_TRUE(
      check(R"({"260":{"content":"<|sep|>","lstrip":true,"rstrip":true,"single_word":false}})",
            &warnings)
          .ok());
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_TRUE(check(R"({"260":{"content":"<|sep|>"}})", &warnings).ok());
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("'<|sep|>'"), HasSubstr("are obeyed"))));
  EXPECT_THAT(std::string(check(R"({"261":{"content":"<|sep|>"}})", &warnings).message()),
              HasSubstr("gives id 260"));
  EXPECT_THAT(std::string(check(R"({"900":{"content":"<|new|>"}})", &warnings).message()),
              AllOf(HasSubstr("'<|new|>'"), HasSubstr("lacks")));
}

// Tokens that transformers would add; here a text that spells them is split.
TEST(TokenizerConfigTest, SpecialTokensThatTheTokenizerLacksAreTold) {
  const auto tokenizer = Tokenizer::Create(ReadTestFile("cases/_base/bytes/tokenizer.json"), "t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const char* config :
       {R"({"pad_token":"<|x|>"})", R"({"additional_special_tokens":["<|end|>","<|x|>"]})",
        R"({"extra_special_tokens":[{"content":"<|x|>"}]})",
        R"({"extra_special_tokens":{"image_token":"<|x|>"}})"}) {
    std::vector<std::string> warnings;
    const auto parsed = ParseTokenizerConfig(config);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(CheckAgreement(*parsed, **tokenizer, &warnings).ok());
    EXPECT_THAT(warnings, ElementsAre(HasSubstr("'<|x|>', which is no added token"))) << config;
  }
  EXPECT_THAT(
      std::string(ParseTokenizerConfig(R"({"split_special_tokens":true})").status().message()),
      HasSubstr("split_special_tokens"));
}

TEST(TokenizerConfigTest, PrefixSpaceOfBothFilesMustAgree) {
  const auto tokenizer = Tokenizer::Load(TestFile("cases/_base/bytes/tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<std::string> warnings;
  EXPECT_TRUE(CheckAgreement(*Load(R"({"add_prefix_space":false})"), **tokenizer, &warnings).ok());
  EXPECT_TRUE(CheckAgreement(*Load(R"({"add_prefix_space":null})"), **tokenizer, &warnings).ok());
  EXPECT_THAT(
      std::string(
          CheckAgreement(*Load(R"({"add_prefix_space":true})"), **tokenizer, &warnings).message()),
      HasSubstr("add_prefix_space is true"));
}

}  // namespace
}  // namespace soup::engine
