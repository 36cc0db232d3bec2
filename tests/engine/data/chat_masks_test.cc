// The golden case for masks: a conversation of three turns through each template of
// tests/golden/templates. Supervised are exactly the assistant's words and their end token, and the
// ids are those of the whole rendering.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/engine/data/chat_test_util.h"

namespace soup::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kThreeTurns[] =
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello, you."},
{"role":"user","content":"2 + 2?"},{"role":"assistant","content":"It's 4.\n\nTruly."},
{"role":"user","content":"Go on"},{"role":"assistant","content":"Bye\nnow"}]})";

struct Golden {
  const char* name;
  const char* end;                 // what a turn's words end in
  const char* before_last;         // what stands before the last turn's words, and is said too
  std::vector<std::string> added;  // tokens
};

std::vector<Golden> Goldens() {
  const char* thinking = "<think>\n\n</think>\n\n";
  const std::vector<std::string> im = {"<|im_start|>", "<|im_end|>"};
  return {
      {"chatml", "<|im_end|>", "", im},
      {"llama2", " </s>", "", {"<s>", "</s>"}},
      {"llama3",
       "<|eot_id|>",
       "",
       {"<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"mistral", "</s>", "", {"<s>", "</s>", "[INST]", "[/INST]"}},
      {"mistral_strict", "</s>", "", {"<s>", "</s>", "[INST]", "[/INST]"}},
      {"gemma", "<end_of_turn>", "", {"<s>", "<start_of_turn>", "<end_of_turn>"}},
      {"phi", "<|end|>", "", {"<|user|>", "<|assistant|>", "</s>"}},  // <|end|>: of the base
      {"phi4", "<|end|>", "", {"<|user|>", "<|assistant|>", "</s>"}},
      {"qwen", "<|im_end|>", thinking, im},
      {"qwen3_thinking", "<|im_end|>", thinking, im},
      {"hermes_tools", "<|im_end|>", "", im},
      {"deepseek",
       "<|end_of_sentence|>",
       "",
       {"<s>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>"}},
      {"generation_blocks", "<|im_end|>", "", im},
  };
}

std::string TemplateOf(absl::string_view name) {
  return ReadTestFile(absl::StrCat("golden/templates/", name, ".jinja"));
}

class ChatMasks : public ::testing::TestWithParam<Golden> {};

TEST_P(ChatMasks, TheAssistantsWordsAndTheirEndTokenAreSupervised) {
  const Golden& golden = GetParam();
  Chat chat(TemplateOf(golden.name), golden.added);
  const std::string end = golden.end;
  EXPECT_THAT(chat.Supervised(kThreeTurns),
              ElementsAre("Hello, you." + end, "It's 4.\n\nTruly." + end,
                          golden.before_last + ("Bye\nnow" + end)))
      << chat.Text();
  EXPECT_EQ(chat.ids(), chat.Whole());
  EXPECT_THAT(chat.notices(), IsEmpty());
}

// The same through vocabularies with merges: no token is lost or added between the turns.
TEST_P(ChatMasks, TheIdsAreThoseOfTheWholeText) {
  const Golden& golden = GetParam();
  for (const char* style : {"llama2_style", "llama3_style", "qwen2_style", "gpt2_style"}) {
    auto json =
        nlohmann::json::parse(ReadTestFile(absl::StrCat("golden/tokenizers/", style, ".json")));
    std::vector<std::string> added;
    for (const std::string& token : golden.added)
      if (!absl::StrContains(json["added_tokens"].dump(), absl::StrCat("\"", token, "\"")))
        added.push_back(token);
    for (const char* token : {"<|end|>"})
      if (absl::StrContains(golden.end, token)) added.push_back(token);
    Chat chat(json, TemplateOf(golden.name), added, /*all=*/false, /*free_id=*/4000);
    std::string spoken;
    const auto runs = chat.Supervised(kThreeTurns);
    ASSERT_EQ(runs.size(), 3u) << style << ": " << runs[0];
    for (const auto& [run, words] :
         {std::pair(runs[0], "Hello, you."), std::pair(runs[1], "It's 4.\n\nTruly."),
          std::pair(runs[2], "Bye\nnow")}) {
      EXPECT_THAT(run, HasSubstr(words)) << style;
    }
    // Not of the others: decoding cannot tell a normaliser's blanks from those of the text, and
    // GPT-2's pattern cuts "\n\n" before a word, which a prompt that ends there has as one token.
    if (absl::StrContains(style, "llama3") || absl::StrContains(style, "qwen2")) {
      EXPECT_EQ(chat.ids(), chat.Whole()) << style;
    }
  }
}

// A template that trims (all that do) is caught when there is something to trim, whatever turn.
TEST_P(ChatMasks, WhatTheTemplateChangesIsCaught) {
  const Golden& golden = GetParam();
  Chat chat(TemplateOf(golden.name), golden.added);
  const std::string record =
      absl::StrReplaceAll(kThreeTurns, {{"It's 4.", "\\n\\n It's 4."}, {"Truly.", "Truly. \\n"}});
  const auto runs = chat.Supervised(record);
  const std::string words = "\n\n It's 4.\n\nTruly. \n";
  if (runs.size() == 3) {
    EXPECT_EQ(runs[1], words + golden.end);
  } else {
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_THAT(runs[0], HasSubstr("message 4 (assistant)"));
  }
}

TEST(ChatMasksTest, AGenerationBlockAroundAnothersWordsIsCaught) {
  Chat chat(
      "{% for m in messages %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% endfor "
      "%}",
      {});
  EXPECT_THAT(chat.Supervised(kThreeTurns), ElementsAre(HasSubstr("not the assistant's")));
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatMasks, ::testing::ValuesIn(Goldens()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace soup::engine
