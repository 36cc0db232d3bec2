// A job on a GGUF base trains the adapter that it trains on the Hugging Face folder of the same
// model, byte for byte: tokenizer, config and weights are the same on both ways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/io/gguf_reader.h"
#include "engine/io/gguf_tokenizer.h"
#include "tests/cache/golden_gguf.h"
#include "tests/daemon/harness.h"

namespace soup::daemon {
namespace {

using soup::v1::Job;

constexpr size_t kVocabulary = 320;  // the golden models'

// A SentencePiece vocabulary with the special tokens where the golden configs have them.
void AddTokenizer(testing::GgufWriter& writer, const std::vector<std::string>& special) {
  std::vector<std::string> tokens = special;
  std::vector<int32_t> types(special.size(), 3);
  std::vector<float> scores;
  const auto add = [&](const std::string& token, int32_t type) {
    tokens.push_back(token);
    types.push_back(type);
  };
  types[std::find(tokens.begin(), tokens.end(), "<unk>") - tokens.begin()] = 2;
  for (int b = 0; b < 256; ++b) {
    const char* digits = "0123456789ABCDEF";
    add(std::string("<0x") + digits[b / 16] + digits[b % 16] + ">", 6);
  }
  for (const char* piece : {"th", "the", "▁the", "in", "an", "▁", "t", "h", "e", "i", "n", "a"})
    add(piece, 1);
  while (tokens.size() < kVocabulary) add(absl::StrCat("[PAD", tokens.size(), "]"), 5);
  for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
  writer.Text("tokenizer.ggml.model", "llama");
  writer.Texts("tokenizer.ggml.tokens", tokens);
  writer.Ints("tokenizer.ggml.token_type", types);
  writer.Floats("tokenizer.ggml.scores", scores);
}

std::string Records() {
  std::string out;
  for (int i = 0; i < 12; ++i)
    absl::StrAppend(&out, R"({"text":"the tin hat in the )", i, R"( tent, naïve\tend"})", "\n");
  return out;
}

// The golden folder with what the GGUF says and the folder lacks: the tokenizer, and the scalar of
// gemma's queries that no GGUF tells.
void WriteFolder(const std::string& golden, const std::string& gguf, const std::string& folder) {
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(TestData("golden/" + golden + "/model.safetensors"),
                             folder + "/model.safetensors");
  auto config =
      nlohmann::json::parse(ReadFileOrEmpty(TestData("golden/" + golden + "/config.json")));
  if (config.contains("query_pre_attn_scalar"))
    config["query_pre_attn_scalar"] = config["head_dim"];
  std::ofstream(folder + "/config.json") << config;
  const auto file = engine::GgufFile::Open(gguf);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = engine::ReadGgufTokenizer(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ofstream(folder + "/tokenizer.json") << tokenizer->tokenizer_json;
  std::ofstream(folder + "/tokenizer_config.json") << tokenizer->tokenizer_config_json;
}

TEST(GgufJobTest, TrainsWhatTheFolderTrains) {
  Harness h({.flags = {}, .state_dir = ""});
  ASSERT_TRUE(h.Start().ok());
  const std::vector<std::string> llama = {"<unk>", "<s>", "</s>"};
  const std::vector<std::string> gemma = {"<pad>", "<eos>", "<bos>", "<unk>"};
  std::vector<std::string> phi3 = llama;
  for (const char* name : {"<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"})
    phi3.push_back(name);
  for (const auto& [golden, special] :
       {std::pair("gemma3", gemma), std::pair("phi3", phi3), std::pair("mixtral", llama)}) {
    testing::GoldenGgufOptions options;
    options.omit = "tokenizer.ggml.eos_token_id";  // phi3's is beyond the golden vocabulary
    testing::GgufWriter writer = testing::GoldenGguf(golden, options);
    writer.Int("tokenizer.ggml.eos_token_id", special == gemma ? 1 : 2);
    AddTokenizer(writer, special);
    const std::string gguf = absl::StrCat(h.dir(), "/", golden, ".gguf");
    const std::string folder = absl::StrCat(h.dir(), "/", golden);
    writer.Write(gguf);
    ASSERT_NO_FATAL_FAILURE(WriteFolder(golden, gguf, folder));
    std::vector<std::string> adapters;
    for (const std::string& base : {gguf, folder}) {
      const Job job = h.Submit(h.Spec(golden, Records(), base));
      const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
      ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << base << ": " << done.message();
      adapters.push_back(h.Adapter(job.id()));
    }
    ASSERT_FALSE(adapters[0].empty());
    EXPECT_TRUE(adapters[0] == adapters[1]) << golden;
  }
}

}  // namespace
}  // namespace soup::daemon
