#include "engine/data/record_conversion.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/data/json_value.h"
#include "engine/data/record_format.h"

namespace soup::engine {
namespace {

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::StatusOr<Value> Turn(const char* role, std::string content) {
  return Value::Dict(
      {{"role", Value::String(role)}, {"content", Value::String(std::move(content))}});
}

// A text that may be absent, null or empty: then empty.
absl::StatusOr<std::string> OptionalText(const Value& record, absl::string_view key) {
  const Value* value = record.Find(key);
  if (value == nullptr || value->is_none()) return std::string();
  return StringMember(record, key);
}

absl::Status AddHistory(const Value& history, std::vector<Value>* messages) {
  if (history.is_none()) return absl::OkStatus();
  if (!history.is_list())
    return Bad(absl::StrCat("key 'history' is ", history.KindName(), " where a list is expected"));
  size_t number = 0;
  for (const Value& pair : history.AsList()) {
    ++number;
    if (!pair.is_list() || pair.AsList().size() != 2 || !pair.AsList()[0].is_string() ||
        !pair.AsList()[1].is_string()) {
      return Bad(absl::StrCat("'history' entry ", number, " is not a pair of texts"));
    }
    SOUP_ASSIGN_OR_RETURN(Value user, Turn("user", pair.AsList()[0].AsString()));
    SOUP_ASSIGN_OR_RETURN(Value assistant, Turn("assistant", pair.AsList()[1].AsString()));
    messages->push_back(std::move(user));
    messages->push_back(std::move(assistant));
  }
  return absl::OkStatus();
}

absl::Status AddSystem(const Value& record, std::vector<Value>* messages) {
  SOUP_ASSIGN_OR_RETURN(std::string system, OptionalText(record, "system"));
  if (system.empty()) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(Value turn, Turn("system", std::move(system)));
  messages->push_back(std::move(turn));
  return absl::OkStatus();
}

absl::StatusOr<Value> MessagesRecord(std::vector<Value> messages, const Value* tools) {
  Value::Items items;
  SOUP_ASSIGN_OR_RETURN(Value list, Value::List(std::move(messages)));
  items.emplace_back("messages", std::move(list));
  if (tools != nullptr && !tools->is_none()) {
    // An empty text stands for none where tables have a column for it.
    if (!tools->is_string() || !tools->AsString().empty()) items.emplace_back("tools", *tools);
  }
  return Value::Dict(std::move(items));
}

constexpr std::pair<absl::string_view, const char*> kRoles[] = {
    {"human", "user"},          {"user", "user"},
    {"gpt", "assistant"},       {"chatgpt", "assistant"},
    {"assistant", "assistant"}, {"model", "assistant"},
    {"system", "system"},       {"tool", "tool"},
    {"observation", "tool"},    {"function_response", "tool"}};

// The assistant's calls, from the JSON of one or of a list.
absl::StatusOr<Value> CallTurn(const std::string& text) {
  auto call = ParseJsonValue(text);
  if (!call.ok()) {
    return Bad(absl::StrCat("'value' of a function_call is not JSON: ", call.status().message()));
  }
  std::vector<Value> calls = call->is_list() ? call->AsList() : std::vector<Value>{*call};
  for (Value& one : calls) {
    if (one.Find("name") == nullptr)
      return Bad("'value' of a function_call is no {\"name\", \"arguments\"} object");
    SOUP_ASSIGN_OR_RETURN(
        one, Value::Dict({{"type", Value::String("function")}, {"function", std::move(one)}}));
  }
  SOUP_ASSIGN_OR_RETURN(Value list, Value::List(std::move(calls)));
  return Value::Dict({{"role", Value::String("assistant")},
                      {"content", Value::String("")},
                      {"tool_calls", std::move(list)}});
}

absl::StatusOr<Value> ReadTurn(const Value& turn) {
  if (!turn.is_dict()) return Bad(absl::StrCat(turn.KindName(), " where an object is expected"));
  if (turn.Find("from") == nullptr && turn.Find("role") != nullptr) return turn;
  SOUP_ASSIGN_OR_RETURN(const std::string from, StringMember(turn, "from"));
  SOUP_ASSIGN_OR_RETURN(std::string value, StringMember(turn, "value"));
  for (const auto& [key, member] : turn.AsDict()) {
    if (key == "from" || key == "value" || member.is_none()) continue;
    return Bad(absl::StrCat("key '", key.substr(0, 40),
                            "': a sharegpt turn has 'from' and 'value', others are not supported"));
  }
  if (from == "function_call") return CallTurn(value);
  for (const auto& [name, role] : kRoles)
    if (from == name) return Turn(role, std::move(value));
  return Bad(absl::StrCat("'from' is '", from.substr(0, 40),
                          "'; known: human, user, gpt, assistant, system, tool, observation, "
                          "function_call"));
}

}  // namespace

absl::StatusOr<Value> AlpacaToMessages(const Value& record) {
  SOUP_ASSIGN_OR_RETURN(std::string user, StringMember(record, "instruction"));
  SOUP_ASSIGN_OR_RETURN(const std::string input, OptionalText(record, "input"));
  SOUP_ASSIGN_OR_RETURN(std::string output, StringMember(record, "output"));
  if (!input.empty()) absl::StrAppend(&user, user.empty() ? "" : "\n", input);
  std::vector<Value> messages;
  SOUP_RETURN_IF_ERROR(AddSystem(record, &messages));
  if (const Value* history = record.Find("history"))
    SOUP_RETURN_IF_ERROR(AddHistory(*history, &messages));
  SOUP_ASSIGN_OR_RETURN(Value asked, Turn("user", std::move(user)));
  SOUP_ASSIGN_OR_RETURN(Value said, Turn("assistant", std::move(output)));
  messages.push_back(std::move(asked));
  messages.push_back(std::move(said));
  return MessagesRecord(std::move(messages), nullptr);
}

absl::StatusOr<PromptAndCompletion> AlpacaToPrompt(const Value& record) {
  PromptAndCompletion out;
  SOUP_ASSIGN_OR_RETURN(const std::string instruction, StringMember(record, "instruction"));
  SOUP_ASSIGN_OR_RETURN(const std::string input, OptionalText(record, "input"));
  SOUP_ASSIGN_OR_RETURN(out.completion, StringMember(record, "output"));
  SOUP_ASSIGN_OR_RETURN(const std::string system, OptionalText(record, "system"));
  const Value* history = record.Find("history");
  const bool has_history =
      history != nullptr &&
      !(history->is_none() || (history->is_list() && history->AsList().empty()));
  if (has_history || !system.empty()) {
    return Bad(absl::StrCat("key '", has_history ? "history" : "system",
                            "' needs a chat template, and the base has none"));
  }
  out.prompt = absl::StrCat(
      "Below is an instruction that describes a task",
      input.empty() ? ". " : ", paired with an input that provides further context. ",
      "Write a response that appropriately completes the request.\n\n### Instruction:\n",
      instruction, input.empty() ? "" : "\n\n### Input:\n", input, "\n\n### Response:\n");
  return out;
}

absl::StatusOr<Value> SharegptToMessages(const Value& record) {
  const Value* turns = record.Find("conversations");
  if (turns == nullptr || !turns->is_list() || turns->AsList().empty()) {
    return Bad(absl::StrCat("key 'conversations' is ",
                            turns == nullptr    ? "missing"
                            : !turns->is_list() ? turns->KindName()
                                                : "an empty list",
                            " where a list of turns is expected"));
  }
  std::vector<Value> messages;
  SOUP_RETURN_IF_ERROR(AddSystem(record, &messages));
  size_t number = 0;
  for (const Value& turn : turns->AsList()) {
    ++number;
    auto read = ReadTurn(turn);
    if (!read.ok()) return Bad(absl::StrCat("turn ", number, ": ", read.status().message()));
    const Value* role = read->Find("role");  // of any kind, where the turn is a message already
    if (number == 1 && !messages.empty() && role->is_string() && role->AsString() == "system") {
      return Bad("key 'system' and a system turn at the beginning are both there: keep one");
    }
    messages.push_back(*std::move(read));
  }
  return MessagesRecord(std::move(messages), record.Find("tools"));
}

}  // namespace soup::engine
