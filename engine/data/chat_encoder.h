// A conversation to token ids through the model's own chat template, special tokens off (the
// template writes them), and which tokens are the assistant's.
//
// Supervised: each assistant turn's words (tool calls included) and its end token, nothing else.
// The place of a turn comes from `generation` blocks where the template has them; else from the
// difference of prefixes: what the conversation up to the turn renders to, with the generation
// prompt, and what it renders to with the turn. Every place is verified by rendering again with the
// turn's content replaced: a template that trims, moves or drops content, or that renders a turn
// otherwise once others follow, is an error of the record, never a guess.
//
// Ids are those of the whole text, as transformers' apply_chat_template gives them, unless a token
// lies across the place where a turn begins or ends: then both sides are tokenised apart, as
// generation sees them. A blank that a template puts before the words (" Hello" after "[/INST]")
// is supervised where it is one token with them.
// Not thread-safe; the tokenizer must outlive it.
#ifndef SOUP_ENGINE_DATA_CHAT_ENCODER_H_
#define SOUP_ENGINE_DATA_CHAT_ENCODER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/tokenizer.h"
#include "engine/data/tokenizer_config.h"
#include "engine/data/value.h"

namespace soup::engine {

class ChatEncoder {
 public:
  // Errors: InvalidArgument (no template; one that is not understood, with line and column).
  static absl::StatusOr<std::unique_ptr<ChatEncoder>> Create(const Tokenizer* tokenizer,
                                                             const TokenizerConfig& config,
                                                             bool train_on_all);
  ~ChatEncoder();

  // Errors: InvalidArgument, naming the message (from 1).
  absl::Status Encode(const Value& record, EncodeContext* context, TokenRecord* out,
                      std::vector<std::string>* notices) const;

 private:
  ChatEncoder();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_CHAT_ENCODER_H_
