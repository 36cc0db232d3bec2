#include "engine/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "tests/engine/data/prepared.h"

namespace soup::engine {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// --- Faults that other trainers had (tests/cases) ------------------------------------------------

TEST(PrepareCaseTest, Case01OneBosFromTheTemplate) {
  Prepared p("01-double-bos");
  ASSERT_PREPARED(p.RunFile("01-double-bos/train.jsonl"));
  const nlohmann::json expected = Expected("01-double-bos");
  EXPECT_EQ(p.Ids(0), expected.at("ids").get<std::vector<int32_t>>());
  const std::vector<int32_t> ids = p.Ids(0);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), 1);
  EXPECT_EQ(p.dataset().supervised_tokens, 14);
  const auto supervised = p.data->train(0).supervised;
  std::vector<int> positions;
  for (size_t i = 0; i < supervised.size(); ++i)
    if (supervised[i] != 0) positions.push_back(static_cast<int>(i));
  EXPECT_EQ(positions, expected.at("supervised_positions").get<std::vector<int>>());
  EXPECT_EQ(p.dataset().format, "messages");
}

TEST(PrepareCaseTest, Case03AddedTokenFlags) {
  Prepared p("03-strip-flags");
  ASSERT_PREPARED(p.RunFile("03-strip-flags/train.jsonl"));
  const auto cases = nlohmann::json::parse(ReadTestFile("cases/03-strip-flags/tokens.json"));
  ASSERT_EQ(p.dataset().records, static_cast<int64_t>(cases.size()));
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<int32_t> ids = cases[i].at("ids").get<std::vector<int32_t>>();
    ids.insert(ids.begin(), 256);
    ids.push_back(258);
    EXPECT_EQ(p.Ids(static_cast<int64_t>(i)), ids);
  }
  EXPECT_EQ(p.dataset().supervised_tokens, 27 + 6);  // and an EOS after each text
}

TEST(PrepareCaseTest, Case05PromptAndCompletionAreTokenisedApart) {
  Prepared p("05-boundary-merge");
  ASSERT_PREPARED(p.RunFile("05-boundary-merge/train.jsonl"));
  const nlohmann::json expected = Expected("05-boundary-merge").at("separate");
  EXPECT_EQ(p.Ids(0), expected.at("ids").get<std::vector<int32_t>>());
  EXPECT_EQ(p.dataset().supervised_tokens, expected.at("supervised").get<int64_t>());
  EXPECT_EQ(p.dataset().format, "prompt_completion");
}

TEST(PrepareCaseTest, Case07ToolTurnsInEveryWireFormat) {
  Prepared object("07-tool-turn-null"), other("07-tool-turn-null");
  ASSERT_PREPARED(object.RunFile("07-tool-turn-null/object.jsonl"));
  EXPECT_EQ(object.dataset().supervised_tokens,
            Expected("07-tool-turn-null").at("supervised").get<int64_t>());
  std::string said;
  for (int32_t id : object.Ids(0)) said += id < 256 ? static_cast<char>(id) : '|';
  EXPECT_THAT(said, HasSubstr("assistant\n<call>weather {\"city\": \"Oslo\"}</call>|"));
  for (const char* file : {"null.jsonl", "string.jsonl"}) {
    ASSERT_PREPARED(other.RunFile(absl::StrCat("07-tool-turn-null/", file)));
    EXPECT_EQ(other.Ids(0), object.Ids(0)) << file;
    EXPECT_EQ(other.data->train(0).supervised, object.data->train(0).supervised) << file;
  }
}

TEST(PrepareCaseTest, Case13TargetsARow) {
  Prepared p;
  ASSERT_PREPARED(p.RunFile("13-token-weighting/unequal.jsonl"));
  const nlohmann::json expected = Expected("13-token-weighting").at("unequal");
  EXPECT_EQ(p.dataset().supervised_tokens, expected.at("supervised").get<int64_t>());
  std::vector<int> targets;
  for (int64_t i = 0; i < p.dataset().records; ++i) {
    const auto supervised = p.data->train(i).supervised;
    targets.push_back(static_cast<int>(std::count(supervised.begin(), supervised.end(), 1)));
  }
  EXPECT_EQ(targets, expected.at("targets").get<std::vector<int>>());
}

TEST(PrepareCaseTest, Case09TheSameRowsWhateverTheirBytes) {
  const nlohmann::json expected = Expected("09-file-bytes");
  Prepared plain, other;
  ASSERT_PREPARED(plain.RunFile("09-file-bytes/plain.jsonl"));
  EXPECT_EQ(plain.dataset().records, 3);
  EXPECT_EQ(plain.dataset().supervised_tokens,
            expected.at("same_rows").at("supervised").get<int64_t>());
  for (const char* file : {"bom-crlf.jsonl", "escaped.jsonl"}) {
    ASSERT_PREPARED(other.RunFile(absl::StrCat("09-file-bytes/", file)));
    ASSERT_EQ(other.dataset().records, 3) << file;
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(other.Ids(i), plain.Ids(i)) << file;
      EXPECT_THAT(other.Ids(i), Not(Contains(13))) << file;
    }
  }
  const std::vector<int32_t> smile = plain.Ids(2);
  EXPECT_THAT(std::vector<int32_t>(smile.end() - 5, smile.end()),
              ElementsAre(240, 159, 153, 130, 258));
}

TEST(PrepareCaseTest, Case09BrokenTextIsRefusedWithItsPlace) {
  Prepared p;
  EXPECT_THAT(std::string(p.RunFile("09-file-bytes/lone-surrogate.jsonl").message()),
              AllOf(HasSubstr("lone-surrogate.jsonl line 2"), HasSubstr("surrogate")));
  EXPECT_THAT(
      std::string(p.RunFile("09-file-bytes/windows-1252.jsonl").message()),
      AllOf(HasSubstr("windows-1252.jsonl line 2"), HasSubstr("0x92"), HasSubstr("offset 89 ")));
}

TEST(PrepareCaseTest, Case11TextRows) {
  Prepared p;
  ASSERT_PREPARED(p.RunFile("11-pack-leak/train.jsonl"));
  EXPECT_EQ(p.dataset().records, 4);
  EXPECT_EQ(p.dataset().tokens, 70);
  EXPECT_EQ(p.dataset().supervised_tokens,
            Expected("11-pack-leak").at("supervised").get<int64_t>());
}

// Case 25: one very long row is refused with its line and size.
TEST(PrepareCaseTest, Case25OneVeryLongRow) {
  Prepared p;
  const std::string row =
      R"({"prompt": "p", "completion": ")" + std::string(12 << 20, 'x') + "\"}\n";
  EXPECT_THAT(p.Refusal(row), AllOf(HasSubstr("train.jsonl line 1"),
                                    HasSubstr(absl::StrCat(row.size() - 1, " bytes"))));
}

// --- Tokens
// ---------------------------------------------------------------------------------------

TEST(PrepareTest, BosAndEosExactlyOnce) {
  Prepared p;
  ASSERT_PREPARED(p.RunText("{\"text\":\"ab\"}\n{\"text\":\"<|bos|>ab<|end|>\"}\n"));
  EXPECT_THAT(p.Ids(0), ElementsAre(256, 'a', 'b', 258));
  EXPECT_EQ(p.Ids(1), p.Ids(0));
  EXPECT_THAT(p.dataset().warnings,
              ElementsAre(AllOf(HasSubstr("already end in the end token"), HasSubstr("(line 2)")),
                          AllOf(HasSubstr("already begin with the BOS"), HasSubstr("(line 2)"))));
}

TEST(PrepareTest, BosByConfigWhenThePostProcessorHasNone) {
  Prepared p;
  auto tokenizer = nlohmann::json::parse(ReadTestFile("cases/_base/bytes/tokenizer.json"));
  tokenizer["post_processor"] = nullptr;
  p.base().Write("tokenizer.json", tokenizer.dump());
  ASSERT_PREPARED(p.RunText("{\"text\":\"a\"}"));
  EXPECT_THAT(p.Ids(0), ElementsAre(256, 'a', 258));
  auto config = nlohmann::json::parse(ReadTestFile("cases/_base/bytes/tokenizer_config.json"));
  config["add_bos_token"] = false;
  p.base().Write("tokenizer_config.json", config.dump());
  ASSERT_PREPARED(p.RunText("{\"text\":\"a\"}"));
  EXPECT_THAT(p.Ids(0), ElementsAre('a', 258));
}

TEST(PrepareTest, TrainOnAllSupervisesThePromptToo) {
  Prepared p;
  ASSERT_PREPARED(p.RunText(R"({"prompt":"ab","completion":"c"})"));
  EXPECT_THAT(p.data->train(0).supervised, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(p.dataset().supervised_tokens, 2);
  p.options.train_on = "all";
  ASSERT_PREPARED(p.RunText(R"({"prompt":"ab","completion":"c"})"));
  EXPECT_THAT(p.data->train(0).supervised, ElementsAre(1, 1, 1, 1, 1));
  EXPECT_EQ(p.dataset().supervised_tokens, 4);  // the first token has nothing before it
}

TEST(PrepareTest, OverlongRecordsAreCutAndCounted) {
  Prepared p;
  p.options.max_length = 5;
  ASSERT_PREPARED(p.RunText("{\"text\":\"ab\"}\n{\"text\":\"abcdef\"}\n"));
  EXPECT_THAT(p.Ids(1), ElementsAre(256, 'a', 'b', 'c', 'd'));
  EXPECT_EQ(p.dataset().truncated_records, 1);
  EXPECT_EQ(p.dataset().longest_record_tokens, 5);
  EXPECT_THAT(p.dataset().warnings,
              ElementsAre("train.jsonl: 1 record(s) cut to 5 tokens (line 2)"));
}

TEST(PrepareTest, RecordsWithoutASupervisedTokenAreSkippedAndCounted) {
  Prepared p;
  p.options.max_length = 5;
  ASSERT_PREPARED(
      p.RunText("{\"prompt\":\"abcdef\",\"completion\":\"x\"}\n"
                "{\"prompt\":\"a\",\"completion\":\"x\"}\n"));
  EXPECT_EQ(p.dataset().records, 1);
  EXPECT_EQ(p.dataset().skipped_records, 1);
  EXPECT_THAT(p.dataset().warnings,
              Contains(HasSubstr("no supervised token is left after the cut (line 1)")));
  EXPECT_THAT(
      p.Refusal("{\"prompt\":\"abcdef\",\"completion\":\"x\"}\n"),
      AllOf(HasSubstr("no record is left to train on"), HasSubstr("after the cut (line 1)")));
}

TEST(PrepareTest, IdsBeyondTheVocabularyAreRefused) {
  Prepared p;
  p.options.vocab_size = 258;  // <|end|> is 258
  EXPECT_THAT(p.Refusal("{\"text\":\"a\"}"),
              AllOf(HasSubstr("'<|end|>' has id 258"), HasSubstr("258 vocabulary rows")));
}

TEST(PrepareTest, WithoutAnEndTokenTextIsRefused) {
  Prepared p;
  p.base().Write("tokenizer_config.json", "{}");
  EXPECT_THAT(p.Refusal("{\"text\":\"a\"}"), HasSubstr("no eos_token"));
  p.base().Write("tokenizer_config.json", R"({"eos_token": {"content": "<|nope|>"}})");
  EXPECT_THAT(p.Refusal("{\"text\":\"a\"}"), HasSubstr("'<|nope|>' is no token"));
}

// --- Formats
// --------------------------------------------------------------------------------------

TEST(PrepareTest, AutoSaysWhatItTookAndWhy) {
  Prepared p;
  ASSERT_PREPARED(p.RunText("{\"text\":\"a\",\"id\":7}\n"));
  EXPECT_EQ(p.dataset().format, "text");
  EXPECT_EQ(p.dataset().format_reason, "the first record has the key 'text'");
  EXPECT_THAT(p.dataset().warnings, ElementsAre(HasSubstr("have the key 'id', which")));
  ASSERT_PREPARED(p.RunText(R"({"prompt":"a","completion":"b"})"));
  EXPECT_EQ(p.dataset().format_reason, "the first record has the keys 'prompt' and 'completion'");
}

TEST(PrepareTest, AutoRefusesAMixture) {
  Prepared p;
  EXPECT_THAT(p.Refusal("{\"text\":\"a\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n"),
              AllOf(HasSubstr("train.jsonl line 2: a record of format prompt_completion"),
                    HasSubstr("before are text")));
  EXPECT_THAT(
      p.Refusal(R"({"text":"a","prompt":"a","completion":"b"})"),
      AllOf(HasSubstr("keys of both text and prompt_completion"), HasSubstr("data.format")));
}

// A record that has no format is a bad record; one of another format is a mixture, whatever
// data.max_errors says.
TEST(PrepareTest, AutoCountsARecordWithoutAFormatAsABadOne) {
  const std::string good = "{\"prompt\":\"a\",\"completion\":\"b\"}\n";
  for (const std::string bad : {"{\"prompt\":\"a\"}\n", "{}\n", "{\"q\":1,\"prompt\":\"a\"}\n",
                                "{\"question\":\"a\",\"answer\":\"b\"}\n"}) {
    SCOPED_TRACE(bad);
    Prepared p;
    EXPECT_THAT(p.Refusal(good + bad + good), HasSubstr("train.jsonl line 2: no format has the"));
    EXPECT_THAT(p.Refusal(bad + good), HasSubstr("train.jsonl line 1: no format has the"));
    p.options.max_bad_records = 1;
    ASSERT_PREPARED(p.RunText(good + bad + good));
    EXPECT_EQ(p.dataset().records, 2);
    EXPECT_EQ(p.dataset().error_records, 1);
    EXPECT_EQ(p.dataset().format, "prompt_completion");
    ASSERT_PREPARED(p.RunText(bad + good));
    EXPECT_EQ(p.dataset().records, 1);
    EXPECT_EQ(p.dataset().format, "prompt_completion");
    EXPECT_THAT(p.Refusal(bad + good + bad),
                AllOf(HasSubstr("2 records cannot be used, more than 1 (data.max_errors)"),
                      HasSubstr("line 1"), HasSubstr("line 3")));
  }
  Prepared p;
  EXPECT_THAT(p.Refusal(good + "{\"prompt\":\"a\",\"x\":1}\n"),
              AllOf(HasSubstr("'prompt', 'x'"), HasSubstr("before are prompt_completion"),
                    Not(HasSubstr("sort the records"))));
  p.options.max_bad_records = 5;
  EXPECT_THAT(p.Refusal(good + "{}\n{\"text\":\"a\"}\n"),
              AllOf(HasSubstr("line 3: a record of format text"), HasSubstr("sort the records")));
  EXPECT_THAT(p.Refusal(good + "{\"prompt\":\"a\",\"completion\":\"b\",\"text\":\"c\"}\n"),
              HasSubstr("line 2: the record has the keys of both text and prompt_completion"));
  EXPECT_THAT(p.Refusal("{}\n{\"a\":1}\n"),
              AllOf(HasSubstr("no record is left to train on"), HasSubstr("line 2")));
}

TEST(PrepareTest, OtherFormatsAreRefusedByName) {
  Prepared p;
  EXPECT_THAT(p.Refusal(R"({"prompt":"a","chosen":"b","rejected":"c"})"),
              HasSubstr("preference pairs"));
  EXPECT_THAT(p.Refusal(R"({"prompt":"a","response":"b"})"), HasSubstr("'completion'"));
  EXPECT_THAT(p.Refusal(R"({"txt":"a"})"), HasSubstr("'txt'"));
  p.options.format = "parquet";
  EXPECT_THAT(p.Refusal(R"({"text":"a"})"), HasSubstr("data format 'parquet' is not supported"));
  p.options.format = "text";
  EXPECT_THAT(p.Refusal("{\"text\":\"a\"}\n{\"txt\":\"a\"}\n"),
              HasSubstr("train.jsonl line 2: no key 'text' (keys: 'txt')"));
}

TEST(PrepareTest, WrongTypesAreNamed) {
  Prepared p;
  EXPECT_THAT(p.Refusal("{\"text\":\"a\"}\n{\"text\":null}\n"),
              HasSubstr("train.jsonl line 2: key 'text' is null where a string is expected"));
  EXPECT_THAT(p.Refusal(R"({"prompt":[],"completion":"b"})"), HasSubstr("'prompt' is a list"));
}

// --- Errors, validation, preview
// ------------------------------------------------------------------

TEST(PrepareTest, BadRecordsMayBeLeftOutUpToALimit) {
  Prepared p;
  p.options.max_bad_records = 2;
  ASSERT_PREPARED(p.RunText("{\"text\":\"a\"}\n{\"text\":1}\n{\"text\":\n"));
  EXPECT_EQ(p.dataset().records, 1);
  EXPECT_EQ(p.dataset().skipped_records, 2);
  EXPECT_EQ(p.dataset().error_records, 2);
  EXPECT_THAT(p.dataset().warnings, Contains(HasSubstr("(lines 2, 3)")));
  EXPECT_THAT(p.Refusal("{\"text\":\"a\"}\n{\"text\":1}\n{\"text\":2}\n{\"text\":3}\n"),
              AllOf(HasSubstr("3 records cannot be used, more than 2 (data.max_errors)"),
                    HasSubstr("line 2"), HasSubstr("line 4")));
}

TEST(PrepareTest, AnEmptyFileIsRefused) {
  Prepared p;
  EXPECT_THAT(p.Refusal(""), HasSubstr("train.jsonl: no records"));
  EXPECT_THAT(p.Refusal("\n\n"), HasSubstr("train.jsonl: no records"));
}

std::string NumberedRows(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) absl::StrAppend(&out, "{\"text\":\"row ", i, "\"}\n");
  return out;
}

TEST(PrepareTest, ValidationByFractionIsDeterministic) {
  Prepared p;
  p.options.validation_fraction = 0.1;
  ASSERT_PREPARED(p.RunText(NumberedRows(200)));
  EXPECT_EQ(p.dataset().records, 180);
  EXPECT_EQ(p.dataset().validation_records, 20);
  const std::vector<int32_t> first = p.report.lengths;
  std::vector<int32_t> held;
  for (int i = 0; i < 20; ++i) held.push_back(p.data->validation(i).ids[5]);
  ASSERT_PREPARED(p.RunText(NumberedRows(200)));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(held[i], p.data->validation(i).ids[5]);
  p.options.seed = 43;
  ASSERT_PREPARED(p.RunText(NumberedRows(200)));
  EXPECT_EQ(p.dataset().validation_records, 20);
  std::vector<int32_t> other;
  for (int i = 0; i < 20; ++i) other.push_back(p.data->validation(i).ids[5]);
  EXPECT_NE(held, other);
}

TEST(PrepareTest, ASmallFractionHoldsOutAtLeastOneAndNeverAll) {
  Prepared p;
  p.options.validation_fraction = 0.01;
  ASSERT_PREPARED(p.RunText(NumberedRows(3)));
  EXPECT_EQ(p.dataset().validation_records, 1);
  EXPECT_EQ(p.dataset().records, 2);
  EXPECT_THAT(p.Refusal(NumberedRows(1)), HasSubstr("no record is left to validate with"));
}

TEST(PrepareTest, ValidationByWhatIsTrainedOnIsTold) {
  Prepared p;
  p.options.validation_name = "held.jsonl";
  p.options.validation_path = p.base().Write("train.jsonl", NumberedRows(3));
  ASSERT_PREPARED(p.RunText(NumberedRows(3)));
  EXPECT_EQ(p.options.train[0].path, p.options.validation_path);
  EXPECT_THAT(p.dataset().warnings, Contains(HasSubstr("says nothing of other records")));
}

TEST(PrepareTest, ValidationFromAFile) {
  Prepared p;
  p.options.validation_path = p.base().Write("held.jsonl", "{\"text\":\"v\"}\n");
  p.options.validation_name = "held.jsonl";
  ASSERT_PREPARED(p.RunText(NumberedRows(3)));
  EXPECT_EQ(p.dataset().records, 3);
  EXPECT_EQ(p.dataset().validation_records, 1);
  EXPECT_EQ(p.data->validation(0).ids[1], 'v');
  p.base().Write("held.jsonl", R"({"prompt":"a","completion":"b"})");
  EXPECT_THAT(p.Refusal(NumberedRows(3)), HasSubstr("held.jsonl line 1"));
  p.base().Write("held.jsonl", "");
  EXPECT_THAT(p.Refusal(NumberedRows(3)), HasSubstr("held.jsonl: no records"));
}

TEST(PrepareTest, PreviewAndHistogram) {
  Prepared p;
  p.options.preview_records = 1;
  ASSERT_PREPARED(
      p.RunText("{\"prompt\":\"a\",\"completion\":\"\xc3\xa9\"}\n"
                "{\"prompt\":\"a\",\"completion\":\"b\"}\n"));
  ASSERT_EQ(p.report.preview.size(), 1u);
  const PreviewRecord& shown = p.report.preview[0];
  EXPECT_EQ(shown.line, 1);
  ASSERT_EQ(shown.tokens.size(), 5u);
  EXPECT_EQ(shown.tokens[0].text, "<|bos|>");
  EXPECT_EQ(shown.tokens[1].text, "a");
  EXPECT_FALSE(shown.tokens[1].supervised);
  EXPECT_EQ(shown.tokens[2].text, "");  // half of a character
  EXPECT_EQ(shown.tokens[3].text, "\xc3\xa9");
  EXPECT_TRUE(shown.tokens[4].supervised);
  EXPECT_THAT(p.report.length_histogram, ElementsAre(0, 0, 2));  // lengths 5 and 4
}

// What is shown as supervised is what is counted: the first token of a record is no target.
TEST(PrepareTest, ThePreviewShowsTargets) {
  Prepared p;
  p.options.preview_records = 5;
  ASSERT_PREPARED(p.RunText("{\"text\":\"ab\"}\n{\"text\":\"c\"}\n"));
  int64_t supervised = 0;
  for (const PreviewRecord& record : p.report.preview) {
    EXPECT_FALSE(record.tokens[0].supervised);
    for (const PreviewToken& token : record.tokens) supervised += token.supervised ? 1 : 0;
  }
  EXPECT_EQ(supervised, p.dataset().supervised_tokens);
  EXPECT_EQ(supervised, 5);  // ab, c and two ends
}

TEST(PrepareTest, ThePreviewShowsCharactersOnceTheyAreWhole) {
  const auto shown = [](Prepared& p, const std::string& text) {
    const auto status = p.RunText(absl::StrCat("{\"text\":\"", text, "\"}\n"));
    std::vector<std::string> out;
    if (!status.ok()) return out;
    for (const PreviewToken& token : p.report.preview[0].tokens) out.push_back(token.text);
    return out;
  };
  Prepared p;
  p.options.preview_records = 1;
  EXPECT_THAT(shown(p, "a\xe6\x97\xa5\xf0\x9f\x98\x80z"),
              ElementsAre("<|bos|>", "a", "", "", "\xe6\x97\xa5", "", "", "", "\xf0\x9f\x98\x80",
                          "z", "<|end|>"));
  // Cut within a character: its bytes come to none.
  p.options.max_length = 4;
  EXPECT_THAT(shown(p, "a\xe6\x97\xa5"),
              ElementsAre("<|bos|>", "a", "\xef\xbf\xbd", "\xef\xbf\xbd"));
}

TEST(PrepareTest, ReportOnlyWritesNothing) {
  Prepared p;
  p.options.output_path.clear();
  p.options.train = {{p.base().Write("train.jsonl", "{\"text\":\"a\"}")}};
  const auto report = PrepareDataset(p.options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->lengths, ElementsAre(3));
}

TEST(PrepareTest, ProgressMayStopIt) {
  Prepared p;
  p.options.train = {{p.base().Write("train.jsonl", NumberedRows(10))}};
  const auto stopped = PrepareDataset(
      p.options, [](absl::string_view stage, int64_t, int64_t) { return stage == "tokenizer"; });
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
}

TEST(PrepareTest, OptionsAreChecked) {
  const auto refused = [](auto change) {
    Prepared p;
    change(p.options);
    return p.Refusal("{\"text\":\"a\"}");
  };
  EXPECT_THAT(refused([](PrepareOptions& o) { o.max_length = 1; }), HasSubstr("max_length is 1"));
  EXPECT_THAT(refused([](PrepareOptions& o) { o.train_on = "x"; }), HasSubstr("train_on is 'x'"));
  EXPECT_THAT(refused([](PrepareOptions& o) { o.validation_fraction = 0.7; }), HasSubstr("0.7"));
  EXPECT_THAT(refused([](PrepareOptions& o) {
                o.validation_fraction = 0.1;
                o.validation_path = "x";
              }),
              HasSubstr("both a fraction and a file"));
}

TEST(PrepareTest, MissingFilesAreNamed) {
  Prepared p;
  p.options.train = {{"/nonexistent/train.jsonl"}};
  EXPECT_EQ(PrepareDataset(p.options).status().code(), absl::StatusCode::kNotFound);
  p.options.tokenizer_dir = "/nonexistent";
  const auto status = PrepareDataset(p.options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace soup::engine
