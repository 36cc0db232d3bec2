// Tokenizer::EncodeCut and EncodeContinued: ids of the whole text, and where the places in it lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/tokenizer.h"
#include "tests/engine/data/data_test_util.h"

namespace soup::engine {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<Tokenizer> Style(const std::string& name, const std::string& patch = "{}") {
  auto json =
      nlohmann::json::parse(ReadTestFile(absl::StrCat("golden/tokenizers/", name, ".json")));
  json.merge_patch(nlohmann::json::parse(patch));
  auto tokenizer = Tokenizer::Create(json.dump(), name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<int32_t> Whole(const Tokenizer& t, const std::string& text) {
  EncodeContext context;
  std::vector<int32_t> ids;
  EXPECT_TRUE(t.Encode(text, &context, &ids).ok());
  return ids;
}

// The text as the cuts part it, each part decoded by what its ids add to the text before. `marks`:
// '#' where a cut's `at` is, '^' before it where its floor is another place.
struct Parts {
  std::vector<int32_t> ids;
  std::vector<std::string> texts;
  std::string text;
};
Parts CutAt(const Tokenizer& t, const std::string& marks) {
  Parts out;
  std::vector<Tokenizer::Cut> cuts;
  size_t floor = std::string::npos;
  for (char c : marks) {
    if (c == '^') {
      floor = out.text.size();
    } else if (c == '#') {
      cuts.push_back({out.text.size(), std::min(floor, out.text.size())});
      floor = std::string::npos;
    } else {
      out.text.push_back(c);
    }
  }
  EncodeContext context;
  std::vector<size_t> counts;
  const absl::Status status = t.EncodeCut(out.text, cuts, &context, &out.ids, &counts);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(counts.size(), cuts.size());
  counts.push_back(out.ids.size());
  std::string before;
  for (size_t count : counts) {
    const std::string now = t.Decode(absl::MakeSpan(out.ids).subspan(0, count));
    out.texts.push_back(now.substr(before.size()));
    before = now;
  }
  return out;
}

TEST(EncodeCutTest, AWordKeepsTheBlankThatItIsOneTokenWith) {
  for (const char* style : {"llama3_style", "qwen2_style", "gpt2_style"}) {
    const auto t = Style(style);
    const Parts parts = CutAt(*t, "Who are you^ #the one we are");
    EXPECT_EQ(parts.ids, Whole(*t, parts.text)) << style;
    EXPECT_THAT(parts.texts, ElementsAre("Who are you", " the one we are")) << style;
  }
}

TEST(EncodeCutTest, TheIdsAreThoseOfTheWholeTextAroundAddedTokens) {
  for (const char* style : {"llama3_style", "qwen2_style"}) {
    const auto t = Style(style);
    const Parts parts = CutAt(*t,
                              "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n#Yes, "
                              "it is.<|im_end|>#\n<|im_start|>user\nGo<|im_end|>\n");
    EXPECT_EQ(parts.ids, Whole(*t, parts.text)) << style;
    EXPECT_THAT(parts.texts,
                ElementsAre("<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
                            "Yes, it is.<|im_end|>", "\n<|im_start|>user\nGo<|im_end|>\n"))
        << style;
  }
}

// An added token that takes the white space after it (Phi): the line's end is not there twice.
TEST(EncodeCutTest, WhatAnAddedTokenTookIsNotEncodedAgain) {
  auto json = nlohmann::json::parse(ReadTestFile("golden/tokenizers/llama2_style.json"));
  for (auto& token : json["added_tokens"])
    if (token["content"] == "</s>") token["rstrip"] = true;
  const auto t = Tokenizer::Create(json.dump(), "t");
  ASSERT_TRUE(t.ok()) << t.status();
  const Parts parts = CutAt(**t, "a</s>\n#b</s>#\nc");
  EXPECT_EQ(parts.ids, Whole(**t, parts.text));
  EXPECT_EQ(parts.texts[1], " b</s>");  // the normaliser's blank before what follows a token
}

TEST(EncodeCutTest, ATokenAcrossACutIsTakenApart) {
  const auto t = Style("llama3_style");
  const std::vector<int32_t> whole = Whole(*t, "the");
  ASSERT_EQ(whole.size(), 1u);
  const Parts parts = CutAt(*t, "t#he");
  EXPECT_THAT(parts.texts, ElementsAre("t", "he"));
  EXPECT_NE(parts.ids, whole);
}

// Nothing is put before the second half: neither the normaliser's mark nor Metaspace's.
TEST(EncodeCutTest, WhatGoesOnBeginsWithoutABlank) {
  const std::string metaspace =
      R"({"normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"▁",)"
      R"("prepend_scheme":"first","split":false}})";
  for (const std::string& patch : {std::string("{}"), metaspace}) {
    const auto t = Style("llama2_style", patch);
    const Parts parts = CutAt(*t, "an o#the");
    EXPECT_THAT(parts.texts, ElementsAre("an o", "the"));
    EncodeContext context;
    std::vector<int32_t> ids;
    ASSERT_TRUE(t->EncodeContinued("the", &context, &ids).ok());
    EXPECT_EQ(std::vector<int32_t>(parts.ids.end() - static_cast<std::ptrdiff_t>(ids.size()),
                                   parts.ids.end()),
              ids);
    EXPECT_NE(ids, Whole(*t, "the"));
  }
}

TEST(EncodeCutTest, EveryPlaceOfATextCanBeCut) {
  const std::string text = "It's <s>  naïve\n\nto say </s> 12345 <s>x";
  for (const char* style : {"llama2_style", "llama3_style", "qwen2_style", "gpt2_style"}) {
    const auto t = Style(style);
    for (size_t at = 0; at <= text.size(); ++at) {
      if (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
      EncodeContext context;
      std::vector<int32_t> ids;
      std::vector<size_t> counts;
      const Tokenizer::Cut cuts[] = {{at, at}};
      ASSERT_TRUE(t->EncodeCut(text, cuts, &context, &ids, &counts).ok());
      ASSERT_EQ(counts.size(), 1u);
      EXPECT_LE(counts[0], ids.size());
      EXPECT_EQ(t->Decode(ids), t->Decode(Whole(*t, text))) << style << " " << at;
    }
  }
}

}  // namespace
}  // namespace soup::engine
