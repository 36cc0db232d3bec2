#include "engine/data/chat_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/data/json_value.h"
#include "tests/engine/data/chat_test_util.h"
#include "tests/engine/data/data_test_util.h"

namespace soup::engine {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Three turns, two of them the assistant's.
constexpr char kThreeTurns[] =
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello, you."},
{"role":"user","content":"Go on"},{"role":"assistant","content":"Bye\nnow"}]})";

struct Manner {
  const char* name;
  const char* chat_template;
  std::vector<std::string> added;
  std::vector<std::string> supervised;  // of kThreeTurns
};

std::vector<Manner> Manners() {
  const std::string word = "Hello, you.", last = "Bye\nnow";
  return {
      {"ChatMl",
       "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' "
       "+ "
       "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif "
       "%}",
       {"<|im_start|>", "<|im_end|>"},
       {word + "<|im_end|>", last + "<|im_end|>"}},
      {"Llama2",
       "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + "
       "m.content.strip() "
       "+ ' [/INST]' }}{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}",
       {"<s>", "</s>"},
       // No generation prompt: from where the turn's rendering depends on what it says.
       {word + " </s>", last + " </s>"}},
      {"Llama3",
       "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
       "'<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}{% if "
       "add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif "
       "%}",
       {"<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       {word + "<|eot_id|>", last + "<|eot_id|>"}},
      {"Mistral",
       "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + "
       "'[/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
       {"<s>", "</s>", "[INST]", "[/INST]"},
       {word + "</s>", last + "</s>"}},
      {"Gemma",
       "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else "
       "m.role %}{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% "
       "endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
       {"<s>", "<start_of_turn>", "<end_of_turn>"},
       {word + "<end_of_turn>", last + "<end_of_turn>"}},
      {"Phi",  // ends every conversation in one more token
       "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor "
       "%}{% "
       "if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ '<|endoftext|>' }}{% endif "
       "%}",
       {"<|user|>", "<|assistant|>", "<|endoftext|>"},  // <|end|> is a token of the base
       {word + "<|end|>", last + "<|end|>"}},
      {"QwenThinking",  // an empty block before the last turn, none before earlier ones
       "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}{{ "
       "'<|im_start|>assistant"
       "\n<think>\n\n</think>\n\n' + m.content + '<|im_end|>\n' }}{% else %}{{ '<|im_start|>' + "
       "m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}{% if "
       "add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
       {"<|im_start|>", "<|im_end|>"},
       {word + "<|im_end|>", "<think>\n\n</think>\n\n" + last + "<|im_end|>"}},
      {"Generation",
       "{% for m in messages %}<|turn|>{{ m.role }}:{% if m.role == 'assistant' %}{% generation "
       "%}{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{% "
       "endfor %}",
       {},
       {word + "<|end|>", last + "<|end|>"}},
  };
}

class ChatManner : public ::testing::TestWithParam<Manner> {};

TEST_P(ChatManner, TheAssistantsWordsAndTheirEndTokenAreSupervised) {
  Chat chat(GetParam().chat_template, GetParam().added);
  EXPECT_EQ(chat.Supervised(kThreeTurns), GetParam().supervised) << chat.Text();
  EXPECT_THAT(chat.notices(), IsEmpty());
}

// As the fine-tuning files of chat APIs mark a turn that is only context.
TEST_P(ChatManner, ATurnOfWeightZeroIsContextOnly) {
  Chat chat(GetParam().chat_template, GetParam().added);
  const auto weighed = [](const char* first, const char* last) {
    return absl::StrReplaceAll(kThreeTurns,
                               {{"Hello, you.\"", absl::StrCat("Hello, you.\",\"weight\":", first)},
                                {"Bye\\nnow\"", absl::StrCat("Bye\\nnow\",\"weight\":", last)}});
  };
  chat.Supervised(kThreeTurns);
  const std::string text = chat.Text();
  EXPECT_THAT(chat.Supervised(weighed("0", "1")), ElementsAre(GetParam().supervised[1]));
  EXPECT_EQ(chat.Text(), text) << "no template sees a weight";
  EXPECT_THAT(chat.Supervised(weighed("1.0", "0")), ElementsAre(GetParam().supervised[0]));
  EXPECT_THAT(chat.Supervised(weighed("0", "0.0")), IsEmpty());
  EXPECT_THAT(chat.notices(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatManner, ::testing::ValuesIn(Manners()),
                         [](const auto& info) { return std::string(info.param.name); });

Chat ChatMl(bool all = false) { return Chat(Manners()[0].chat_template, Manners()[0].added, all); }

TEST(ChatEncoderTest, AWeightThatCannotBeObeyedIsRefused) {
  constexpr char kWeighed[] =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":0}]})";
  EXPECT_THAT(ChatMl(/*all=*/true).Supervised(kWeighed),
              ElementsAre(HasSubstr("data.train_on is all")));
  Chat two(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% generation %}<|end|>{% endgeneration %}{% else %}{{ m.content }}"
      "{% endif %}{% endfor %}",
      {});
  EXPECT_THAT(two.Supervised(kWeighed), ElementsAre(HasSubstr("generation blocks are not one")));
}

TEST(ChatEncoderTest, TrainOnAllSupervisesEverything) {
  Chat chat = ChatMl(/*all=*/true);
  const auto runs = chat.Supervised(kThreeTurns);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0], chat.Text());
}

TEST(ChatEncoderTest, TheTurnIsTokenisedApartFromItsHeader) {
  // ":Y" is a token; in one text it would swallow the header's end.
  auto json = nlohmann::json::parse(ReadTestFile("cases/_base/bytes/tokenizer.json"));
  json["model"]["vocab"][":Y"] = 300;
  json["model"]["merges"] = nlohmann::json::array({": Y"});
  const auto tokenizer = Tokenizer::Create(json.dump(), "t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  TokenizerConfig config;
  config.chat_template = config.tool_template =
      "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if "
      "add_generation_prompt %}assistant:{% endif %}";
  const auto chat = ChatEncoder::Create(tokenizer->get(), config, false);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EncodeContext context;
  TokenRecord record;
  std::vector<std::string> notices;
  const auto value = ParseJsonValue(
      R"({"messages":[{"role":"user","content":"Yo"},{"role":"assistant","content":"Yes"}]})");
  ASSERT_TRUE((*chat)->Encode(*value, &context, &record, &notices).ok());
  const std::vector<int32_t> tail(record.ids.end() - 5, record.ids.end());
  EXPECT_THAT(tail, ElementsAre(':', 'Y', 'e', 's', 258));
  EXPECT_EQ(std::count(record.supervised.begin(), record.supervised.end(), 1), 4);
  EXPECT_THAT(record.ids, Contains(300));  // within the user's text it is merged
}

constexpr char kQwenTools[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for c in "
    "m.tool_calls "
    "or [] %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}{{ '<tool_call>\n{\"name\": "
    "\"' "
    "+ c.function.name + '\", \"arguments\": ' + c.function.arguments | tojson + '}\n</tool_call>' "
    "}}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}";

TEST(ChatEncoderTest, ToolCallsAreSupervisedWhole) {
  Chat chat(kQwenTools, {"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"});
  const std::string record =
      R"({"messages":[{"role":"user","content":"Oslo?"},{"role":"assistant","content":CONTENT,
"tool_calls":[{"type":"function","function":{"name":"weather","arguments":{"city":"Oslo"}}}]},
{"role":"tool","content":"3 C"},{"role":"assistant","content":"Cold."}]})";
  const std::string call =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
  for (const char* content : {"\"\"", "null"}) {
    EXPECT_THAT(chat.Supervised(absl::StrReplaceAll(record, {{"CONTENT", content}})),
                ElementsAre(call + "<|im_end|>", "Cold.<|im_end|>"))
        << content;
  }
  EXPECT_THAT(chat.Supervised(absl::StrReplaceAll(record, {{"CONTENT", "\"Let me see.\""}})),
              ElementsAre("Let me see.\n" + call + "<|im_end|>", "Cold.<|im_end|>"));
  // A template that knows nothing of tool calls would lose them without a word.
  Chat deaf = ChatMl();
  EXPECT_THAT(
      deaf.Supervised(absl::StrReplaceAll(record, {{"CONTENT", "null"}})),
      ElementsAre(HasSubstr("message 2 (assistant): the chat template drops its tool calls")));
}

constexpr char kCallThenAnswer[] =
    R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"",
"tool_calls":[{"type":"function","function":{"name":"f","arguments":ARGUMENTS}}]},
{"role":"tool","content":"r"},{"role":"assistant","content":"d"}]})";
std::string WithArguments(const char* arguments) {
  return absl::StrReplaceAll(kCallThenAnswer, {{"ARGUMENTS", arguments}});
}

// Half a call would be trained on.
TEST(ChatEncoderTest, CallsThatATemplateDropsInPartAreCaught) {
  const std::string begin =
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% if m.tool_calls %}";
  const std::string end =
      "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}";
  const std::string each = "{% for c in m.tool_calls %}";
  const std::string two =
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"",
"tool_calls":[{"function":{"name":"f","arguments":{"a":1}}},{"function":{"name":"g","arguments":{}}}]}]})";
  Chat first(begin + "{{ m.tool_calls[0].function | tojson }}" + end, {});
  EXPECT_THAT(first.Supervised(two),
              ElementsAre(HasSubstr("drops its tool calls in part: it does not write number 2")));
  const struct {
    const char* calls;
    const char* what;
  } cases[] = {
      {"{{ c.function.name }}", "whose arguments the chat template does not write"},
      {"{{ c.function.arguments | tojson }}", "whose name the chat template does not write"},
  };
  for (const auto& c : cases) {
    for (const bool train_on_all : {false, true}) {
      Chat chat(begin + each + c.calls + "{% endfor %}" + end, {}, train_on_all);
      EXPECT_EQ(chat.Supervised(two).size(), 1u);
      EXPECT_THAT(chat.notices(), Contains(HasSubstr(c.what)));
    }
  }
  Chat whole(begin + each + "{{ c.function | tojson }}{% endfor %}" + end, {});
  EXPECT_THAT(
      whole.Supervised(two),
      ElementsAre(R"({"name": "f", "arguments": {"a": 1}}{"name": "g", "arguments": {}}<|end|>)"));
  Chat picky(begin + each +
                 "{% if c.function.name not in ['f', 'g'] %}{{ raise_exception('no') }}"
                 "{% endif %}{{ c.function | tojson }}{% endfor %}" +
                 end,
             {});
  EXPECT_THAT(picky.Supervised(two), ElementsAre(HasSubstr("\"g\"")));
  for (const char* gone : {R"("name":"g",)", R"(,"arguments":{}})"}) {
    const std::string half = absl::StrReplaceAll(two, {{gone, gone[0] == ',' ? "}" : ""}});
    EXPECT_THAT(whole.Supervised(half), ElementsAre(HasSubstr("tool call 2 has no '")));
  }
}

// A template that tells texts from objects gets the texts, as it would in transformers.
TEST(ChatEncoderTest, ArgumentsThatAreTextsAreWrittenAsTheyAreWhereTheTemplateKnowsThem) {
  const std::string begin =
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] "
      "%}<call>{{ c.function.name }} ";
  const std::string end =
      "</call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% "
      "endif %}";
  const std::string knows =
      "{% if c.function.arguments is string %}{{ c.function.arguments }}{% "
      "else %}{{ c.function.arguments | tojson }}{% endif %}";
  Chat both(begin + knows + end, {});
  EXPECT_THAT(both.Supervised(WithArguments(R"("{\"n\":1e2, \"c\":\"\\u00c5\"}")")),
              ElementsAre(R"(<call>f {"n":1e2, "c":"\u00c5"}</call><|end|>)", "d<|end|>"));
  EXPECT_THAT(both.Supervised(WithArguments(R"({"n":1e2})")),
              ElementsAre(R"(<call>f {"n": 100.0}</call><|end|>)", "d<|end|>"));
  // Encoded once more is not as it is, even where it looks so.
  Chat json(begin + "{{ c.function.arguments | tojson }}" + end, {});
  EXPECT_THAT(json.Supervised(WithArguments(R"("{\"n\":1}")")),
              ElementsAre(R"(<call>f {"n": 1}</call><|end|>)", "d<|end|>"));
  EXPECT_THAT(json.Supervised(WithArguments(R"("{}")")),
              ElementsAre("<call>f {}</call><|end|>", "d<|end|>"));
}

// An empty answer in the place of a call would be trained on.
TEST(ChatEncoderTest, CallsThatAMarkedTemplateDropsAreCaught) {
  const std::string header =
      "{% for m in messages %}<|turn|>{{ m.role }}:{% if m.role == "
      "'assistant' %}";
  const std::string rest = "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}";
  Chat drops(header + "{% generation %}{{ m.content }}<|end|>{% endgeneration %}" + rest, {});
  EXPECT_THAT(drops.Supervised(WithArguments(R"({"a":1})")),
              ElementsAre(HasSubstr("message 2 (assistant): the chat template drops its tool")));
  const std::string call = "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}";
  Chat outside(header + call + "{% generation %}{{ m.content }}<|end|>{% endgeneration %}" + rest,
               {});
  EXPECT_THAT(outside.Supervised(WithArguments(R"({"a":1})")), ElementsAre("<|end|>", "d<|end|>"));
  EXPECT_THAT(outside.notices(), Contains(HasSubstr("tool calls that stand outside")));
  // Turns with calls are not marked at all; without calls they would be.
  const std::string silent =
      "{% for m in messages %}<|turn|>{{ m.role }}:{% if m.role == 'assistant' and not "
      "m.tool_calls "
      "%}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}" +
      call + "<|end|>{% endif %}{% endfor %}";
  Chat unmarked(silent, {});
  EXPECT_THAT(unmarked.Supervised(WithArguments(R"({"a":1})")), ElementsAre("d<|end|>"));
  EXPECT_THAT(unmarked.notices(), Contains(HasSubstr("tool calls that stand outside")));
  EXPECT_THAT(unmarked.Supervised(R"({"messages":[{"role":"assistant","content":"",
"tool_calls":[{"function":{"name":"f","arguments":{}}}]}]})"),
              ElementsAre(HasSubstr("marks nothing of the conversation")));
  Chat inside(
      header + "{% generation %}" + call + "{{ m.content }}<|end|>{% endgeneration %}" + rest, {});
  EXPECT_THAT(inside.Supervised(WithArguments(R"({"a":1})")),
              ElementsAre(R"({"name": "f", "arguments": {"a": 1}}<|end|>)", "d<|end|>"));
  EXPECT_THAT(inside.notices(), IsEmpty());
  Chat all("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}", {}, /*all=*/true);
  EXPECT_THAT(all.Supervised(WithArguments(R"({"a":1})")), ElementsAre(HasSubstr("tool calls")));
}

TEST(ChatEncoderTest, AMarkedTurnWithoutItsEndTokenIsTold) {
  Chat chat(
      "{% for m in messages %}<|turn|>{{ m.role }}:{% if m.role == 'assistant' %}{% generation "
      "%}{{ m.content }}{% endgeneration %}<|end|>{% else %}{{ m.content }}<|end|>{% endif %}{% "
      "endfor %}",
      {});
  EXPECT_THAT(chat.Supervised(kThreeTurns), ElementsAre("Hello, you.", "Bye\nnow"));
  EXPECT_THAT(chat.notices(), Contains(HasSubstr("does not learn to stop")));
}

// A thinking model's generation prompt opens the block that its answers begin with.
TEST(ChatEncoderTest, WhatTheGenerationPromptWritesOfAnAnswerIsNotSupervised) {
  Chat chat(
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if "
      "add_generation_prompt %}<|turn|>assistant:<think>\n{% endif %}",
      {});
  EXPECT_THAT(chat.Supervised(R"({"messages":[{"role":"user","content":"q"},
{"role":"assistant","content":"<think>\nwell</think>yes"}]})"),
              ElementsAre("well</think>yes<|end|>"));
  EXPECT_THAT(chat.Supervised(R"({"messages":[{"role":"user","content":"q"},
{"role":"assistant","content":"yes"}]})"),
              ElementsAre(HasSubstr("does not begin the turn with its own generation prompt")));
}

// As the last turn ends, so must an earlier one: what follows it there may be the next one's
// header.
TEST(ChatEncoderTest, TheNextTurnsHeaderIsNoEndToken) {
  Chat chat(
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% if m.role == 'assistant' and "
      "loop.last %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt "
      "%}<|turn|>assistant:{% endif %}",
      {"</s>"});
  EXPECT_THAT(chat.Supervised(kThreeTurns), ElementsAre("Hello, you.", "Bye\nnow</s>"));
  EXPECT_THAT(chat.notices(), Contains(HasSubstr("without a token of its own")));
}

// Some templates write arguments as they are and want a text there, others an object.
TEST(ChatEncoderTest, ArgumentsAreWhatTheTemplateWants) {
  const auto template_with = [](const std::string& arguments) {
    return "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or "
           "[] %}{{ " +
           arguments +
           " }}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt "
           "%}<|turn|>assistant:{% endif %}";
  };
  const char* text = R"("{\"city\": \"Oslo\"}")";
  const char* object = R"({"city": "Oslo"})";
  const std::string call = R"({"city": "Oslo"}<|end|>)";
  Chat prints(template_with("c.function.arguments"), {});
  EXPECT_THAT(prints.Supervised(WithArguments(text)), ElementsAre(call, "d<|end|>"));
  EXPECT_THAT(prints.notices(), Not(Contains(HasSubstr("as Python would"))));
  EXPECT_THAT(prints.Supervised(WithArguments(object)),
              ElementsAre("{'city': 'Oslo'}<|end|>", "d<|end|>"));  // as transformers
  EXPECT_THAT(prints.notices(), Contains(HasSubstr("as Python would")));
  Chat adds(template_with("'' + c.function.arguments"), {});
  EXPECT_THAT(adds.Supervised(WithArguments(text)), ElementsAre(call, "d<|end|>"));
  EXPECT_THAT(adds.Supervised(WithArguments(object)), ElementsAre(HasSubstr("'+'")));
  Chat dumps(template_with("c.function.arguments | tojson"), {});
  EXPECT_THAT(dumps.Supervised(WithArguments(text)), ElementsAre(call, "d<|end|>"));
  EXPECT_THAT(dumps.Supervised(WithArguments(object)), ElementsAre(call, "d<|end|>"));
}

TEST(ChatEncoderTest, ATemplateThatTrimsIsCaught) {
  Chat chat(Manners()[2].chat_template, Manners()[2].added);
  EXPECT_THAT(
      chat.Supervised(
          R"({"messages":[{"role":"user","content":" Hi "},{"role":"assistant","content":"Yes.\n"}]})"),
      ElementsAre(AllOf(HasSubstr("message 2 (assistant)"), HasSubstr("white space"))));
  // A user's text may be trimmed: it is not trained on.
  EXPECT_THAT(
      chat.Supervised(
          R"({"messages":[{"role":"user","content":" Hi "},{"role":"assistant","content":"Yes."}]})"),
      ElementsAre("Yes.<|eot_id|>"));
}

TEST(ChatEncoderTest, ATemplateThatMovesOrChangesContentIsCaught) {
  const std::string turn = R"({"messages":[{"role":"user","content":"Hi"},)"
                           R"({"role":"assistant","content":"One two"}]})";
  for (const char* body : {"{{ m.content | upper }}",        // changes
                           "{{ m.content.split(' ')[1] }}",  // drops
                           "{{ m.content.split(' ')[1] }} {{ m.content.split(' ')[0] }}",  // moves
                           "{{ m.content }} {{ m.content }}",  // repeats
                           "x"}) {                             // leaves out
    Chat chat(absl::StrCat("{% for m in messages %}<|turn|>{{ m.role }}:", body,
                           "<|end|>{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% "
                           "endif %}"),
              {});
    const auto runs = chat.Supervised(turn);
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_THAT(runs[0], HasSubstr("message 2 (assistant)")) << body;
  }
}

TEST(ChatEncoderTest, ATurnThatChangesOnceOthersFollowIsCaught) {
  // Early turns lose their thinking: what they rendered to alone is no beginning of the whole.
  Chat chat(
      "{% for m in messages %}<|turn|>{{ m.role }}:{% if loop.last %}{{ m.content }}{% else %}{{ "
      "m.content.split('</think>')[-1] }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt "
      "%}<|turn|>assistant:{% endif %}",
      {});
  const std::string one = R"({"role":"user","content":"Hi"},)"
                          R"({"role":"assistant","content":"<think>a</think>b"})";
  EXPECT_THAT(chat.Supervised(absl::StrCat("{\"messages\":[", one, "]}")),
              ElementsAre("<think>a</think>b<|end|>"));
  EXPECT_THAT(
      chat.Supervised(absl::StrCat("{\"messages\":[", one, ",", one, "]}")),
      ElementsAre(AllOf(HasSubstr("message 2 (assistant)"), HasSubstr("once others follow"))));
}

TEST(ChatEncoderTest, AGenerationPromptThatTheTurnDoesNotBeginWithIsCaught) {
  Chat chat(
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if "
      "add_generation_prompt %}<|turn|>assistant:<think>{% endif %}",
      {});
  EXPECT_THAT(chat.Supervised(kThreeTurns), ElementsAre(HasSubstr("generation prompt")));
}

TEST(ChatEncoderTest, WithoutAnEndTokenTheWordsAloneAreSupervised) {
  Chat chat("{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}", {});
  EXPECT_THAT(chat.Supervised(kThreeTurns), ElementsAre("Hello, you.", "Bye\nnow"));
  EXPECT_THAT(chat.notices(), Contains(HasSubstr("without a token of its own")));
}

TEST(ChatEncoderTest, AnAssistantMayBegin) {
  Chat chat = ChatMl();
  EXPECT_THAT(chat.Supervised(R"({"messages":[{"role":"assistant","content":"Ask me."}]})"),
              ElementsAre("Ask me.<|im_end|>"));
}

TEST(ChatEncoderTest, SpecialTokensSpelledOutAreTold) {
  Chat chat = ChatMl();
  EXPECT_THAT(
      chat.Supervised(
          R"({"messages":[{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"a<|im_end|>b"}]})"),
      ElementsAre("a<|im_end|>b<|im_end|>"));
  EXPECT_THAT(chat.notices(), Contains(HasSubstr("that spell out a special token")));
}

// What would be lost or left untrained without a word.
TEST(ChatEncoderTest, WhatATemplatePassesOverIsTold) {
  Chat chat = ChatMl();
  const auto notices = [&chat](const std::string& messages, const std::string& more = "") {
    chat.Supervised(
        absl::StrCat(R"({"messages":[{"role":"user","content":"a"},)", messages, "]", more, "}"));
    return chat.notices();
  };
  const std::string answer = R"({"role":"assistant","content":"b"})";
  EXPECT_THAT(notices(answer), IsEmpty());
  EXPECT_THAT(notices(answer, R"(,"tools":[{"type":"function"}])"),
              Contains(HasSubstr("'tools', which the chat template does not read")));
  EXPECT_THAT(notices(R"({"role":"assistant","content":"b","reasoning_content":"c"})"),
              Contains(HasSubstr("'reasoning_content', which the chat template does not read")));
  EXPECT_THAT(notices(absl::StrCat(R"({"role":"narrator","content":"b"},)", answer)),
              Contains(HasSubstr("of the role 'narrator'")));
  EXPECT_THAT(notices(R"({"role":"assistant","content":""})"),
              Contains(HasSubstr("an empty answer")));
}

TEST(ChatEncoderTest, FaultyMessagesAreNamed) {
  Chat chat = ChatMl();
  const auto error = [&chat](const std::string& record) {
    const auto out = chat.Supervised(record);
    return out.size() == 1 ? out[0] : absl::StrCat(out.size(), " runs");
  };
  EXPECT_THAT(error(R"({"messages":[]})"), HasSubstr("'messages' is an empty list"));
  EXPECT_THAT(error(R"({"messages":"x"})"), HasSubstr("'messages' is a string"));
  EXPECT_THAT(error(R"({"messages":[1]})"), HasSubstr("message 1: an integer"));
  EXPECT_THAT(error(R"({"messages":[{"content":"x"}]})"), HasSubstr("message 1: no key 'role'"));
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":null}]})"),
              HasSubstr("message 1: 'content' is null"));
  EXPECT_THAT(error(R"({"messages":[{"role":"user"}]})"), HasSubstr("'content' is missing"));
  for (const char* role : {"Assistant", "gpt", "model"}) {
    EXPECT_THAT(error(absl::StrCat(R"({"messages":[{"role":")", role, R"(","content":"x"}]})")),
                AllOf(HasSubstr(role), HasSubstr("message 1"), HasSubstr("'assistant' alone")));
  }
  EXPECT_THAT(
      error(R"({"messages":[{"role":"assistant","content":"","function_call":{"name":"f"}}]})"),
      AllOf(HasSubstr("'function_call'"), HasSubstr("write 'tool_calls'")));
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]})"),
              HasSubstr("a list of parts"));
  EXPECT_THAT(
      error(
          R"({"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{x"}}]}]})"),
      AllOf(HasSubstr("message 1"), HasSubstr("'arguments' is a text that is not JSON")));
  EXPECT_THAT(error(R"({"messages":[{"role":"assistant","content":"x","weight":0.5}]})"),
              HasSubstr("message 1: key 'weight' must be 0 or 1"));
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":"x","weight":0}]})"),
              HasSubstr("message 1: key 'weight' says which turns of the assistant"));
  for (const std::string key : {"train", "training", "loss", "loss_mask"}) {
    EXPECT_THAT(error(absl::StrCat(R"({"messages":[{"role":"assistant","content":"x",")", key,
                                   R"(":false}]})")),
                HasSubstr("key '" + key + "' is not known"));
  }
  std::string long_one = R"({"messages":[)";
  for (int i = 0; i < 1001; ++i) long_one += R"({"role":"assistant","content":"x"},)";
  long_one.back() = ']';
  EXPECT_THAT(error(long_one + "}"), HasSubstr("1001 messages"));
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":"x"}],"tools":3})"),
              HasSubstr("'tools' is an integer"));
}

TEST(ChatEncoderTest, FaultyTemplatesNameLineAndColumn) {
  EXPECT_THAT(Chat("a\n{{ x | nope }}", {}).Supervised(kThreeTurns),
              ElementsAre("chat_template.jinja line 2 column 8: filter 'nope' is not supported"));
  EXPECT_THAT(
      Chat("{% include 'x' %}", {}).Supervised(kThreeTurns),
      ElementsAre("chat_template.jinja line 1 column 4: statement 'include' is not supported"));
  EXPECT_THAT(Chat("{{ raise_exception('roles must alternate') }}", {}).Supervised(kThreeTurns),
              ElementsAre(AllOf(HasSubstr("line 1 column"), HasSubstr("roles must alternate"))));
  EXPECT_THAT(Chat("", {}).Supervised(kThreeTurns), ElementsAre(HasSubstr("has none")));
}

TEST(ChatEncoderTest, ToolsReachTheTemplateAsAListOrAString) {
  Chat chat(
      "{% for t in tools or [] %}{{ t.name }};{% endfor %}{% for m in messages %}{{ m.content "
      "}}<|end|>{% endfor %}",
      {});
  const std::string messages = R"("messages":[{"role":"assistant","content":"x"}])";
  for (const char* tools : {R"([{"name":"f"}])", R"("[{\"name\":\"f\"}]")"}) {
    chat.Supervised(absl::StrCat("{", messages, ",\"tools\":", tools, "}"));
    EXPECT_EQ(chat.Text(), "f;x<|end|>") << tools;
  }
}

}  // namespace
}  // namespace soup::engine
