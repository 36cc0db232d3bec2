#include "engine/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "tests/engine/data/data_test_util.h"

namespace soup::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int32_t> Encode(const Tokenizer& tokenizer, absl::string_view text) {
  EncodeContext context;
  std::vector<int32_t> ids;
  const absl::Status status = tokenizer.Encode(text, &context, &ids);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(context.dropped_bytes, 0);
  return ids;
}

// A byte tokenizer: 256 byte tokens in byte order, no merges; edits on top.
nlohmann::json ByteTokenizer() {
  nlohmann::json out = nlohmann::json::parse(ReadTestFile("cases/03-strip-flags/tokenizer.json"));
  out["added_tokens"] = nlohmann::json::array();
  out["post_processor"] = nullptr;
  return out;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const nlohmann::json& json) {
  return Tokenizer::Create(json.dump(), "tokenizer.json");
}

std::string ErrorOf(const nlohmann::json& json) {
  const auto made = Make(json);
  return made.ok() ? "no error" : std::string(made.status().message());
}

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, EqualsHuggingFaceInEveryCase) {
  const std::string stem = TestFile(absl::StrCat("golden/tokenizers/", GetParam()));
  const auto tokenizer = Tokenizer::Load(stem + ".json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto text = RealFileSystem().ReadFile(stem + ".cases.json");
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json cases = nlohmann::json::parse(*text);
  ASSERT_GT(cases.size(), 50u);
  EncodeContext context;
  for (int round = 0; round < 2; ++round) {  // the second with a warm word memory
    for (const auto& c : cases) {
      std::vector<int32_t> ids;
      const absl::Status status =
          (*tokenizer)->Encode(c.at("text").get<std::string>(), &context, &ids);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(ids, c.at("ids").get<std::vector<int32_t>>()) << c.at("text");
      EXPECT_EQ((*tokenizer)->Decode(ids), c.at("decoded").get<std::string>()) << c.at("text");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, GoldenTokenizer,
                         ::testing::Values("gpt2_style", "llama2_style", "llama3_style",
                                           "qwen2_style"),
                         [](const auto& info) { return std::string(info.param); });

// Case 03: lstrip, rstrip, single_word and the longest match.
TEST(TokenizerTest, AddedTokenFlagsAreObeyed) {
  const auto tokenizer = Tokenizer::Load(TestFile("cases/03-strip-flags/tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto text = RealFileSystem().ReadFile(TestFile("cases/03-strip-flags/tokens.json"));
  ASSERT_TRUE(text.ok());
  for (const auto& c : nlohmann::json::parse(*text))
    EXPECT_EQ(Encode(**tokenizer, c.at("text").get<std::string>()),
              c.at("ids").get<std::vector<int32_t>>())
        << c.at("text");
}

TEST(TokenizerTest, PostProcessorGivesPrefixAndSuffix) {
  const auto tokenizer = Tokenizer::Load(TestFile("cases/03-strip-flags/tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT((*tokenizer)->prefix(), ElementsAre(256));
  EXPECT_THAT((*tokenizer)->suffix(), IsEmpty());
}

TEST(TokenizerTest, MergesOfLongAndShortWordsAgree) {
  nlohmann::json json = ByteTokenizer();
  json["model"]["vocab"]["aa"] = 300;
  json["model"]["vocab"]["aaaa"] = 301;
  json["model"]["vocab"]["ab"] = 302;
  json["model"]["merges"] = nlohmann::json::array({"a a", {"aa", "aa"}, {"a", "b"}});
  const auto tokenizer = Make(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Encode(**tokenizer, "aaab"), ElementsAre(300, 302));
  // 4001 a's: 1000 fours and a single one, whichever way they are found.
  std::vector<int32_t> expected(1000, 301);
  expected.push_back('a');
  EXPECT_EQ(Encode(**tokenizer, std::string(4001, 'a')), expected);
}

TEST(TokenizerTest, IgnoreMergesTakesTheWholeWord) {
  nlohmann::json json = ByteTokenizer();
  json["model"]["vocab"]["xyz"] = 300;  // no merge leads here
  json["model"]["ignore_merges"] = true;
  const auto tokenizer = Make(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Encode(**tokenizer, "xyz"), ElementsAre(300));
  json["model"]["ignore_merges"] = false;
  EXPECT_THAT(Encode(**Make(json), "xyz"), ElementsAre('x', 'y', 'z'));
}

TEST(TokenizerTest, DigitsBeforeByteLevel) {
  nlohmann::json json = ByteTokenizer();
  json["model"]["vocab"]["12"] = 300;
  json["model"]["merges"] = nlohmann::json::array({"1 2"});
  EXPECT_THAT(Encode(**Make(json), "12"), ElementsAre(300));
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}};
  EXPECT_THAT(Encode(**Make(json), "12"), ElementsAre('1', '2'));
}

TEST(TokenizerTest, PrefixSpace) {
  nlohmann::json json = ByteTokenizer();
  json["pre_tokenizer"]["add_prefix_space"] = true;
  json["added_tokens"] = {{{"id", 256}, {"content", "<s>"}, {"special", true}}};
  const auto tokenizer = Make(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Encode(**tokenizer, "a<s>b<s> c"),
              ElementsAre(' ', 'a', 256, ' ', 'b', 256, ' ', 'c'));
}

TEST(TokenizerTest, BytesWithoutATokenAreCounted) {
  nlohmann::json json = ByteTokenizer();
  json["model"]["vocab"].erase("q");
  const auto tokenizer = Make(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EncodeContext context;
  std::vector<int32_t> ids;
  ASSERT_TRUE((*tokenizer)->Encode("aqb aqb", &context, &ids).ok());
  EXPECT_THAT(ids, ElementsAre('a', 'b', ' ', 'a', 'b'));
  EXPECT_EQ(context.dropped_bytes, 2);
  json["model"]["vocab"]["<unk>"] = 300;
  json["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(Encode(**Make(json), "aqqb"), ElementsAre('a', 300, 300, 'b'));
  json["model"]["fuse_unk"] = true;
  EXPECT_THAT(Encode(**Make(json), "aqqb"), ElementsAre('a', 300, 'b'));
}

TEST(TokenizerTest, SplitBehaviours) {
  const auto cut = [](const std::string& behavior, bool invert) {
    nlohmann::json json = ByteTokenizer();
    int id = 300;  // every joined piece of "a-b--c" gets a token, and so shows
    for (const char* piece : {"a", "-", "b", "c", "a-", "b-", "-c", "-b", "--", "--c"})
      if (json["model"]["vocab"].find(piece) == json["model"]["vocab"].end())
        json["model"]["vocab"][piece] = id++;
    json["model"]["ignore_merges"] = true;
    json["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"},
                                {"pattern", {{"String", "-"}}},
                                {"behavior", behavior},
                                {"invert", invert}},
                               json["pre_tokenizer"]}}};
    const auto tokenizer = Make(json);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::string out;
    for (int32_t id : Encode(**tokenizer, "a-b--c")) {
      if (!out.empty()) out += '|';
      out += (*tokenizer)->Decode({id});
    }
    return out;
  };
  // As Hugging Face tokenizers' own documentation of the behaviours.
  EXPECT_EQ(cut("Removed", false), "a|b|c");
  EXPECT_EQ(cut("Removed", true), "-|-|-");
  EXPECT_EQ(cut("Isolated", false), "a|-|b|-|-|c");
  EXPECT_EQ(cut("MergedWithPrevious", false), "a-|b-|-|c");
  EXPECT_EQ(cut("MergedWithNext", false), "a|-b|-|-c");
  EXPECT_EQ(cut("Contiguous", false), "a|-|b|--|c");
}

TEST(TokenizerTest, TextThatIsNoUtf8IsRefused) {
  const auto tokenizer = Make(ByteTokenizer());
  ASSERT_TRUE(tokenizer.ok());
  EncodeContext context;
  std::vector<int32_t> ids;
  EXPECT_EQ((*tokenizer)->Encode("ab\xffz", &context, &ids).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, DecodeReplacesHalvesOfCharacters) {
  const auto tokenizer = Make(ByteTokenizer());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->Decode({'a', 0xf0, 0x9f, 0x99, 'b', 99999, -1}),
            "a\xef\xbf\xbd"
            "b");
}

TEST(TokenizerTest, UnknownComponentsAreRefusedByNameAndPath) {
  const auto with = [](const char* pointer, const nlohmann::json& value) {
    nlohmann::json json = ByteTokenizer();
    json[nlohmann::json::json_pointer(pointer)] = value;
    return ErrorOf(json);
  };
  EXPECT_THAT(with("/model/type", "Unigram"),
              HasSubstr("tokenizer.json: /model/type: model 'Unigram'"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Whitespace"}}),
              HasSubstr("/pre_tokenizer/type: pre-tokenizer 'Whitespace'"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}),
              HasSubstr("/normalizer/type: normaliser 'Lowercase'"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}),
              HasSubstr("/post_processor/type: post-processor 'BertProcessing'"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder 'WordPiece'"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("/model/dropout"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("/model/end_of_word_suffix"));
  EXPECT_THAT(with("/model/merges", {"zz top"}), HasSubstr("'zz' is not in the vocabulary"));
  EXPECT_THAT(with("/model/novel", 1), HasSubstr("key 'novel'"));
  EXPECT_THAT(with("/novel", 1), HasSubstr("key 'novel'"));
  EXPECT_THAT(with("/pre_tokenizer/novel", 1), HasSubstr("key 'novel'"));
  EXPECT_THAT(with("/added_tokens", {{{"id", 300}, {"content", "a"}}}),
              HasSubstr("'a' has id 300 here and id 97"));
  EXPECT_THAT(with("/added_tokens", {{{"id", 97}, {"content", "<s>"}}}),
              HasSubstr("'<s>' has id 97, which /model/vocab gives to 'a'"));
  for (const char* pattern :
       {"\\w+", "^a", "[a&&b]", "[[:alpha:]]", "(?<name>a)", "a{1,2}+", "(a"}) {
    const nlohmann::json split = {{"type", "Split"},
                                  {"pattern", {{"Regex", pattern}}},
                                  {"behavior", "Isolated"},
                                  {"invert", false}};
    EXPECT_THAT(with("/pre_tokenizer",
                     {{"type", "Sequence"}, {"pretokenizers", {split, {{"type", "ByteLevel"}}}}}),
                HasSubstr("/pre_tokenizer/pretokenizers/0/pattern/Regex"))
        << pattern;
  }
}

TEST(TokenizerTest, BrokenJsonNamesLineAndColumn) {
  const auto made = Tokenizer::Create("{\n \"model\": {\n  ?", "t/tokenizer.json");
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(std::string(made.status().message()),
              HasSubstr("t/tokenizer.json: not valid JSON at line 3 column 3"));
  const auto pointer = Tokenizer::Create("version https://git-lfs.github.com/spec/v1\n", "t");
  ASSERT_FALSE(pointer.ok());
  EXPECT_THAT(std::string(pointer.status().message()), HasSubstr("git lfs pull"));
}

// Every prefix of a small file, and every byte of it replaced: an error or a tokenizer, no crash.
TEST(TokenizerTest, DamagedFilesNeverCrash) {
  nlohmann::json json = ByteTokenizer();
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}};
  json["model"]["merges"] = {"a b"};
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"] = {{{"id", 3}, {"content", "<s>"}, {"special", true}, {"lstrip", true}}};
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", "[^\\s\\p{L}]+|\\s+(?!\\S)"}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
  const std::string good = json.dump();
  ASSERT_TRUE(Tokenizer::Create(good, "t").ok()) << Tokenizer::Create(good, "t").status();
  int made = 0;
  const auto probe = [&made](const std::string& text) {
    const auto tokenizer = Tokenizer::Create(text, "t");
    if (!tokenizer.ok()) return;
    ++made;
    EncodeContext context;
    std::vector<int32_t> ids;
    (void)(*tokenizer)->Encode(" ab<s> \xc3\xa9", &context, &ids);
    (void)(*tokenizer)->Decode(ids);
  };
  for (size_t n = 0; n < good.size(); ++n) {
    probe(good.substr(0, n));
    for (char c : {'\0', '"', '9', '-', '\\', '\xff'}) {
      std::string bad = good;
      bad[n] = c;
      probe(bad);
    }
  }
  EXPECT_GT(made, 100);  // many changes are harmless: the probe reached Encode
}

}  // namespace
}  // namespace soup::engine
