// A chat encoder over a small tokenizer, for tests of what it supervises.
#ifndef SOUP_TESTS_ENGINE_DATA_CHAT_TEST_UTIL_H_
#define SOUP_TESTS_ENGINE_DATA_CHAT_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/data/chat_encoder.h"
#include "engine/data/json_value.h"
#include "tests/engine/data/data_test_util.h"

namespace soup::engine {

// The byte tokenizer of tests/cases with these added tokens (ids from 300), and a template.
class Chat {
 public:
  Chat(const std::string& chat_template, const std::vector<std::string>& added, bool all = false)
      : Chat(ByteTokenizer(), chat_template, added, all) {}
  // Another tokenizer.json, with ids free from `free_id` on.
  Chat(nlohmann::json json, const std::string& chat_template, const std::vector<std::string>& added,
       bool all = false, int free_id = 300) {
    int id = free_id;
    for (const std::string& token : added)
      json["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}});
    auto tokenizer = Tokenizer::Create(json.dump(), "tokenizer.json");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    TokenizerConfig config;
    config.chat_template = config.tool_template = chat_template;
    config.template_file = "chat_template.jinja";
    config.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    auto chat = ChatEncoder::Create(tokenizer_.get(), config, all);
    status_ = chat.status();
    if (chat.ok()) chat_ = *std::move(chat);
  }

  // The supervised runs of a record, decoded; an error as its message.
  std::vector<std::string> Supervised(const std::string& record) {
    if (!status_.ok()) return {std::string(status_.message())};
    const auto value = ParseJsonValue(record);
    EXPECT_TRUE(value.ok()) << value.status() << record;
    EncodeContext context;
    record_ = TokenRecord();
    notices_.clear();
    const absl::Status status = chat_->Encode(*value, &context, &record_, &notices_);
    if (!status.ok()) return {std::string(status.message())};
    std::vector<std::string> out;
    std::vector<int32_t> run;
    for (size_t i = 0; i <= record_.ids.size(); ++i) {
      if (i < record_.ids.size() && record_.supervised[i] != 0) {
        run.push_back(record_.ids[i]);
      } else if (!run.empty()) {
        out.push_back(tokenizer_->Decode(run));
        run.clear();
      }
    }
    return out;
  }
  // The ids of the rendering as one text.
  std::vector<int32_t> Whole() const {
    EncodeContext context;
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer_->Encode(Text(), &context, &ids).ok());
    return ids;
  }
  const std::vector<int32_t>& ids() const { return record_.ids; }
  std::string Text() const { return tokenizer_->Decode(record_.ids); }
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  static nlohmann::json ByteTokenizer() {
    auto json = nlohmann::json::parse(ReadTestFile("cases/_base/bytes/tokenizer.json"));
    json["post_processor"] = nullptr;
    return json;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatEncoder> chat_;
  absl::Status status_;
  TokenRecord record_;
  std::vector<std::string> notices_;
};

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_DATA_CHAT_TEST_UTIL_H_
