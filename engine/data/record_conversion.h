// Records of other trainers' shapes as messages records ({"messages": [...], "tools"?}), so that
// one road leads through the chat template. Nothing is dropped: a role or key that is not
// understood is an error. Pure; any thread. Errors: InvalidArgument, naming the turn (from 1) and
// the key.
//
// alpaca {"instruction", "input"?, "output", "system"?, "history"?}: a user turn (instruction, and
// the input after a line break when there is one) and the assistant's output; history is a list of
// [user, assistant] pairs before it.
// sharegpt {"conversations": [{"from", "value"}, ...], "system"?, "tools"?}: from human or user,
// gpt or assistant, system, tool or observation, function_call (its value is the JSON of the call
// or of a list of calls). {"role", "content"} turns under that key are taken as messages.
#ifndef SOUP_ENGINE_DATA_RECORD_CONVERSION_H_
#define SOUP_ENGINE_DATA_RECORD_CONVERSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/data/value.h"

namespace soup::engine {

absl::StatusOr<Value> AlpacaToMessages(const Value& record);
absl::StatusOr<Value> SharegptToMessages(const Value& record);

// For bases without a chat template: Stanford Alpaca's prompt and the output. No system, no
// history: they have no place in it.
struct PromptAndCompletion {
  std::string prompt, completion;
};
absl::StatusOr<PromptAndCompletion> AlpacaToPrompt(const Value& record);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_RECORD_CONVERSION_H_
