// A SentencePiece vocabulary in a GGUF gives the ids of the tokenizer.json that transformers'
// converters make of it. Files and cases: tests/engine/io/make_gguf_tokenizers.py.
#include "engine/io/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/tokenizer.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using ::soup::testing::GgufWriter;
using ::soup::testing::TempDir;
using ::testing::HasSubstr;

class GgufVocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufVocabulary, EqualsHuggingFaceInEveryCase) {
  const std::string stem = TestFile(absl::StrCat("golden/gguf_tokenizers/", GetParam()));
  const auto file = GgufFile::Open(stem + ".gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto files = ReadGgufTokenizer(**file);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto tokenizer = Tokenizer::Create(files->tokenizer_json, "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto cases = nlohmann::json::parse(
      ReadTestFile(absl::StrCat("golden/gguf_tokenizers/", GetParam(), ".cases.json")));
  ASSERT_GT(cases.size(), 90u);
  EncodeContext context;
  for (const auto& c : cases) {
    std::vector<int32_t> ids;
    ASSERT_TRUE((*tokenizer)->Encode(c["text"].get<std::string>(), &context, &ids).ok());
    EXPECT_EQ(ids, c["ids"].get<std::vector<int32_t>>()) << c["text"];
    EXPECT_EQ((*tokenizer)->Decode(ids), c["decoded"].get<std::string>()) << c["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, GgufVocabulary, ::testing::Values("llama2", "gemma", "phi3"),
                         [](const auto& info) { return std::string(info.param); });

// Pieces of a small vocabulary; types as GGUF counts them.
std::string ErrorOf(const std::string& arch, const std::vector<std::string>& tokens,
                    const std::vector<int32_t>& types) {
  TempDir dir;
  GgufWriter writer(arch);
  writer.Text("tokenizer.ggml.model", "llama");
  writer.Texts("tokenizer.ggml.tokens", tokens);
  writer.Ints("tokenizer.ggml.token_type", types);
  writer.Floats("tokenizer.ggml.scores", std::vector<float>(tokens.size(), 0));
  writer.Write(dir / "t.gguf");
  const auto file = GgufFile::Open(dir / "t.gguf");
  if (!file.ok()) return std::string(file.status().message());
  return std::string(ReadGgufTokenizer(**file).status().message());
}

TEST(GgufTokenizerTest, WhatTheFileDoesNotKeepIsRefused) {
  EXPECT_EQ(ErrorOf("llama", {"<unk>", "<s>", "  ", "a"}, {2, 3, 4, 1}), "");
  EXPECT_THAT(ErrorOf("llama", {"<unk>", "<s>", "a b", "a"}, {2, 3, 4, 1}),
              HasSubstr("user-defined token 'a b' has blanks"));
  EXPECT_THAT(ErrorOf("phi3", {"<unk>", "<s>", "a"}, {2, 3, 1}), HasSubstr("is not Phi-3's"));
  EXPECT_THAT(
      ErrorOf("phi3", {"<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"},
              {3, 3, 3, 1, 3}),
      HasSubstr("no control token <|end|>"));
  EXPECT_THAT(ErrorOf("llama", {"<unk>", "a", "b", "ab"}, {2, 1, 1, 1}),
              HasSubstr("has 0 for every token"));
  // A run of blanks twice over.
  EXPECT_THAT(ErrorOf("llama", {"<unk>", "\xe2\x96\x81\xe2\x96\x81", "  "}, {2, 1, 4}),
              HasSubstr("is there twice"));
}

// BOS, EOS and the template's tokens would be spelled out as plain text.
TEST(GgufTokenizerTest, AVocabularyWithoutTypesIsRefused) {
  TempDir dir;
  GgufWriter writer("llama");
  writer.Text("tokenizer.ggml.model", "gpt2");
  writer.Text("tokenizer.ggml.pre", "smollm");
  writer.Texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<s>"});
  writer.Texts("tokenizer.ggml.merges", {"a b"});
  writer.Write(dir / "t.gguf");
  const auto file = GgufFile::Open(dir / "t.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto files = ReadGgufTokenizer(**file);
  ASSERT_FALSE(files.ok());
  EXPECT_THAT(std::string(files.status().message()), ::testing::HasSubstr("token_type"));
}

// Files of Llama 3 say nothing of a BOS, which its tokenizer.json adds.
TEST(GgufTokenizerTest, WhereTheFileIsSilentTheFamilyDecidesOfTheBos) {
  TempDir dir;
  const auto adds = [&](const std::string& pre, int says) {
    GgufWriter writer("llama");
    writer.Text("tokenizer.ggml.model", "gpt2");
    writer.Text("tokenizer.ggml.pre", pre);
    writer.Texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<s>"});
    writer.Ints("tokenizer.ggml.token_type", {1, 1, 1, 3});
    writer.Texts("tokenizer.ggml.merges", {"a b"});
    writer.Int("tokenizer.ggml.bos_token_id", 3);
    if (says >= 0) writer.Bool("tokenizer.ggml.add_bos_token", says == 1);
    writer.Bool("tokenizer.ggml.add_space_prefix", true);
    writer.Write(dir / "t.gguf");
    const auto file = GgufFile::Open(dir / "t.gguf");
    EXPECT_TRUE(file.ok()) << file.status();
    const auto files = ReadGgufTokenizer(**file);
    EXPECT_TRUE(files.ok()) << files.status();
    EXPECT_TRUE(Tokenizer::Create(files->tokenizer_json, "tokenizer.json").ok());
    const auto config = nlohmann::json::parse(files->tokenizer_config_json);
    EXPECT_EQ(config["add_prefix_space"], true);  // as the folder says it
    return config["add_bos_token"].get<bool>();
  };
  EXPECT_TRUE(adds("llama-bpe", -1));
  EXPECT_FALSE(adds("llama-bpe", 0));
  EXPECT_TRUE(adds("tekken", -1));
  EXPECT_FALSE(adds("qwen2", -1));
  EXPECT_TRUE(adds("qwen2", 1));
  EXPECT_FALSE(adds("smollm", -1));
}

}  // namespace
}  // namespace soup::engine
