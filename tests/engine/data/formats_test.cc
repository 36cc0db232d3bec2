// Shapes of records (alpaca, sharegpt, token ids, ...), several sources, records that are too long,
// and faults that other trainers had with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/engine/data/prepared.h"

namespace soup::engine {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Token ids as text: bytes as they are, <|bos|> ^, <|turn|> @, <|end|> $; supervised ones in [].
std::string Said(const Prepared& p, int64_t record = 0) {
  const RecordView view = p.data->train(record);
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < view.ids.size(); ++i) {
    if ((view.supervised[i] != 0) != inside) out += inside ? ']' : '[';
    inside = view.supervised[i] != 0;
    const int32_t id = view.ids[i];
    out += id < 256 ? static_cast<char>(id) : id == 256 ? '^' : id == 257 ? '@' : '$';
  }
  return inside ? out + "]" : out;
}

std::string SaidOf(Prepared& p, absl::string_view line) {
  const absl::Status status = p.RunText(line);
  EXPECT_TRUE(status.ok()) << status;
  return status.ok() ? Said(p) : "";
}

void RemoveTemplate(const Prepared& p) {
  auto config = nlohmann::json::parse(ReadTestFile("cases/_base/bytes/tokenizer_config.json"));
  config.erase("chat_template");
  p.base().Write("tokenizer_config.json", config.dump());
}

// ---- files ----

// Case 09: the same rows as CSV, and words that other readers take for something else.
TEST(PrepareCaseTest, Case09CsvHoldsTheSameRows) {
  Prepared plain, csv;
  ASSERT_PREPARED(plain.RunFile("09-file-bytes/plain.jsonl"));
  ASSERT_PREPARED(csv.RunFile("09-file-bytes/data.csv"));
  ASSERT_EQ(csv.dataset().records, 3);
  EXPECT_EQ(csv.dataset().supervised_tokens, 22);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(csv.Ids(i), plain.Ids(i));
    EXPECT_THAT(csv.Ids(i), Not(Contains(13)));
  }
  EXPECT_EQ(csv.dataset().format, "prompt_completion");
  EXPECT_THAT(csv.dataset().format_reason,
              AllOf(HasSubstr("read as csv because its name ends in .csv"),
                    HasSubstr("'prompt' and 'completion'")));
}

TEST(PrepareCaseTest, Case09CsvWordsAreWords) {
  Prepared p;
  ASSERT_PREPARED(p.RunFile("09-file-bytes/words.csv"));
  EXPECT_EQ(p.dataset().records, 3);
  EXPECT_EQ(p.dataset().supervised_tokens, Expected("09-file-bytes").at("words").at("supervised"));
  EXPECT_EQ(Said(p, 0), "^The word[null$]");
  EXPECT_EQ(Said(p, 1), "^The other word[NA$]");
  EXPECT_EQ(Said(p, 2), "^Two\nlines, one \"cell\"[007$]");
}

TEST(FormatsTest, AJsonArrayIsReadAsItsRecords) {
  Prepared p;
  ASSERT_PREPARED(p.RunText("[{\"text\":\"ab\"},\n {\"text\":\"c\"}]", "t.json"));
  EXPECT_EQ(Said(p, 0), "[^ab$]");
  EXPECT_EQ(Said(p, 1), "[^c$]");
  EXPECT_EQ(p.dataset().sources[0].kind, "json");
  ASSERT_PREPARED(p.RunText("{\"version\":1,\"rows\":[{\"text\":\"ab\"}]}", "t.json"));
  EXPECT_EQ(p.dataset().records, 1);
  EXPECT_THAT(p.dataset().warnings, ElementsAre(HasSubstr("'version' beside the records")));
}

TEST(FormatsTest, TheJobMaySayTheKindOfFile) {
  Prepared p;
  p.options.format = "csv";
  ASSERT_PREPARED(p.RunText("text\nab\n", "words"));
  EXPECT_EQ(Said(p), "[^ab$]");
  EXPECT_EQ(p.dataset().format, "text");
}

// ---- alpaca ----

TEST(AlpacaTest, BecomesAUserAndAnAssistantTurn) {
  Prepared p;
  const std::string expected = "^@user\nDo it\nnow$@assistant\n[yes$]";
  EXPECT_EQ(SaidOf(p, R"({"instruction":"Do it","input":"now","output":"yes"})"), expected);
  EXPECT_EQ(p.dataset().format, "alpaca");
  EXPECT_THAT(p.dataset().format_reason,
              AllOf(HasSubstr("'instruction' and 'output'"), HasSubstr("chat template")));
  const std::string without = "^@user\nDo it$@assistant\n[yes$]";
  EXPECT_EQ(SaidOf(p, R"({"instruction":"Do it","input":"","output":"yes"})"), without);
  EXPECT_EQ(SaidOf(p, R"({"instruction":"Do it","input":null,"output":"yes"})"), without);
  EXPECT_EQ(SaidOf(p, R"({"instruction":"Do it","output":"yes"})"), without);
  EXPECT_EQ(SaidOf(p, R"({"instruction":"c","system":"s","history":[["a","b"]],"output":"d"})"),
            "^@system\ns$@user\na$@assistant\n[b$]@user\nc$@assistant\n[d$]");
  EXPECT_THAT(p.Refusal(R"({"instruction":"a","input":7,"output":"b"})"),
              HasSubstr("line 1: key 'input' is an integer"));
  EXPECT_THAT(p.Refusal(R"({"instruction":"a","history":["x"],"output":"b"})"),
              HasSubstr("'history' entry 1"));
}

TEST(AlpacaTest, WithoutAChatTemplateItIsStanfordsPrompt) {
  Prepared p;
  RemoveTemplate(p);
  EXPECT_EQ(SaidOf(p, R"({"instruction":"Do it","input":"","output":"yes"})"),
            "^Below is an instruction that describes a task. Write a response that appropriately "
            "completes the request.\n\n### Instruction:\nDo it\n\n### Response:\n[yes$]");
  EXPECT_THAT(p.dataset().format_reason, HasSubstr("no chat template"));
  EXPECT_EQ(SaidOf(p, R"({"instruction":"Do it","input":"now","output":"yes"})"),
            "^Below is an instruction that describes a task, paired with an input that provides "
            "further context. Write a response that appropriately completes the request.\n\n### "
            "Instruction:\nDo it\n\n### Input:\nnow\n\n### Response:\n[yes$]");
  EXPECT_THAT(p.Refusal(R"({"instruction":"a","system":"s","output":"b"})"),
              HasSubstr("key 'system' needs a chat template"));
}

// ---- sharegpt ----

TEST(SharegptTest, RolesAreMapped) {
  Prepared p;
  EXPECT_EQ(
      SaidOf(p, R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"},)"
                R"({"from":"user","value":"c"},{"from":"assistant","value":"d"}],"system":"s"})"),
      "^@system\ns$@user\na$@assistant\n[b$]@user\nc$@assistant\n[d$]");
  EXPECT_EQ(p.dataset().format, "sharegpt");
  EXPECT_EQ(SaidOf(p, R"({"conversations":[{"role":"user","content":"a"},)"
                      R"({"role":"assistant","content":"b"}]})"),
            "^@user\na$@assistant\n[b$]");
  EXPECT_THAT(
      p.Refusal(R"({"conversations":[{"from":"system","value":"s"},)"
                R"({"from":"human","value":"a"},{"from":"gpt","value":"b"}],"system":"t"})"),
      HasSubstr("key 'system' and a system turn"));
  EXPECT_THAT(
      p.Refusal(R"({"conversations":[{"from":"human","value":"a"},{"from":"bot","value":"b"}]})"),
      AllOf(HasSubstr("line 1: turn 2: 'from' is 'bot'"), HasSubstr("gpt")));
  EXPECT_THAT(p.Refusal(R"({"conversations":[{"from":"gpt","value":null}]})"),
              HasSubstr("turn 1: key 'value' is null"));
  EXPECT_THAT(p.Refusal(R"({"conversations":[{"from":"gpt","value":"a","weight":0}]})"),
              HasSubstr("turn 1: key 'weight'"));
  EXPECT_THAT(p.Refusal(R"({"conversations":[]})"), HasSubstr("an empty list"));
  for (const char* role : {"5", "null"}) {
    EXPECT_THAT(p.Refusal(absl::StrCat(R"({"system":"s","conversations":[{"role":)", role,
                                       R"(,"content":"x"},{"role":"assistant","content":"y"}]})")),
                AllOf(HasSubstr("line 1"), HasSubstr("role")));
  }
}

TEST(SharegptTest, AFunctionCallIsTheToolCallOfTheMessagesFormat) {
  Prepared p("07-tool-turn-null"), messages("07-tool-turn-null");
  ASSERT_PREPARED(messages.RunText(
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,)"
      R"("tool_calls":[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]}]})"));
  EXPECT_EQ(SaidOf(p, R"({"conversations":[{"from":"human","value":"q"},{"from":"function_call",)"
                      R"("value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"}]})"),
            Said(messages));
  EXPECT_THAT(p.Refusal(R"({"conversations":[{"from":"function_call","value":"f 1"}]})"),
              HasSubstr("turn 1: 'value' of a function_call is not JSON"));
}

// ---- token ids ----

TEST(InputIdsTest, AreTakenAsTheyAre) {
  Prepared p;
  EXPECT_EQ(SaidOf(p, R"({"input_ids":[256,97,98,258]})"), "[^ab$]");
  EXPECT_EQ(p.dataset().format, "input_ids");
  EXPECT_THAT(p.dataset().warnings, IsEmpty());
  EXPECT_EQ(SaidOf(p, R"({"input_ids":[256,97,98,258],"labels":[-100,-100,98,258],)"
                      R"("attention_mask":[1,1,1,1]})"),
            "^a[b$]");
  EXPECT_EQ(SaidOf(p, R"({"input_ids":[97,98],"labels":null})"), "[ab]");
  EXPECT_THAT(p.dataset().warnings, ElementsAre(HasSubstr("without the BOS token")));
  EXPECT_EQ(SaidOf(p, R"({"input_ids":[256,256,98]})"), "[^^b]");
  EXPECT_THAT(p.dataset().warnings, ElementsAre(HasSubstr("two BOS tokens")));
}

TEST(InputIdsTest, WhatCannotBeIsRefusedWithItsPlace) {
  Prepared p;
  const auto refused = [&p](absl::string_view line) { return p.Refusal(line); };
  EXPECT_THAT(
      refused(R"({"input_ids":[97,264]})"),
      AllOf(HasSubstr("264 at place 1"), HasSubstr("0 to 263"), HasSubstr("another model")));
  EXPECT_THAT(refused(R"({"input_ids":[97,-1]})"), HasSubstr("-1 at place 1"));
  EXPECT_THAT(refused(R"({"input_ids":[97,1.0]})"), HasSubstr("a number at place 1"));
  EXPECT_THAT(refused(R"({"input_ids":[97,true]})"), HasSubstr("a boolean at place 1"));
  EXPECT_THAT(refused(R"({"input_ids":[[97,98]]})"), HasSubstr("a batch of several records?"));
  EXPECT_THAT(refused(R"({"input_ids":[]})"), HasSubstr("empty list"));
  EXPECT_THAT(refused(R"({"input_ids":"97"})"), HasSubstr("a string where a list"));
  EXPECT_THAT(refused(R"({"input_ids":[97,98],"labels":[97]})"),
              HasSubstr("'labels' has 1 places and 'input_ids' has 2"));
  EXPECT_THAT(refused(R"({"input_ids":[97,98,99],"labels":[98,99,-100]})"),
              HasSubstr("shifted by one"));
  EXPECT_THAT(refused(R"({"input_ids":[97,98],"labels":[97,0]})"),
              AllOf(HasSubstr("'labels' has 0 at place 1"), HasSubstr("-100")));
  EXPECT_THAT(refused(R"({"input_ids":[97,98],"attention_mask":[1,0]})"), HasSubstr("padding"));
  EXPECT_THAT(refused(R"({"input_ids":[97,98],"labels":[-100,-100]})"),
              HasSubstr("no supervised token"));
  p.options.train_on = "all";
  EXPECT_THAT(refused(R"({"input_ids":[97,98],"labels":[-100,98]})"),
              HasSubstr("'labels' masks place 0, and data.train_on is all"));
}

// ---- records that are too long ----

TEST(TooLongTest, DroppedOnesAreCounted) {
  Prepared p;
  p.options.max_length = 5;
  p.options.too_long = "drop";
  ASSERT_PREPARED(p.RunText("{\"text\":\"ab\"}\n{\"text\":\"abcdef\"}\n{\"text\":\"abc\"}\n"));
  EXPECT_EQ(p.dataset().records, 2);
  EXPECT_EQ(p.dataset().dropped_records, 1);
  EXPECT_EQ(p.dataset().skipped_records, 1);
  EXPECT_EQ(p.dataset().truncated_records, 0);
  EXPECT_THAT(p.dataset().warnings,
              ElementsAre(AllOf(HasSubstr("longer than 5 tokens"), HasSubstr("(line 2)"))));
  p.options.too_long = "cut";
  EXPECT_THAT(p.Refusal("{\"text\":\"ab\"}"), HasSubstr("known: truncate, drop, split"));
}

TEST(TooLongTest, PiecesHoldEveryTargetOnce) {
  Prepared p;
  p.options.too_long = "split";
  for (int32_t max_length = 2; max_length < 14; ++max_length) {
    p.options.max_length = max_length;
    ASSERT_PREPARED(p.RunText("{\"text\":\"abcdefghij\"}"));
    EXPECT_EQ(p.dataset().supervised_tokens, 11) << max_length;  // a .. j and the end
    EXPECT_EQ(p.dataset().split_records, max_length < 12 ? 1 : 0);
    std::string targets;
    for (int64_t i = 0; i < p.dataset().records; ++i) {
      const RecordView view = p.data->train(i);
      EXPECT_LE(static_cast<int32_t>(view.ids.size()), max_length);
      for (size_t t = 1; t < view.ids.size(); ++t)
        targets += view.ids[t] < 256 ? static_cast<char>(view.ids[t]) : '$';
    }
    EXPECT_EQ(targets, "abcdefghij$") << max_length;
  }
  p.options.max_length = 5;
  ASSERT_PREPARED(p.RunText("{\"text\":\"abcdefg\"}"));
  EXPECT_EQ(Said(p, 0), "[^abcd]");  // BOS in the first piece, the end token in the last
  EXPECT_EQ(Said(p, 1), "d[efg$]");
}

TEST(TooLongTest, PiecesWithoutATargetAreLeftOut) {
  Prepared p;
  p.options.max_length = 4;
  p.options.too_long = "split";
  ASSERT_PREPARED(p.RunText("{\"prompt\":\"abcdefgh\",\"completion\":\"xyz\"}"));
  EXPECT_EQ(p.dataset().supervised_tokens, 4);
  EXPECT_EQ(Said(p, 0), "fgh[x]");
  EXPECT_EQ(Said(p, 1), "x[yz$]");
}

// ---- several sources ----

std::string Rows(absl::string_view letter, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) absl::StrAppend(&out, "{\"text\":\"", letter, i, "\"}\n");
  return out;
}

// How often each text stands among the training records.
std::map<std::string, int> Texts(const Prepared& p) {
  std::map<std::string, int> out;
  for (int64_t i = 0; i < p.dataset().records; ++i) {
    const std::string said = Said(p, i);
    ++out[said.substr(2, said.size() - 4)];
  }
  return out;
}

class Sources {
 public:
  Sources() { p_.options.train.clear(); }
  void Add(const std::string& name, absl::string_view text, double weight,
           const std::string& format = "") {
    p_.options.train.push_back({p_.base().Write(name, text), name, format, weight});
  }
  Prepared& p() { return p_; }

 private:
  Prepared p_;
};

TEST(SourcesTest, WeightsSayHowOftenARecordStands) {
  Sources s;
  s.Add("a.jsonl", Rows("a", 10), 1);
  s.Add("b.jsonl", Rows("b", 10), 2);
  s.Add("c.jsonl", Rows("c", 10), 0.3);
  s.Add("d.jsonl", Rows("d", 10), 1.5);
  s.Add("e.jsonl", Rows("e", 10), 0);
  ASSERT_PREPARED(s.p().RunSources());
  const std::map<std::string, int> texts = Texts(s.p());
  std::map<char, int> total;
  for (const auto& [text, times] : texts) {
    total[text[0]] += times;
    if (text[0] == 'a') {
      EXPECT_EQ(times, 1);
    }
    if (text[0] == 'b') {
      EXPECT_EQ(times, 2);
    }
    if (text[0] == 'c') {
      EXPECT_EQ(times, 1);
    }
    if (text[0] == 'd') {
      EXPECT_TRUE(times == 1 || times == 2);
    }
  }
  EXPECT_EQ(total, (std::map<char, int>{{'a', 10}, {'b', 20}, {'c', 3}, {'d', 15}}));
  ASSERT_EQ(s.p().dataset().sources.size(), 5u);
  EXPECT_EQ(s.p().dataset().sources[3].read, 10);
  EXPECT_EQ(s.p().dataset().sources[3].records, 15);
  EXPECT_EQ(s.p().dataset().sources[4].records, 0);
  EXPECT_EQ(s.p().dataset().records, 48);

  // The same again, and others with another seed.
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_EQ(Texts(s.p()), texts);
  s.p().options.seed = 43;
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_NE(Texts(s.p()), texts);
}

TEST(SourcesTest, AWeightThatComesToNoRecordIsTold) {
  Sources s;
  s.Add("a.jsonl", Rows("a", 4), 0.01);
  s.Add("b.jsonl", Rows("b", 4), 1);
  s.Add("c.jsonl", Rows("c", 4), 0);  // as asked for
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_EQ(s.p().dataset().records, 4);
  EXPECT_THAT(s.p().dataset().warnings,
              ElementsAre(AllOf(HasSubstr("a.jsonl: its weight 0.01 of 4 record(s)"),
                                HasSubstr("no record of it is trained on"))));
  EXPECT_EQ(s.p().dataset().format, "text");
  EXPECT_EQ(s.p().dataset().format_reason,
            "a.jsonl: no record of it is used; b.jsonl: the first record has the key 'text'; "
            "c.jsonl: no record of it is used");

  s.p().options.train[0].weight = 0.5;
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_EQ(s.p().dataset().records, 6);
  EXPECT_THAT(s.p().dataset().warnings, IsEmpty());

  // Held out is not trained on.
  s.p().options.train[0].weight = 0.01;
  s.p().options.validation_fraction = 0.25;
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_EQ(s.p().dataset().sources[0].validation_records, 1);
  EXPECT_THAT(s.p().dataset().warnings, ElementsAre(HasSubstr("a.jsonl: its weight 0.01")));
}

TEST(SourcesTest, EachHasAFormatOfItsOwn) {
  Sources s;
  s.Add("a.jsonl", "{\"text\":\"x\"}\n", 1);
  s.Add("b.csv", "instruction,output\ndo,done\n", 1);
  s.Add("c.json", "[{\"text\":\"t\",\"prompt\":\"p\",\"completion\":\"c\"}]", 1,
        "prompt_completion");
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_EQ(Said(s.p(), 0), "[^x$]");
  EXPECT_EQ(Said(s.p(), 1), "^@user\ndo$@assistant\n[done$]");
  EXPECT_EQ(Said(s.p(), 2), "^p[c$]");
  EXPECT_EQ(s.p().dataset().format, "text, alpaca, prompt_completion");
  EXPECT_THAT(s.p().dataset().format_reason,
              AllOf(HasSubstr("a.jsonl: the first record has the key 'text'"),
                    HasSubstr("b.csv: read as csv"), HasSubstr("the job says so")));
}

TEST(SourcesTest, HeldOutRecordsAreNeverTrainedOn) {
  Sources s;
  s.Add("a.jsonl", Rows("a", 40), 3);
  s.Add("b.jsonl", Rows("b", 20), 0.5);
  s.p().options.validation_fraction = 0.1;
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_EQ(s.p().dataset().validation_records, 4 + 2);
  const std::map<std::string, int> texts = Texts(s.p());
  for (int64_t i = 0; i < 6; ++i) {
    const auto ids = s.p().data->validation(i).ids;
    std::string text;
    for (size_t t = 1; t + 1 < ids.size(); ++t) text += static_cast<char>(ids[t]);
    EXPECT_EQ(texts.count(text), 0u) << text;
  }
  for (const auto& [text, times] : texts)
    if (text[0] == 'a') {
      EXPECT_EQ(times, 3);
    }
}

TEST(SourcesTest, ErrorsNameTheirFileAndCountTogether) {
  Sources s;
  s.Add("a.jsonl", "{\"text\":\"x\"}\n{\"text\":1}\n", 1);
  s.Add("b.jsonl", "{\"text\":2}\n{\"text\":\"y\"}\n", 1, "text");
  EXPECT_THAT(std::string(s.p().RunSources().message()), HasSubstr("a.jsonl line 2"));
  s.p().options.max_bad_records = 1;
  EXPECT_THAT(std::string(s.p().RunSources().message()),
              AllOf(HasSubstr("2 records cannot be used, more than 1"), HasSubstr("a.jsonl line 2"),
                    HasSubstr("b.jsonl line 1")));
  s.p().options.max_bad_records = 2;
  ASSERT_PREPARED(s.p().RunSources());
  EXPECT_EQ(s.p().dataset().error_records, 2);
  EXPECT_EQ(s.p().dataset().sources[1].error_records, 1);
  s.p().options.train[0].weight = -1;
  EXPECT_THAT(std::string(s.p().RunSources().message()), HasSubstr("weight of a.jsonl is -1"));
}

// ---- faults that other trainers had ----

// More than one error is told, so that a file is not mended a line a run.
TEST(FaultsTest, SeveralErrorsAreToldAtOnce) {
  Prepared p;
  std::string rows = "{\"text\":\"a\"}\n";
  for (int i = 0; i < 50; ++i) rows += "{\"text\":7}\n";
  EXPECT_THAT(p.Refusal(rows), AllOf(HasSubstr("at least 5 records"), HasSubstr("line 2"),
                                     HasSubstr("line 6"), Not(HasSubstr("line 7"))));
}

TEST(FaultsTest, EmptyTextsAreSkippedAndEmptyAnswersTold) {
  Prepared p;
  ASSERT_PREPARED(p.RunText("{\"text\":\"\"}\n{\"text\":\"a\"}\n"));
  EXPECT_EQ(p.dataset().records, 1);
  EXPECT_EQ(p.dataset().skipped_records, 1);
  EXPECT_THAT(p.dataset().warnings, Contains(HasSubstr("empty text")));
  EXPECT_EQ(SaidOf(p, R"({"prompt":"q","completion":""})"), "^q[$]");
  EXPECT_THAT(p.dataset().warnings, Contains(HasSubstr("empty answer")));
  EXPECT_EQ(SaidOf(p, R"({"prompt":"","completion":"a"})"), "^[a$]");
}

// A space or line break at the join belongs to the side it stands on; nothing is trimmed or added.
TEST(FaultsTest, WhiteSpaceIsKeptWhereItStands) {
  Prepared p;
  EXPECT_EQ(SaidOf(p, R"({"prompt":"q ","completion":" a\n"})"), "^q [ a\n$]");
  EXPECT_EQ(SaidOf(p, R"({"text":"  a\r\n\tb  "})"), "[^  a\r\n\tb  $]");
  EXPECT_EQ(SaidOf(p, R"({"text":"a\u0000b"})"), std::string("[^a\0b$]", 7));
}

// An end token that is also the padding token is trained like any other.
TEST(FaultsTest, TheEndTokenIsSupervisedAlsoWhenItIsThePadToken) {
  Prepared p;
  auto config = nlohmann::json::parse(ReadTestFile("cases/_base/bytes/tokenizer_config.json"));
  config["pad_token"] = config["eos_token"];
  p.base().Write("tokenizer_config.json", config.dump());
  EXPECT_EQ(SaidOf(p, R"({"prompt":"q","completion":"a"})"), "^q[a$]");
  EXPECT_EQ(SaidOf(p, R"({"messages":[{"role":"user","content":"q"},)"
                      R"({"role":"assistant","content":"a"}]})"),
            "^@user\nq$@assistant\n[a$]");
}

TEST(FaultsTest, AConversationWithoutAnAssistantIsSkipped) {
  Prepared p;
  EXPECT_THAT(p.Refusal(R"({"messages":[{"role":"user","content":"q"}]})"),
              AllOf(HasSubstr("no record is left to train on"), HasSubstr("no supervised token")));
}

// A template that writes a system prompt of its own where a conversation has none.
TEST(FaultsTest, ADefaultSystemPromptIsNeverTrainedOn) {
  Prepared p;
  auto config = nlohmann::json::parse(ReadTestFile("cases/_base/bytes/tokenizer_config.json"));
  config["chat_template"] =
      "{{ bos_token }}{% if messages[0]['role'] != 'system' %}<|turn|>system\nBe kind.<|end|>"
      "{% endif %}{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>"
      "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}";
  p.base().Write("tokenizer_config.json", config.dump());
  EXPECT_EQ(SaidOf(p, R"({"messages":[{"role":"user","content":"q"},)"
                      R"({"role":"assistant","content":"Be kind."}]})"),
            "^@system\nBe kind.$@user\nq$@assistant\n[Be kind.$]");
}

TEST(FaultsTest, EveryAssistantTurnIsTrainedAndNoOtherWord) {
  Prepared p;
  EXPECT_EQ(
      SaidOf(p, R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},)"
                R"({"role":"assistant","content":"b"},{"role":"user","content":"b"},)"
                R"({"role":"assistant","content":"b"},{"role":"user","content":"c"}]})"),
      "^@system\ns$@user\na$@assistant\n[b$]@user\nb$@assistant\n[b$]@user\nc$");
}

// Nothing of a file decides how another of the same rows is read.
TEST(FaultsTest, RowsAreTheSameHoweverTheFileIsWritten) {
  Prepared jsonl, other;
  const std::vector<std::string> rows = {R"({"prompt":"a","completion":"b"})",
                                         R"({"prompt":"c, d","completion":"\"e\"\nf"})"};
  ASSERT_PREPARED(jsonl.RunText(absl::StrJoin(rows, "\n")));
  const auto same = [&](const std::string& text, const std::string& name) {
    SCOPED_TRACE(name + ": " + text);
    const absl::Status status = other.RunText(text, name);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(other.dataset().records, 2);
    for (int64_t i = 0; i < 2; ++i) EXPECT_EQ(Said(other, i), Said(jsonl, i));
  };
  same("\xef\xbb\xbf" + absl::StrJoin(rows, "\r\n") + "\r\n\r\n", "t.jsonl");
  same("[" + absl::StrJoin(rows, ",") + "]", "t.json");
  same("[\r\n  " + absl::StrJoin(rows, ",\r\n  ") + "\r\n]\r\n", "t.json");
  same("{\"rows\": [" + absl::StrJoin(rows, ",") + "]}", "t.json");
  same("prompt,completion\na,b\n\"c, d\",\"\"\"e\"\"\nf\"\n", "t.csv");
  same("prompt,completion\r\na,b\r\n\"c, d\",\"\"\"e\"\"\r\nf\"", "t.csv");
  same("completion\tprompt\nb\ta\n\"\"\"e\"\"\nf\"\tc, d\n", "t.tsv");
}

}  // namespace
}  // namespace soup::engine
