// A messages record in one shape, whatever the wire format it came in: what a template sees must
// not depend on whether an absent text was written as null or left out, or whether a tool call's
// arguments came as an object or as a string of JSON. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_CONVERSATION_H_
#define SOUP_ENGINE_DATA_CONVERSATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/value.h"

namespace soup::engine {

struct Message {
  std::string role;
  std::string content;
  bool has_tool_calls = false;
  bool trained = true;            // false: an assistant's turn with weight 0
  std::vector<std::string> more;  // keys beside role, content, tool_calls and weight
  Value value;                    // what a template sees
  // The same with its tool calls' arguments as the texts of JSON that they were written as; none
  // where they were not.
  Value with_text_arguments;
};

struct Conversation {
  std::vector<Message> messages;  // never empty
  Value tools;                    // a list, or none
};

// {"messages": [...], "tools": [...]}. A message: "role", "content" (a text; null or absent only
// beside tool calls: then it is empty), "tool_calls", "weight" (0 or 1, of an assistant's turn: is
// it trained on; no template sees it), others as they are; members that are null are absent.
// Errors: InvalidArgument, naming the message (from 1) and the key.
absl::StatusOr<Conversation> ReadConversation(const Value& record);

// The message's members with another content, without its other members when `alone`.
absl::StatusOr<Value> WithContent(const Message& message, const std::string& content, bool alone);
// The message's members but its tool calls.
absl::StatusOr<Value> WithoutCalls(const Message& message);
// Its tool calls; empty: none.
const std::vector<Value>& CallsOf(const Message& message);
// What a template could leave out of a tool call.
enum class CallPart { kCall, kName, kArguments };
// The message's members without its tool call number `call` (kCall), or with a `word` as that
// call's name or in place of its arguments. None where the call has no such part.
absl::StatusOr<Value> WithOtherCall(const Message& message, size_t call, CallPart part,
                                    const std::string& word);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_CONVERSATION_H_
