// The frame of an Interpreter, and statements. Expressions: interpreter_expressions.cc; calls:
// interpreter_calls.cc.
#include "engine/data/jinja/interpreter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/interpreter_objects.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/value_ops.h"

namespace soup::engine::jinja {
namespace {

constexpr int64_t kObjectBytes = 256;

constexpr const char* kBuiltins[] = {"range", "namespace", "dict", "raise_exception",
                                     "strftime_now"};

}  // namespace

Interpreter::Interpreter(const Value::Items& globals, const RenderOptions& options)
    : globals_(globals),
      options_(options),
      budget_(options.max_steps, options.max_made_bytes),
      builtins_(std::make_shared<Scope>(nullptr)) {
  for (const char* name : kBuiltins) {
    auto builtin = std::make_unique<Builtin>();
    builtin->name = name;
    builtins_->Set(name, Value::Object(builtin.get()));
    objects_.push_back(std::move(builtin));
  }
}

Interpreter::~Interpreter() = default;

absl::StatusOr<Rendering> Interpreter::Run(const Block& block) {
  auto top = std::make_shared<Scope>(builtins_);
  top->variables = globals_;
  // A scope of the template's own, so that `set` hides a variable and does not lose it.
  SOUP_RETURN_IF_ERROR(RunBlock(block, std::make_shared<Scope>(std::move(top))).status());
  Rendering out;
  out.text = std::move(output_);
  out.generation = std::move(generation_);
  return out;
}

absl::Status Interpreter::Own(std::unique_ptr<TemplateObject> object) {
  objects_.push_back(std::move(object));
  return budget_.Bytes(kObjectBytes);
}

absl::Status Interpreter::Place(absl::Status status, Position at) {
  if (status.ok() || placed_) return status;
  placed_ = true;
  return absl::Status(status.code(), ErrorAt(at, status.message()).message());
}

absl::Status Interpreter::Write(const std::string& text) {
  if (out_ == &output_ &&
      output_.size() + text.size() > static_cast<size_t>(options_.max_output_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the template writes more than ", options_.max_output_bytes, " bytes for one record"));
  }
  SOUP_RETURN_IF_ERROR(budget_.Bytes(static_cast<int64_t>(text.size())));
  *out_ += text;
  return absl::OkStatus();
}

absl::StatusOr<std::string> Interpreter::Capture(const Block& body, const ScopePtr& scope) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const absl::Status status = RunBlock(body, scope).status();
  out_ = outer;
  SOUP_RETURN_IF_ERROR(status);
  return text;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunBlock(const Block& block, const ScopePtr& scope) {
  for (const Statement& s : block) {
    absl::StatusOr<Flow> flow = RunStatement(s, scope);
    if (!flow.ok()) return Place(flow.status(), s.at);
    if (*flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunStatement(const Statement& s,
                                                            const ScopePtr& scope) {
  const Depth depth(this);
  SOUP_RETURN_IF_ERROR(depth.Check());
  SOUP_RETURN_IF_ERROR(budget_.Steps(1));
  switch (s.kind) {
    case Statement::Kind::kText:
      SOUP_RETURN_IF_ERROR(Write(s.text));
      return Flow::kNext;
    case Statement::Kind::kOutput: {
      SOUP_ASSIGN_OR_RETURN(const Value value, Eval(*s.value, scope));
      SOUP_ASSIGN_OR_RETURN(const std::string text, ToText(value, &budget_));
      SOUP_RETURN_IF_ERROR(Write(text));
      return Flow::kNext;
    }
    case Statement::Kind::kIf:
      return RunIf(s, scope);
    case Statement::Kind::kFor:
      return RunFor(s, scope);
    case Statement::Kind::kSet:
      SOUP_RETURN_IF_ERROR(RunSet(s, scope));
      return Flow::kNext;
    case Statement::Kind::kFilter: {
      SOUP_ASSIGN_OR_RETURN(const Value value, Filtered(s, scope));
      if (!value.is_string()) return TypeError("a filter block's text", value);
      SOUP_RETURN_IF_ERROR(Write(value.AsString()));
      return Flow::kNext;
    }
    case Statement::Kind::kCall:
      SOUP_RETURN_IF_ERROR(RunCall(s, scope));
      return Flow::kNext;
    case Statement::Kind::kSetBlock: {
      SOUP_ASSIGN_OR_RETURN(const Value value, Filtered(s, scope));
      SOUP_RETURN_IF_ERROR(Assign(s.targets, value, scope));
      return Flow::kNext;
    }
    case Statement::Kind::kMacro: {
      SOUP_ASSIGN_OR_RETURN(Value macro, NewMacro(s, scope));
      scope->Set(s.text, std::move(macro));
      return Flow::kNext;
    }
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
    case Statement::Kind::kGeneration:
      SOUP_RETURN_IF_ERROR(RunGeneration(s, scope));
      return Flow::kNext;
    case Statement::Kind::kWith: {
      auto inner = std::make_shared<Scope>(scope);
      for (size_t i = 0; i < s.targets.size(); ++i) {
        SOUP_ASSIGN_OR_RETURN(Value value, Eval(*s.values[i], scope));
        inner->Set(s.targets[i], std::move(value));
      }
      return RunBlock(s.body, inner);
    }
  }
  return absl::InternalError("unknown kind of statement");
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunIf(const Statement& s, const ScopePtr& scope) {
  for (const Statement::Branch& branch : s.branches) {
    if (branch.condition != nullptr) {
      SOUP_ASSIGN_OR_RETURN(const Value condition, Eval(*branch.condition, scope));
      if (!Truth(condition)) continue;
    }
    return RunBlock(branch.body, scope);
  }
  return Flow::kNext;
}

absl::StatusOr<Value> Interpreter::NewMacro(const Statement& s, const ScopePtr& scope) {
  auto macro = std::make_unique<Macro>();
  macro->definition = &s;
  macro->scope = scope;
  const Value out = Value::Object(macro.get());
  SOUP_RETURN_IF_ERROR(Own(std::move(macro)));
  return out;
}

absl::Status Interpreter::RunCall(const Statement& s, const ScopePtr& scope) {
  SOUP_ASSIGN_OR_RETURN(const Value caller, NewMacro(s, scope));
  auto value = EvalCall(*s.value, scope, &caller);
  if (!value.ok()) return Place(value.status(), s.value->at);
  SOUP_ASSIGN_OR_RETURN(const std::string text, ToText(*value, &budget_));
  return Write(text);
}

absl::StatusOr<Value> Interpreter::Filtered(const Statement& s, const ScopePtr& scope) {
  SOUP_ASSIGN_OR_RETURN(std::string text, Capture(s.body, std::make_shared<Scope>(scope)));
  if (s.value == nullptr) return Value::String(std::move(text));
  auto inner = std::make_shared<Scope>(scope);
  inner->Set(kBlockText, Value::String(std::move(text)));
  return Eval(*s.value, inner);
}

// As jinja2, no earlier than need be: the body may change what the condition looks at.
absl::Status Interpreter::LookAhead(Loop* loop, size_t items) {
  const Statement& s = *loop->statement;
  while (loop->items.size() < items && loop->looked_at < loop->over.size()) {
    const Value item = loop->over[loop->looked_at++];
    if (s.condition != nullptr) {
      auto inner = std::make_shared<Scope>(loop->scope);
      SOUP_RETURN_IF_ERROR(Assign(s.targets, item, inner));
      SOUP_ASSIGN_OR_RETURN(const Value condition, Eval(*s.condition, inner));
      if (!Truth(condition)) continue;
    }
    loop->items.push_back(item);
  }
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Statement& s, const ScopePtr& scope) {
  SOUP_ASSIGN_OR_RETURN(const Value over, Eval(*s.value, scope));
  SOUP_RETURN_IF_ERROR(RunLoop(s, over, scope, /*depth=*/1));
  return Flow::kNext;
}

absl::Status Interpreter::RunLoop(const Statement& s, const Value& over, const ScopePtr& scope,
                                  int depth) {
  auto owned = std::make_unique<Loop>();
  Loop* const loop = owned.get();
  SOUP_ASSIGN_OR_RETURN(loop->over, Elements(over, &budget_));
  SOUP_RETURN_IF_ERROR(Own(std::move(owned)));
  loop->statement = &s;
  loop->scope = scope;
  loop->depth = depth;
  absl::Status status = LookAhead(loop, 1);
  const bool none = status.ok() && loop->items.empty();
  for (; status.ok() && loop->index < loop->items.size(); ++loop->index) {
    auto inner = std::make_shared<Scope>(scope);  // what is set in an iteration ends with it
    inner->Set("loop", Value::Object(loop));
    status = Assign(s.targets, loop->items[loop->index], inner);
    if (!status.ok()) break;
    const absl::StatusOr<Flow> flow = RunBlock(s.body, inner);
    status = flow.status();
    if (!status.ok() || *flow == Flow::kBreak) break;
    status = LookAhead(loop, loop->index + 2);
  }
  loop->over.clear();
  loop->items.clear();
  loop->scope = nullptr;
  if (none) return RunBlock(s.otherwise, std::make_shared<Scope>(scope)).status();
  return status;
}

absl::Status Interpreter::RunSet(const Statement& s, const ScopePtr& scope) {
  SOUP_ASSIGN_OR_RETURN(const Value value, Eval(*s.value, scope));
  return Assign(s.targets, value, scope);
}

absl::Status Interpreter::Assign(const std::vector<std::string>& targets, const Value& value,
                                 const ScopePtr& scope) {
  if (targets.size() == 1) {
    const size_t dot = targets[0].find('.');
    if (dot == std::string::npos) {
      scope->Set(targets[0], value);
      return absl::OkStatus();
    }
    SOUP_ASSIGN_OR_RETURN(const Value of, EvalName(targets[0].substr(0, dot), scope));
    auto* ns = of.is_object() ? dynamic_cast<Namespace*>(of.AsObject()) : nullptr;
    if (ns == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", targets[0], "' cannot be set: only a namespace's attributes can"));
    }
    ns->attributes.Set(targets[0].substr(dot + 1), value);
    return absl::OkStatus();
  }
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> parts, Elements(value, &budget_));
  if (parts.size() != targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of ", parts.size(), " parts for ", targets.size(), " variables"));
  }
  for (size_t i = 0; i < parts.size(); ++i) scope->Set(targets[i], parts[i]);
  return absl::OkStatus();
}

absl::Status Interpreter::RunGeneration(const Statement& s, const ScopePtr& scope) {
  if (out_ != &output_)
    return absl::InvalidArgumentError("a generation block within a macro is not supported");
  const size_t begin = output_.size();
  SOUP_RETURN_IF_ERROR(RunBlock(s.body, std::make_shared<Scope>(scope)).status());
  generation_.emplace_back(begin, output_.size());
  return absl::OkStatus();
}

}  // namespace soup::engine::jinja
