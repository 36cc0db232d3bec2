#include "engine/data/turn_finder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/text_ops.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

constexpr size_t kUnknown = std::string::npos;
// Each turn is rendered with all before it, several times: the work grows with the square.
constexpr size_t kMaxMessages = 1000;

// Bytes of the longest common beginning, whole characters only.
size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  while (n > 0 && n < a.size() && (static_cast<unsigned char>(a[n]) & 0xc0) == 0x80) --n;
  return n;
}

bool IsBlank(absl::string_view text) { return text.empty() || jinja::AllOf(text, &IsPythonSpace); }

std::string Trimmed(absl::string_view text) { return jinja::Strip(text, std::nullopt, true, true); }

// Where the sentinel lies in a rendering, when it lies there once.
std::optional<size_t> OnlyPlace(const std::string& text, const std::string& sentinel) {
  const size_t at = text.find(sentinel);
  if (at == std::string::npos || text.find(sentinel, at + 1) != std::string::npos)
    return std::nullopt;
  return at;
}

std::string TurnName(size_t index) { return absl::StrCat("message ", index + 1, " (assistant)"); }

}  // namespace

TurnFinder::TurnFinder(const Conversation& conversation, const std::string& full,
                       const Tokenizer& tokenizer, Render render)
    : conversation_(conversation), full_(full), tokenizer_(tokenizer), render_(std::move(render)) {
  // Private-use characters: no letter, no white space, and none that a template looks for.
  for (char32_t c = 0xe000; c < 0xf8ff; ++c) {
    sentinel_.clear();
    AppendUtf8(c, &sentinel_);
    if (!absl::StrContains(full, sentinel_)) break;
  }
  sentinel_ += "soup" + sentinel_;
}

absl::StatusOr<std::string> TurnFinder::RenderFirst(size_t count, bool generation_prompt) const {
  std::vector<Value> messages;
  for (size_t i = 0; i < count; ++i) messages.push_back(conversation_.messages[i].value);
  return render_(messages, generation_prompt);
}

absl::StatusOr<std::string> TurnFinder::RenderWith(size_t count, size_t index,
                                                   const std::string& content, bool alone) const {
  std::vector<Value> messages;
  for (size_t i = 0; i < count; ++i) messages.push_back(conversation_.messages[i].value);
  SOUP_ASSIGN_OR_RETURN(messages[index],
                        WithContent(conversation_.messages[index], content, alone));
  return render_(messages, /*generation_prompt=*/false);
}

absl::StatusOr<std::string> TurnFinder::RenderWithoutCalls(size_t count, size_t index) const {
  std::vector<Value> messages;
  for (size_t i = 0; i < count; ++i) messages.push_back(conversation_.messages[i].value);
  SOUP_ASSIGN_OR_RETURN(messages[index], WithoutCalls(conversation_.messages[index]));
  return render_(messages, /*generation_prompt=*/false);
}

absl::Status TurnFinder::Changed(size_t index, absl::string_view rendered) const {
  const std::string& content = conversation_.messages[index].content;
  const std::string trimmed = Trimmed(content);
  if (trimmed.size() < content.size() && absl::StrContains(rendered, trimmed)) {
    return absl::InvalidArgumentError(
        absl::StrCat(TurnName(index),
                     ": the chat template takes white space off the ends of its "
                     "content; take it off in the file"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(TurnName(index),
                   ": the chat template changes, moves or drops its content, so "
                   "what to train on cannot be told; write it as the template "
                   "renders it"));
}

// Where the assistant begins to speak in `rendered`: after the generation prompt, or, when the
// template has none, at `otherwise`, where the turn's rendering first depends on what it says.
absl::StatusOr<TurnFinder::Start> TurnFinder::Begin(size_t index, absl::string_view rendered,
                                                    size_t otherwise) const {
  // Templates look at the first message: nothing to compare with.
  if (index == 0) return Start{otherwise, otherwise};
  SOUP_ASSIGN_OR_RETURN(const std::string with, RenderFirst(index, true));
  SOUP_ASSIGN_OR_RETURN(const std::string without, RenderFirst(index, false));
  if (with == without) {
    // " Hello" after "[/INST]": the blank belongs to neither, and is one token with the word.
    const bool only_blank = without.size() <= otherwise && absl::StartsWith(rendered, without) &&
                            IsBlank(rendered.substr(without.size(), otherwise - without.size()));
    return Start{otherwise, only_blank ? without.size() : otherwise};
  }
  if (absl::StartsWith(rendered, with)) return Start{with.size(), with.size()};
  return absl::InvalidArgumentError(absl::StrCat(
      TurnName(index),
      ": the chat template does not begin the turn with its own generation prompt (",
      "a thinking model's template may open a block there); use a template with {% generation %} "
      "blocks"));
}

absl::Status TurnFinder::CheckToolCalls(size_t count, size_t index, const std::string& rendered,
                                        std::vector<std::string>* notices) const {
  const Message& message = conversation_.messages[index];
  if (!message.has_tool_calls) return absl::OkStatus();
  const auto dropped = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("message ", index + 1, " (", message.role.substr(0, 40),
                     "): the chat template drops its tool calls", what));
  };
  SOUP_ASSIGN_OR_RETURN(const std::string without, RenderWithoutCalls(count, index));
  if (without == rendered) return dropped("");
  std::vector<Value> messages;
  for (size_t i = 0; i < count; ++i) messages.push_back(conversation_.messages[i].value);
  const size_t calls = CallsOf(message).size();
  for (size_t call = 0; call < calls; ++call) {
    for (const CallPart part : {CallPart::kCall, CallPart::kName, CallPart::kArguments}) {
      if (part == CallPart::kCall && calls == 1) continue;
      SOUP_ASSIGN_OR_RETURN(Value other, WithOtherCall(message, call, part, sentinel_));
      if (other.is_none()) continue;
      messages[index] = std::move(other);
      const absl::StatusOr<std::string> changed = render_(messages, /*generation_prompt=*/false);
      if (!changed.ok() || *changed != rendered) continue;
      if (part == CallPart::kCall)
        return dropped(absl::StrCat(" in part: it does not write number ", call + 1));
      notices->push_back(absl::StrCat("record(s) have tool calls whose ",
                                      part == CallPart::kName ? "name" : "arguments",
                                      " the chat template does not write"));
    }
  }
  return absl::OkStatus();
}

// `upto`: the conversation up to and with the turn, which begins `full`.
absl::StatusOr<TurnFinder::Place> TurnFinder::ByPrefixes(size_t index, const std::string& upto,
                                                         std::vector<std::string>* notices) const {
  const std::string& content = conversation_.messages[index].content;
  SOUP_RETURN_IF_ERROR(CheckToolCalls(index + 1, index, upto, notices));
  // Where what the turn says first shows.
  SOUP_ASSIGN_OR_RETURN(const std::string alone, RenderWith(index + 1, index, sentinel_, true));
  SOUP_ASSIGN_OR_RETURN(const Start start, Begin(index, upto, CommonPrefix(alone, upto)));
  const size_t begin = start.begin;
  if (begin > upto.size()) return Changed(index, upto);
  Place out{begin, start.floor, begin + content.size(), upto.size()};

  // Another content in the same place gives the same text around it: the content is rendered as it
  // is, there and nowhere else.
  SOUP_ASSIGN_OR_RETURN(const std::string replaced, RenderWith(index + 1, index, sentinel_, false));
  const std::optional<size_t> at = OnlyPlace(replaced, sentinel_);
  // A generation prompt may write the content's beginning ("<think>\n"): the rest is what is said.
  if (at && *at + content.size() >= begin &&
      upto ==
          absl::StrCat(replaced.substr(0, *at), content, replaced.substr(*at + sentinel_.size()))) {
    out.content_end = *at + content.size();
    return out;
  }
  if (!at && !content.empty()) return Changed(index, absl::string_view(upto).substr(begin));
  // Templates that take a thinking block apart and put it together again, or that set an empty
  // content otherwise: right when the turn begins with the content to the byte.
  if (absl::StartsWith(absl::string_view(upto).substr(begin), content)) return out;
  return Changed(index, absl::string_view(upto).substr(begin));
}

// For templates that render the last turn otherwise: in the whole conversation the content is
// replaced instead. Only for turns that say nothing else.
absl::StatusOr<TurnFinder::Place> TurnFinder::ByReplacement(size_t index) const {
  const Message& message = conversation_.messages[index];
  SOUP_ASSIGN_OR_RETURN(const std::string replaced, RenderWith(conversation_.messages.size(), index,
                                                               sentinel_, /*alone=*/false));
  const std::optional<size_t> at = OnlyPlace(replaced, sentinel_);
  if (message.has_tool_calls || !message.more.empty() || !at ||
      full_ != absl::StrCat(replaced.substr(0, *at), message.content,
                            replaced.substr(*at + sentinel_.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat(TurnName(index),
                     ": the chat template renders this turn otherwise once others follow, so "
                     "what to train on cannot be told; end the conversation with it, or use a "
                     "template with {% generation %} blocks"));
  }
  SOUP_ASSIGN_OR_RETURN(const Start start, Begin(index, full_, *at));
  if (start.begin > *at) return Changed(index, full_);
  SOUP_ASSIGN_OR_RETURN(std::string end_token, LastEndToken(index));
  return Place{start.begin, start.floor, *at + message.content.size(), kUnknown,
               std::move(end_token)};
}

// What begins the next turn must not be taken for the end of this one: as the last one it shows.
absl::StatusOr<std::string> TurnFinder::LastEndToken(size_t index) const {
  SOUP_ASSIGN_OR_RETURN(const std::string last,
                        RenderWith(index + 1, index, sentinel_, /*alone=*/false));
  const std::optional<size_t> at = OnlyPlace(last, sentinel_);
  if (!at) return std::string();
  const absl::string_view after = absl::string_view(last).substr(*at + sentinel_.size());
  const std::vector<AddedSpan> tokens = tokenizer_.FindAddedTokens(after);
  if (tokens.empty() || !IsBlank(after.substr(0, tokens.front().begin))) return std::string();
  return std::string(after.substr(tokens.front().begin, tokens.front().end - tokens.front().begin));
}

// The turn's end token: the first one after the content with nothing but white space between; of a
// turn with tool calls, the last one of the turn.
MatchSpan TurnFinder::WithEndToken(size_t index, const Place& place,
                                   std::vector<std::string>* notices) const {
  const size_t end = place.end == kUnknown ? full_.size() : place.end;
  const absl::string_view after =
      absl::string_view(full_).substr(place.content_end, end - place.content_end);
  const std::vector<AddedSpan> tokens = tokenizer_.FindAddedTokens(after);
  if (!tokens.empty()) {
    const bool calls = conversation_.messages[index].has_tool_calls;
    const AddedSpan& token = calls ? tokens.back() : tokens.front();
    const bool own = place.end != kUnknown ||
                     after.substr(token.begin, token.end - token.begin) == place.end_token;
    if (own && (calls ? IsBlank(after.substr(token.end)) : IsBlank(after.substr(0, token.begin))))
      return {place.begin, place.content_end + token.end};
  }
  notices->push_back(
      "record(s) have assistant turns that the chat template ends without a token of its own; "
      "their words alone are supervised, and the model does not learn to stop there");
  if (!conversation_.messages[index].has_tool_calls) return {place.begin, place.content_end};
  const std::string rest = jinja::Strip(after, std::nullopt, /*left=*/false, /*right=*/true);
  return {place.begin, place.content_end + rest.size()};
}

absl::StatusOr<TurnFinder::Turn> TurnFinder::FindTurn(size_t index,
                                                      std::vector<std::string>* notices) const {
  SOUP_ASSIGN_OR_RETURN(const std::string upto, RenderFirst(index + 1, false));
  absl::StatusOr<Place> place =
      absl::StartsWith(full_, upto) ? ByPrefixes(index, upto, notices) : ByReplacement(index);
  if (!place.ok()) return place.status();
  return Turn{WithEndToken(index, *place, notices), place->floor};
}

absl::Status TurnFinder::CheckCallsAreWritten(std::vector<std::string>* notices) const {
  const size_t count = conversation_.messages.size();
  for (size_t i = 0; i < count; ++i) SOUP_RETURN_IF_ERROR(CheckToolCalls(count, i, full_, notices));
  return absl::OkStatus();
}

absl::Status TurnFinder::CheckMarked(const std::vector<MatchSpan>& spans,
                                     const Marked& marked) const {
  std::vector<std::string> texts;
  for (const MatchSpan& span : spans)
    texts.push_back(full_.substr(span.begin, span.end - span.begin));
  size_t at = 0, within = 0;  // where the last content ended
  std::vector<Value> others_changed;
  for (size_t i = 0; i < conversation_.messages.size(); ++i) {
    const Message& message = conversation_.messages[i];
    if (message.role != "assistant") {
      SOUP_ASSIGN_OR_RETURN(Value changed, WithContent(message, sentinel_, /*alone=*/false));
      others_changed.push_back(std::move(changed));
      continue;
    }
    others_changed.push_back(message.value);
    size_t place = std::string::npos;
    for (size_t span = at; span < texts.size() && place == std::string::npos; ++span) {
      place = texts[span].find(message.content, span == at ? within : 0);
      if (place == std::string::npos) continue;
      at = span;
      within = place + message.content.size();
    }
    if (place == std::string::npos && texts.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          TurnName(i),
          ": the chat template marks nothing of the conversation with {% generation %} "
          "blocks, so there is nothing to train on"));
    }
    if (place == std::string::npos) return Changed(i, full_);
  }
  SOUP_ASSIGN_OR_RETURN(const std::vector<std::string> again, marked(others_changed));
  if (again == texts) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the chat template's generation blocks hold text of messages that are not the assistant's");
}

absl::StatusOr<std::vector<TurnFinder::Turn>> TurnFinder::Find(
    std::vector<std::string>* notices) const {
  std::vector<Turn> out;
  if (conversation_.messages.size() > kMaxMessages) {
    return absl::InvalidArgumentError(
        absl::StrCat("a conversation of ", conversation_.messages.size(),
                     " messages, over the limit of ", kMaxMessages, "; split it"));
  }
  for (size_t i = 0; i < conversation_.messages.size(); ++i) {
    if (conversation_.messages[i].role != "assistant") continue;
    SOUP_ASSIGN_OR_RETURN(const Turn turn, FindTurn(i, notices));
    const size_t least = out.empty() ? 0 : out.back().words.end;
    if (turn.words.end < turn.words.begin || turn.words.begin < least || turn.floor < least) {
      return absl::InvalidArgumentError(
          absl::StrCat(TurnName(i), ": the chat template does not render the turns in order"));
    }
    out.push_back(turn);
  }
  return out;
}

}  // namespace soup::engine
