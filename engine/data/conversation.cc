#include "engine/data/conversation.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/json_value.h"
#include "engine/data/record_format.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

// A string of JSON, as the wire format of chat APIs has it, becomes the value that it stands for.
absl::StatusOr<Value> Unwrap(const Value& value, absl::string_view key) {
  if (!value.is_string()) return value;
  auto parsed = ParseJsonValue(value.AsString());
  if (!parsed.ok()) {
    return Bad(
        absl::StrCat("key '", key, "' is a text that is not JSON: ", parsed.status().message()));
  }
  return parsed;
}

// {"name", "arguments", ...}, alone or under "function". *as_text: whether arguments are written as
// a text of JSON.
absl::StatusOr<Value> ReadToolCall(const Value& call, bool* as_text) {
  if (!call.is_dict())
    return Bad(
        absl::StrCat("'tool_calls' holds ", call.KindName(), " where an object is expected"));
  Value::Items out;
  for (const auto& [key, value] : call.AsDict()) {
    if (value.is_none() && key != "arguments") continue;
    if (key == "function") {
      SOUP_ASSIGN_OR_RETURN(Value function, ReadToolCall(value, as_text));
      out.emplace_back(key, std::move(function));
    } else if (key == "arguments") {
      SOUP_ASSIGN_OR_RETURN(Value arguments, Unwrap(value, "arguments"));
      if (!arguments.is_dict()) {
        return Bad(absl::StrCat("'arguments' of a tool call is ", arguments.KindName(),
                                " where an object is expected"));
      }
      *as_text |= value.is_string();
      out.emplace_back(key, std::move(arguments));
    } else {
      out.emplace_back(key, value);
    }
  }
  return Value::Dict(std::move(out));
}

absl::StatusOr<Value> ReadToolCalls(const Value& calls, bool* as_text) {
  if (!calls.is_list())
    return Bad(absl::StrCat("'tool_calls' is ", calls.KindName(), " where a list is expected"));
  std::vector<Value> out;
  for (const Value& call : calls.AsList()) {
    SOUP_ASSIGN_OR_RETURN(Value read, ReadToolCall(call, as_text));
    const Value* function = read.Find("function");
    for (const char* key : {"name", "arguments"}) {
      const Value& holder = function != nullptr && function->is_dict() ? *function : read;
      if (holder.Find(key) != nullptr) continue;
      return Bad(absl::StrCat("tool call ", out.size() + 1, " has no '", key, "'"));
    }
    out.push_back(std::move(read));
  }
  return Value::List(std::move(out));
}

absl::Status CheckContent(const Value* content, bool has_tool_calls) {
  if (content != nullptr && content->is_string()) return absl::OkStatus();
  if (content != nullptr && content->is_list()) {
    return Bad("'content' is a list of parts, which is not supported yet; write the text itself");
  }
  if (content != nullptr && !content->is_none())
    return Bad(absl::StrCat("'content' is ", content->KindName(), " where a text is expected"));
  if (has_tool_calls) return absl::OkStatus();
  return Bad(absl::StrCat("'content' is ", content == nullptr ? "missing" : "null",
                          ", and there are no tool calls in its place"));
}

// 0 or 1, as the fine-tuning files of chat APIs have it.
absl::StatusOr<bool> ReadWeight(const Value& value, absl::string_view role) {
  const double weight = value.is_int()     ? static_cast<double>(value.AsInt())
                        : value.is_float() ? value.AsFloat()
                                           : -1;
  const bool zero = weight == 0;
  if (!zero && weight != 1) return Bad("key 'weight' must be 0 or 1");
  if (role != "assistant")
    return Bad("key 'weight' says which turns of the assistant are trained on; this is another's");
  return !zero;
}

// What other formats call the assistant: a turn that would be rendered and never trained on.
absl::Status CheckRole(absl::string_view role) {
  constexpr absl::string_view kAssistant = "assistant";
  const std::string lower = absl::AsciiStrToLower(role);
  if (role == kAssistant) return absl::OkStatus();
  for (absl::string_view other : {"assistant", "gpt", "chatgpt", "bot", "chatbot", "model", "ai"}) {
    if (lower != other) continue;
    return Bad(absl::StrCat("role '", role,
                            "': turns of the role 'assistant' alone are trained on; write it so"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Message> ReadMessage(const Value& value) {
  if (!value.is_dict()) return Bad(absl::StrCat(value.KindName(), " where an object is expected"));
  Message out;
  SOUP_ASSIGN_OR_RETURN(out.role, StringMember(value, "role"));
  SOUP_RETURN_IF_ERROR(CheckRole(out.role));
  if (const Value* call = value.Find("function_call"); call != nullptr && !call->is_none())
    return Bad("key 'function_call' is an older form of tool calls; write 'tool_calls'");
  const Value* calls = value.Find("tool_calls");
  out.has_tool_calls = calls != nullptr && calls->is_list() && !calls->AsList().empty();
  const Value* content = value.Find("content");
  SOUP_RETURN_IF_ERROR(CheckContent(content, out.has_tool_calls));
  if (content != nullptr && content->is_string()) out.content = content->AsString();

  Value::Items members;
  bool as_text = false;
  for (const auto& [key, member] : value.AsDict()) {
    if (key == "content") {
      members.emplace_back(key, Value::String(out.content));
    } else if (member.is_none()) {
      continue;  // a table's way to say "absent"
    } else if (key == "tool_calls") {
      SOUP_ASSIGN_OR_RETURN(Value read, ReadToolCalls(member, &as_text));
      if (out.has_tool_calls) members.emplace_back(key, std::move(read));
    } else if (key == "weight") {
      SOUP_ASSIGN_OR_RETURN(out.trained, ReadWeight(member, out.role));
    } else {
      // Such a key means to decide what is trained on, and no template looks at it.
      if (key == "train" || key == "training" || key == "loss" || key == "loss_mask")
        return Bad(absl::StrCat("key '", key, "' is not known; write \"weight\": 0 or 1"));
      if (key != "role") out.more.push_back(key);
      members.emplace_back(key, member);
    }
  }
  if (content == nullptr) members.emplace_back("content", Value::String(""));
  SOUP_ASSIGN_OR_RETURN(out.value, Value::Dict(members));
  if (as_text) {
    for (auto& [key, member] : members) {
      if (key == "tool_calls") member = *value.Find(key);
    }
    SOUP_ASSIGN_OR_RETURN(out.with_text_arguments, Value::Dict(std::move(members)));
  }
  return out;
}

}  // namespace

absl::StatusOr<Conversation> ReadConversation(const Value& record) {
  const Value* messages = record.Find("messages");
  if (messages == nullptr || !messages->is_list() || messages->AsList().empty()) {
    return Bad(absl::StrCat("key 'messages' is ",
                            messages == nullptr    ? "missing"
                            : !messages->is_list() ? messages->KindName()
                                                   : "an empty list",
                            " where a list of messages is expected"));
  }
  Conversation out;
  for (const Value& value : messages->AsList()) {
    auto message = ReadMessage(value);
    if (!message.ok()) {
      return Bad(
          absl::StrCat("message ", out.messages.size() + 1, ": ", message.status().message()));
    }
    out.messages.push_back(*std::move(message));
  }
  if (const Value* tools = record.Find("tools"); tools != nullptr && !tools->is_none()) {
    SOUP_ASSIGN_OR_RETURN(out.tools, Unwrap(*tools, "tools"));
    if (!out.tools.is_list())
      return Bad(absl::StrCat("key 'tools' is ", tools->KindName(), " where a list is expected"));
    if (out.tools.AsList().empty()) out.tools = Value::None();
  }
  return out;
}

absl::StatusOr<Value> WithContent(const Message& message, const std::string& content, bool alone) {
  Value::Items members;
  for (const auto& [key, member] : message.value.AsDict()) {
    if (key == "content") {
      members.emplace_back(key, Value::String(content));
    } else if (!alone || key == "role") {
      members.emplace_back(key, member);
    }
  }
  return Value::Dict(std::move(members));
}

absl::StatusOr<Value> WithoutCalls(const Message& message) {
  Value::Items members;
  for (const auto& [key, member] : message.value.AsDict()) {
    if (key != "tool_calls") members.emplace_back(key, member);
  }
  return Value::Dict(std::move(members));
}

const std::vector<Value>& CallsOf(const Message& message) {
  static const auto* const kNone = new std::vector<Value>;
  const Value* calls = message.has_tool_calls ? message.value.Find("tool_calls") : nullptr;
  return calls == nullptr ? *kNone : calls->AsList();
}

namespace {

// A call or what it has under "function", with a part replaced; none where it has no such part.
absl::StatusOr<Value> OtherCall(const Value& call, CallPart part, const std::string& word) {
  Value::Items members;
  bool found = false;
  for (const auto& [key, member] : call.AsDict()) {
    Value other = member;
    if (key == "function" && member.is_dict()) {
      SOUP_ASSIGN_OR_RETURN(other, OtherCall(member, part, word));
      found |= !other.is_none();
      if (other.is_none()) other = member;
    } else if (key == "name" && part == CallPart::kName) {
      other = Value::String(word);
      found = true;
    } else if (key == "arguments" && part == CallPart::kArguments) {
      const bool text = member.is_string();
      if (text || !member.AsDict().empty()) {
        SOUP_ASSIGN_OR_RETURN(other, Value::Dict({{word, Value::String(word)}}));
        if (text) other = Value::String(absl::StrCat("{\"", word, "\": \"", word, "\"}"));
        found = true;
      }
    }
    members.emplace_back(key, std::move(other));
  }
  if (!found) return Value::None();
  return Value::Dict(std::move(members));
}

}  // namespace

absl::StatusOr<Value> WithOtherCall(const Message& message, size_t call, CallPart part,
                                    const std::string& word) {
  std::vector<Value> calls = CallsOf(message);
  if (part == CallPart::kCall) {
    calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(call));
  } else {
    SOUP_ASSIGN_OR_RETURN(calls[call], OtherCall(calls[call], part, word));
    if (calls[call].is_none()) return Value::None();
  }
  Value::Items members;
  for (const auto& [key, member] : message.value.AsDict()) {
    Value other = member;
    if (key == "tool_calls") {
      SOUP_ASSIGN_OR_RETURN(other, Value::List(calls));
    }
    members.emplace_back(key, std::move(other));
  }
  return Value::Dict(std::move(members));
}

}  // namespace soup::engine
