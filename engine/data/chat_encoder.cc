#include "engine/data/chat_encoder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/status_macros.h"
#include "engine/data/conversation.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/template.h"
#include "engine/data/jinja/text_ops.h"
#include "engine/data/turn_finder.h"

namespace soup::engine {
namespace {

constexpr absl::string_view kRoles[] = {"system", "developer", "user",    "assistant",
                                        "tool",   "ipython",   "function"};
constexpr char kOtherName[] = "another_name";  // of a tool, where it is tried what a name changes
// Keys of messages that many templates have, with one meaning.
constexpr absl::string_view kTemplateKeys[] = {"name", "tool_call_id", "reasoning_content"};

template <size_t N>
bool Holds(const absl::string_view (&list)[N], absl::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

}  // namespace

struct ChatEncoder::Rep {
  const Tokenizer* tokenizer = nullptr;
  bool train_on_all = false;
  std::unique_ptr<jinja::Template> plain, with_tools;
  std::string plain_source, tools_source;
  std::map<std::string, std::string> special_tokens;
  jinja::RenderOptions options;

  const jinja::Template& For(const Conversation& c) const {
    return c.tools.is_none() ? *plain : *with_tools;
  }
  // Whether the template for it names such a key or variable at all.
  bool Names(const Conversation& c, absl::string_view key) const {
    return absl::StrContains(c.tools.is_none() ? plain_source : tools_source, key);
  }
  absl::StatusOr<jinja::Rendering> Render(const Conversation& c, std::vector<Value> messages,
                                          bool generation_prompt) const;
  absl::StatusOr<std::vector<TurnFinder::Turn>> Supervised(const Conversation& c,
                                                           const jinja::Rendering& full,
                                                           std::vector<std::string>* notices) const;
  bool CallsStandOutside(const Conversation& c, const jinja::Rendering& full) const;
  absl::StatusOr<jinja::Rendering> RenderWhole(Conversation* c,
                                               std::vector<std::string>* notices) const;
  void NoticeMarked(const Conversation& c, const jinja::Rendering& full,
                    std::vector<std::string>* notices) const;
  void NoticeKey(const Conversation& c, const std::string& key,
                 std::vector<std::string>* notices) const;
  void Notice(const Conversation& c, const std::string& full,
              std::vector<std::string>* notices) const;
};

// The variables are those that transformers' apply_chat_template gives.
absl::StatusOr<jinja::Rendering> ChatEncoder::Rep::Render(const Conversation& c,
                                                          std::vector<Value> messages,
                                                          bool generation_prompt) const {
  Value::Items variables;
  SOUP_ASSIGN_OR_RETURN(Value list, Value::List(std::move(messages)));
  variables.emplace_back("messages", std::move(list));
  variables.emplace_back("tools", c.tools);
  variables.emplace_back("documents", Value::None());
  variables.emplace_back("add_generation_prompt", Value::Bool(generation_prompt));
  for (const auto& [name, token] : special_tokens)
    variables.emplace_back(name, Value::String(token));
  return For(c).Render(variables, options);
}

namespace {

std::vector<std::string> MarkedTexts(const jinja::Rendering& rendering) {
  std::vector<std::string> texts;
  for (const auto& [begin, end] : rendering.generation)
    texts.push_back(rendering.text.substr(begin, end - begin));
  return texts;
}

std::vector<Value> ValuesOf(const Conversation& c) {
  std::vector<Value> messages;
  for (const Message& m : c.messages) messages.push_back(m.value);
  return messages;
}

const Value* ArgumentsOf(const Value& call) {
  const Value* function = call.Find("function");
  return (function != nullptr && function->is_dict() ? *function : call).Find("arguments");
}

// Whether a rendering has all arguments that are texts as they were written, none encoded once
// more: its template knows of such texts.
bool WritesTexts(const Conversation& c, const std::string& text) {
  for (const Message& m : c.messages) {
    for (const Value& call : CallsOf(m)) {
      const Value* arguments = ArgumentsOf(call);
      if (arguments == nullptr || !arguments->is_string()) continue;
      jinja::Budget budget(int64_t{1} << 20, int64_t{1} << 26);
      const absl::StatusOr<std::string> encoded = jinja::ToJson(*arguments, {}, &budget);
      if (!encoded.ok() || absl::StrContains(text, *encoded) ||
          !absl::StrContains(text, arguments->AsString())) {
        return false;
      }
    }
  }
  return true;
}

// Calls `visit` for every text within a value.
void EachText(const Value& value, const std::function<void(const std::string&)>& visit) {
  if (value.is_string()) visit(value.AsString());
  if (value.is_list()) {
    for (const Value& item : value.AsList()) EachText(item, visit);
  }
  if (value.is_dict()) {
    for (const auto& [key, member] : value.AsDict()) {
      visit(key);
      EachText(member, visit);
    }
  }
}

// Whether the arguments of a tool call stand in a text as Python prints an object: a template that
// writes them as they are, and wants a text of JSON there.
bool PrintsArguments(const Conversation& c, const std::string& text) {
  for (const Message& m : c.messages) {
    for (const Value& call : CallsOf(m)) {
      const Value* arguments = ArgumentsOf(call);
      if (arguments == nullptr || arguments->AsDict().empty()) continue;
      // No longer than the text that it would stand in.
      jinja::Budget budget(int64_t{1} << 20, static_cast<int64_t>(text.size()) + (1 << 16));
      const absl::StatusOr<std::string> printed = jinja::ToRepr(*arguments, &budget);
      if (printed.ok() && absl::StrContains(text, *printed)) return true;
    }
  }
  return false;
}

}  // namespace

// The conversation rendered. Arguments of tool calls that are written as texts are texts where the
// template writes those as they are, or cannot do with objects: in *c from then on.
absl::StatusOr<jinja::Rendering> ChatEncoder::Rep::RenderWhole(
    Conversation* c, std::vector<std::string>* notices) const {
  Conversation texts = *c;
  bool any = false;
  for (Message& m : texts.messages) {
    if (m.with_text_arguments.is_none()) continue;
    m.value = m.with_text_arguments;
    any = true;
  }
  absl::StatusOr<jinja::Rendering> of_texts = absl::NotFoundError("no arguments are texts");
  if (any) of_texts = Render(texts, ValuesOf(texts), false);
  if (of_texts.ok() && WritesTexts(texts, of_texts->text)) {
    *c = std::move(texts);
    return of_texts;
  }
  absl::StatusOr<jinja::Rendering> full = Render(*c, ValuesOf(*c), false);
  const bool printed = full.ok() && PrintsArguments(*c, full->text);
  if (full.ok() && !printed) return full;
  if (of_texts.ok()) {
    *c = std::move(texts);
    return of_texts;
  }
  if (printed) {
    notices->push_back(
        "record(s) have arguments of tool calls that the chat template prints as Python would, not "
        "as JSON; write them as a text of JSON");
  }
  return full;
}

// Without the turns that have weight 0. `turns`: the assistant's, in order.
absl::StatusOr<std::vector<TurnFinder::Turn>> Weighed(const Conversation& c,
                                                      std::vector<TurnFinder::Turn> turns) {
  std::vector<bool> trained;
  for (const Message& m : c.messages) {
    if (m.role == "assistant") trained.push_back(m.trained);
  }
  if (std::find(trained.begin(), trained.end(), false) == trained.end()) return turns;
  if (trained.size() != turns.size()) {
    return absl::InvalidArgumentError(
        "a message has weight 0, but the chat template's generation blocks are not one a turn of "
        "the assistant, so it cannot be told which to leave out");
  }
  std::vector<TurnFinder::Turn> out;
  for (size_t i = 0; i < turns.size(); ++i) {
    if (trained[i]) out.push_back(turns[i]);
  }
  return out;
}

absl::StatusOr<std::vector<TurnFinder::Turn>> ChatEncoder::Rep::Supervised(
    const Conversation& c, const jinja::Rendering& full, std::vector<std::string>* notices) const {
  if (train_on_all && std::any_of(c.messages.begin(), c.messages.end(),
                                  [](const Message& m) { return !m.trained; })) {
    return absl::InvalidArgumentError(
        "a message has weight 0, but data.train_on is all; use train_on: responses");
  }
  const TurnFinder finder(c, full.text, *tokenizer,
                          [this, &c](const std::vector<Value>& messages,
                                     bool generation_prompt) -> absl::StatusOr<std::string> {
                            SOUP_ASSIGN_OR_RETURN(jinja::Rendering r,
                                                  Render(c, messages, generation_prompt));
                            return std::move(r.text);
                          });
  if (train_on_all) {
    SOUP_RETURN_IF_ERROR(finder.CheckCallsAreWritten(notices));
    return std::vector<TurnFinder::Turn>{{{0, full.text.size()}, 0}};
  }
  if (!For(c).has_generation_blocks()) {
    SOUP_ASSIGN_OR_RETURN(std::vector<TurnFinder::Turn> turns, finder.Find(notices));
    return Weighed(c, std::move(turns));
  }
  std::vector<MatchSpan> spans;
  std::vector<TurnFinder::Turn> out;
  for (const auto& [begin, end] : full.generation) {
    spans.push_back({begin, end});
    out.push_back({{begin, end}, begin});
  }
  SOUP_RETURN_IF_ERROR(finder.CheckMarked(
      spans, [&](const std::vector<Value>& messages) -> absl::StatusOr<std::vector<std::string>> {
        SOUP_ASSIGN_OR_RETURN(const jinja::Rendering r, Render(c, messages, false));
        return MarkedTexts(r);
      }));
  SOUP_RETURN_IF_ERROR(finder.CheckCallsAreWritten(notices));
  NoticeMarked(c, full, notices);
  return Weighed(c, std::move(out));
}

// Another name in a call, and what is marked stays the same though the text does not.
bool ChatEncoder::Rep::CallsStandOutside(const Conversation& c,
                                         const jinja::Rendering& full) const {
  const std::vector<Value> messages = ValuesOf(c);
  for (size_t i = 0; i < messages.size(); ++i) {
    for (size_t call = 0; call < CallsOf(c.messages[i]).size(); ++call) {
      const absl::StatusOr<Value> other =
          WithOtherCall(c.messages[i], call, CallPart::kName, kOtherName);
      if (!other.ok() || other->is_none()) continue;
      std::vector<Value> changed = messages;
      changed[i] = *other;
      const absl::StatusOr<jinja::Rendering> rendered = Render(c, std::move(changed), false);
      if (rendered.ok() && rendered->text != full.text &&
          MarkedTexts(*rendered) == MarkedTexts(full)) {
        return true;
      }
    }
  }
  return false;
}

// What generation blocks leave out that the model has to write: the token that ends a turn, where
// there is a block a turn, and tool calls.
void ChatEncoder::Rep::NoticeMarked(const Conversation& c, const jinja::Rendering& full,
                                    std::vector<std::string>* notices) const {
  const auto turns = std::count_if(c.messages.begin(), c.messages.end(),
                                   [](const Message& m) { return m.role == "assistant"; });
  std::vector<std::pair<size_t, size_t>> ends(full.generation.begin(), full.generation.end());
  if (static_cast<int64_t>(ends.size()) != turns && !ends.empty()) ends = {ends.back()};
  const auto blank = [](absl::string_view text) {
    return jinja::Strip(text, std::nullopt, true, true).empty();
  };
  bool endless = false;
  for (const auto& [begin, end] : ends) {
    const absl::string_view text = absl::string_view(full.text).substr(begin, end - begin);
    const std::vector<AddedSpan> tokens = tokenizer->FindAddedTokens(text);
    endless |= tokens.empty() || !blank(text.substr(tokens.back().end));
  }
  if (endless) {
    notices->push_back(
        "record(s) have assistant turns whose generation block in the chat template ends without a "
        "token; the model does not learn to stop there");
  }
  if (CallsStandOutside(c, full)) {
    notices->push_back(
        "record(s) have tool calls that stand outside the chat template's generation blocks; they "
        "are not trained on");
  }
}

// A key beside role and content. Those that it would not hurt to lose are passed over.
void ChatEncoder::Rep::NoticeKey(const Conversation& c, const std::string& key,
                                 std::vector<std::string>* notices) const {
  const std::string shown =
      absl::StrCat("record(s) have messages with the key '", key.substr(0, 40), "', which ");
  if (!Names(c, key)) {
    if (key != "tool_call_id" && key != "id")
      notices->push_back(absl::StrCat(shown, "the chat template does not read"));
  } else if (!Holds(kTemplateKeys, key)) {
    notices->push_back(absl::StrCat(shown, "means what the chat template makes of it"));
  }
}

// What a reader of the data should know, though it is no error.
void ChatEncoder::Rep::Notice(const Conversation& c, const std::string& full,
                              std::vector<std::string>* notices) const {
  bool dropped = false, special = false, empty = false;
  const auto spells = [&](const std::string& text) {
    for (const AddedSpan& span : tokenizer->FindAddedTokens(text)) special |= span.token->special;
  };
  EachText(c.tools, spells);
  for (const Message& m : c.messages) {
    const std::string words = jinja::Strip(m.content, std::nullopt, true, true);
    dropped |= (train_on_all || m.role != "assistant") && !absl::StrContains(full, words);
    empty |= m.role == "assistant" && m.content.empty() && !m.has_tool_calls;
    spells(m.content);
    for (const Value& call : CallsOf(m)) EachText(call, spells);
    if (!Holds(kRoles, m.role)) {
      notices->push_back(absl::StrCat("record(s) have messages of the role '", m.role.substr(0, 40),
                                      "', which means what the chat template makes of it"));
    }
    for (const std::string& key : m.more) NoticeKey(c, key, notices);
  }
  if (!c.tools.is_none() && !Names(c, "tools"))
    notices->push_back("record(s) have 'tools', which the chat template does not read");
  if (empty)
    notices->push_back("record(s) have an empty answer: the end token alone is trained on");
  if (dropped) {
    notices->push_back(
        "record(s) have a message whose text the chat template does not write as it is");
  }
  if (special) {
    notices->push_back(
        "record(s) have a message, a tool call or tools that spell out a special token; it becomes "
        "that token");
  }
}

ChatEncoder::ChatEncoder() : rep_(std::make_unique<Rep>()) {}
ChatEncoder::~ChatEncoder() = default;

absl::StatusOr<std::unique_ptr<ChatEncoder>> ChatEncoder::Create(const Tokenizer* tokenizer,
                                                                 const TokenizerConfig& config,
                                                                 bool train_on_all) {
  std::unique_ptr<ChatEncoder> out(new ChatEncoder);
  Rep& rep = *out->rep_;
  if (config.chat_template.empty()) {
    return absl::InvalidArgumentError(
        "messages records need the model's chat template, and its folder has none "
        "(chat_template.jinja, or chat_template in tokenizer_config.json)");
  }
  rep.tokenizer = tokenizer;
  rep.train_on_all = train_on_all;
  rep.plain_source = config.chat_template;
  rep.tools_source = config.tool_template;
  rep.special_tokens = config.special_tokens;
  rep.options.now_unix_seconds = RealClock().UnixNs() / 1'000'000'000;
  SOUP_ASSIGN_OR_RETURN(rep.plain,
                        jinja::Template::Parse(config.chat_template, config.template_file));
  SOUP_ASSIGN_OR_RETURN(rep.with_tools,
                        jinja::Template::Parse(config.tool_template, config.template_file));
  return out;
}

absl::Status ChatEncoder::Encode(const Value& record, EncodeContext* context, TokenRecord* out,
                                 std::vector<std::string>* notices) const {
  SOUP_ASSIGN_OR_RETURN(Conversation conversation, ReadConversation(record));
  SOUP_ASSIGN_OR_RETURN(const jinja::Rendering full, rep_->RenderWhole(&conversation, notices));
  SOUP_ASSIGN_OR_RETURN(const std::vector<TurnFinder::Turn> turns,
                        rep_->Supervised(conversation, full, notices));
  rep_->Notice(conversation, full.text, notices);
  std::sort(notices->begin(), notices->end());  // each once a record
  notices->erase(std::unique(notices->begin(), notices->end()), notices->end());

  std::vector<Tokenizer::Cut> cuts;  // where each turn begins, where it ends
  for (const TurnFinder::Turn& turn : turns) {
    cuts.push_back({turn.words.begin, turn.floor});
    cuts.push_back({turn.words.end, turn.words.end});
  }
  std::vector<size_t> counts;
  SOUP_RETURN_IF_ERROR(rep_->tokenizer->EncodeCut(full.text, cuts, context, &out->ids, &counts));
  out->supervised.assign(out->ids.size(), 0);
  for (size_t i = 0; i < counts.size(); i += 2) {
    std::fill(out->supervised.begin() + static_cast<std::ptrdiff_t>(counts[i]),
              out->supervised.begin() + static_cast<std::ptrdiff_t>(counts[i + 1]), 1);
  }
  if (out->ids.empty()) return absl::InvalidArgumentError("the chat template renders nothing");

  const std::vector<int32_t>& bos = rep_->tokenizer->prefix();
  if (!bos.empty() && !std::equal(bos.begin(), bos.end(), out->ids.begin(),
                                  out->ids.begin() + static_cast<std::ptrdiff_t>(
                                                         std::min(bos.size(), out->ids.size())))) {
    notices->push_back(
        "record(s) begin without the BOS token that the tokenizer adds to other texts: the chat "
        "template writes none");
  } else if (!bos.empty() && out->ids.size() > 1 && out->ids[1] == out->ids[0]) {
    notices->push_back("record(s) begin with the BOS token twice: the chat template writes it so");
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
