// Where the assistant's turns lie in a rendered conversation. Used by chat_encoder.cc; see there
// for what is found and how it is verified. Not thread-safe; all it is made of must outlive it.
#ifndef SOUP_ENGINE_DATA_TURN_FINDER_H_
#define SOUP_ENGINE_DATA_TURN_FINDER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/conversation.h"
#include "engine/data/regex.h"
#include "engine/data/tokenizer.h"

namespace soup::engine {

class TurnFinder {
 public:
  // The first messages rendered, with the generation prompt or not.
  using Render = std::function<absl::StatusOr<std::string>(const std::vector<Value>& messages,
                                                           bool generation_prompt)>;

  // `full`: the whole conversation rendered, without a generation prompt.
  TurnFinder(const Conversation& conversation, const std::string& full, const Tokenizer& tokenizer,
             Render render);

  // What the assistant says, in bytes of `full`; and where the conversation before it ends, when
  // only white space lies between (else the same as where it begins).
  struct Turn {
    MatchSpan words;
    size_t floor = 0;
  };
  // Checks what `generation` blocks marked (bytes of `full`, in order): each assistant's content
  // lies in them as it is, and nothing in them depends on what others say. `marked`: gives what
  // they mark of other messages. Errors: InvalidArgument, naming the message.
  using Marked = std::function<absl::StatusOr<std::vector<std::string>>(const std::vector<Value>&)>;
  absl::Status CheckMarked(const std::vector<MatchSpan>& spans, const Marked& marked) const;

  // That the template writes every message's tool calls; *notices tells of names and arguments that
  // it leaves out. Errors: InvalidArgument, naming the message and the call that is dropped.
  absl::Status CheckCallsAreWritten(std::vector<std::string>* notices) const;

  // In order. *notices grows.
  absl::StatusOr<std::vector<Turn>> Find(std::vector<std::string>* notices) const;

 private:
  struct Place {
    size_t begin;                // of what the assistant says
    size_t floor;                // see Turn
    size_t content_end;          // of its content
    size_t end;                  // of what the turn renders to; npos: not known
    std::string end_token = {};  // where that is not known: what may end it; empty: nothing
  };

  absl::StatusOr<Turn> FindTurn(size_t index, std::vector<std::string>* notices) const;
  absl::StatusOr<Place> ByPrefixes(size_t index, const std::string& upto,
                                   std::vector<std::string>* notices) const;
  absl::StatusOr<Place> ByReplacement(size_t index) const;
  // What follows the content of the last of the first index + 1 messages, if it is a token.
  absl::StatusOr<std::string> LastEndToken(size_t index) const;
  struct Start {
    size_t begin, floor;
  };
  absl::StatusOr<Start> Begin(size_t index, absl::string_view rendered, size_t otherwise) const;
  absl::StatusOr<std::string> RenderFirst(size_t count, bool generation_prompt) const;
  // The first `count` messages with message `index` saying `content` (and nothing else if `alone`).
  absl::StatusOr<std::string> RenderWith(size_t count, size_t index, const std::string& content,
                                         bool alone) const;
  // The first `count` messages without the tool calls of message `index`.
  absl::StatusOr<std::string> RenderWithoutCalls(size_t count, size_t index) const;
  // `rendered`: the first `count` messages. Where the template refuses a call that was changed,
  // nothing is known of it.
  absl::Status CheckToolCalls(size_t count, size_t index, const std::string& rendered,
                              std::vector<std::string>* notices) const;
  absl::Status Changed(size_t index, absl::string_view rendered) const;
  MatchSpan WithEndToken(size_t index, const Place& place, std::vector<std::string>* notices) const;

  const Conversation& conversation_;
  const std::string& full_;
  const Tokenizer& tokenizer_;
  const Render render_;
  std::string sentinel_;  // a text that `full` does not hold a character of
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_TURN_FINDER_H_
