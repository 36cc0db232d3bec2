#include "engine/data/jinja/interpreter.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/filters.h"
#include "engine/data/jinja/methods.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/value_ops.h"
#include "engine/data/jinja/value_tests.h"

namespace soup::engine::jinja {
namespace {

constexpr int kMaxDepth = 700;          // evaluations within evaluations
constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox
constexpr int64_t kObjectBytes = 256;

constexpr const char* kBuiltins[] = {"range", "namespace", "dict", "raise_exception",
                                     "strftime_now"};

}  // namespace

// Variables of one scope; a name that is not here is looked for in the parent.
struct Interpreter::Scope {
  explicit Scope(ScopePtr outer) : parent(std::move(outer)) {}
  ScopePtr parent;
  std::vector<std::pair<std::string, Value>> variables;

  Value* Find(const std::string& name) {
    for (auto& [known, value] : variables)
      if (known == name) return &value;
    return nullptr;
  }
  void Set(const std::string& name, Value value) {
    if (Value* known = Find(name)) {
      *known = std::move(value);
    } else {
      variables.emplace_back(name, std::move(value));
    }
  }
};

struct Interpreter::Namespace : TemplateObject {
  Scope attributes{nullptr};
};
struct Interpreter::Macro : TemplateObject {
  const Statement* definition = nullptr;
  ScopePtr scope;  // where it was defined
};
struct Interpreter::Builtin : TemplateObject {
  std::string name;
};
struct Interpreter::Loop : TemplateObject {
  std::vector<Value> items;  // emptied when the loop is over
  size_t index = 0;
  int64_t size = 0;
  std::optional<Value> last_changed;
};

// Counts evaluations within evaluations: the stack stays bounded.
class Interpreter::Depth {
 public:
  explicit Depth(Interpreter* owner) : owner_(owner) { ++owner_->depth_; }
  ~Depth() { --owner_->depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  absl::Status Check() const {
    if (owner_->depth_ <= kMaxDepth) return absl::OkStatus();
    return absl::InvalidArgumentError("the template calls itself too deep");
  }

 private:
  Interpreter* owner_;
};

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

// --- Statements ----------------------------------------------------------------------------------

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
    case Statement::Kind::kSetBlock: {
      SOUP_ASSIGN_OR_RETURN(std::string text, Capture(s.body, std::make_shared<Scope>(scope)));
      SOUP_RETURN_IF_ERROR(Assign(s.targets, Value::String(std::move(text)), scope));
      return Flow::kNext;
    }
    case Statement::Kind::kMacro: {
      auto macro = std::make_unique<Macro>();
      macro->definition = &s;
      macro->scope = scope;
      scope->Set(s.text, Value::Object(macro.get()));
      SOUP_RETURN_IF_ERROR(Own(std::move(macro)));
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

// The items of a for statement that pass its condition.
absl::StatusOr<std::vector<Value>> Interpreter::LoopItems(const Statement& s,
                                                          const ScopePtr& scope) {
  SOUP_ASSIGN_OR_RETURN(const Value iterable, Eval(*s.value, scope));
  SOUP_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(iterable, &budget_));
  if (s.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    auto inner = std::make_shared<Scope>(scope);
    SOUP_RETURN_IF_ERROR(Assign(s.targets, item, inner));
    SOUP_ASSIGN_OR_RETURN(const Value condition, Eval(*s.condition, inner));
    if (Truth(condition)) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Statement& s, const ScopePtr& scope) {
  auto owned = std::make_unique<Loop>();
  Loop* const loop = owned.get();
  SOUP_ASSIGN_OR_RETURN(loop->items, LoopItems(s, scope));
  SOUP_RETURN_IF_ERROR(Own(std::move(owned)));
  if (loop->items.empty()) return RunBlock(s.otherwise, std::make_shared<Scope>(scope));
  loop->size = static_cast<int64_t>(loop->items.size());
  absl::Status status;
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    auto inner = std::make_shared<Scope>(scope);  // what is set in an iteration ends with it
    inner->Set("loop", Value::Object(loop));
    status = Assign(s.targets, loop->items[loop->index], inner);
    if (!status.ok()) break;
    const absl::StatusOr<Flow> flow = RunBlock(s.body, inner);
    status = flow.status();
    if (!status.ok() || *flow == Flow::kBreak) break;
  }
  loop->items.clear();
  SOUP_RETURN_IF_ERROR(status);
  return Flow::kNext;
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

// --- Calls ---------------------------------------------------------------------------------------

absl::StatusOr<CallArgs> Interpreter::EvalArgs(const Expr& e, const ScopePtr& scope) {
  CallArgs out;
  for (size_t i = 1; i < e.args.size(); ++i) {
    SOUP_ASSIGN_OR_RETURN(Value value, Eval(*e.args[i], scope));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, expr] : e.named) {
    SOUP_ASSIGN_OR_RETURN(Value value, Eval(*expr, scope));
    out.named.emplace_back(name, std::move(value));
  }
  return out;
}

absl::StatusOr<Value> Interpreter::EvalCall(const Expr& e, const ScopePtr& scope) {
  const Expr& callee = *e.args[0];
  Value function;
  if (callee.kind == Expr::Kind::kAttribute) {
    SOUP_ASSIGN_OR_RETURN(const Value self, Eval(*callee.args[0], scope));
    if (IsMethod(self, callee.name)) {
      SOUP_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(e, scope));
      return CallMethod(self, callee.name, args, &budget_);
    }
    if (auto* loop = self.is_object() ? dynamic_cast<Loop*>(self.AsObject()) : nullptr) {
      SOUP_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(e, scope));
      return CallLoop(loop, callee.name, args);
    }
    SOUP_ASSIGN_OR_RETURN(function, EvalAttribute(self, callee.name));
  } else {
    SOUP_ASSIGN_OR_RETURN(function, Eval(callee, scope));
  }
  if (function.is_undefined()) return UndefinedError(function);
  SOUP_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(e, scope));
  if (function.is_object()) {
    if (const auto* macro = dynamic_cast<const Macro*>(function.AsObject()))
      return CallMacro(*macro, args);
    if (const auto* builtin = dynamic_cast<const Builtin*>(function.AsObject()))
      return CallBuiltin(*builtin, args);
  }
  return absl::InvalidArgumentError(absl::StrCat(function.KindName(), " cannot be called"));
}

absl::StatusOr<Value> Interpreter::CallMacro(const Macro& macro, const CallArgs& args) {
  const Statement& definition = *macro.definition;
  auto scope = std::make_shared<Scope>(macro.scope);
  if (args.positional.size() > definition.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("macro '", definition.text, "' takes at most ",
                                                   definition.parameters.size(), " arguments, ",
                                                   args.positional.size(), " are given"));
  }
  for (const auto& [name, value] : args.named) {
    const auto known = std::find_if(definition.parameters.begin(), definition.parameters.end(),
                                    [name = &name](const auto& p) { return p.name == *name; });
    const auto index = static_cast<size_t>(known - definition.parameters.begin());
    if (known == definition.parameters.end() || index < args.positional.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", definition.text, "' takes no further argument '", name, "'"));
    }
  }
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const Statement::Parameter& p = definition.parameters[i];
    const auto named = std::find_if(args.named.begin(), args.named.end(),
                                    [&p](const auto& a) { return a.first == p.name; });
    if (i < args.positional.size()) {
      scope->Set(p.name, args.positional[i]);
    } else if (named != args.named.end()) {
      scope->Set(p.name, named->second);
    } else if (p.default_value != nullptr) {
      SOUP_ASSIGN_OR_RETURN(Value value, Eval(*p.default_value, scope));
      scope->Set(p.name, std::move(value));
    } else {
      scope->Set(p.name, Value::Undefined(p.name));
    }
  }
  SOUP_ASSIGN_OR_RETURN(std::string text, Capture(definition.body, scope));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Interpreter::Range(const CallArgs& args) {
  int64_t part[3] = {0, 0, 1};
  const size_t n = args.positional.size();
  if (!args.named.empty() || n < 1 || n > 3)
    return absl::InvalidArgumentError("'range' takes one to three integers");
  for (size_t i = 0; i < n; ++i) {
    if (!args.positional[i].is_int()) return TypeError("'range'", args.positional[i]);
    part[n == 1 ? 1 : i] = args.positional[i].AsInt();
  }
  if (part[2] == 0) return absl::InvalidArgumentError("'range' with step 0");
  std::vector<Value> out;
  for (int64_t i = part[0]; part[2] > 0 ? i < part[1] : i > part[1];) {
    if (static_cast<int64_t>(out.size()) >= kMaxRange)
      return absl::InvalidArgumentError(absl::StrCat("'range' over ", kMaxRange, " items"));
    SOUP_RETURN_IF_ERROR(budget_.Steps(1));
    out.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, part[2], &i)) break;
  }
  return Value::List(std::move(out));
}

absl::StatusOr<Value> Interpreter::CallBuiltin(const Builtin& builtin, const CallArgs& args) {
  if (builtin.name == "range") return Range(args);
  if (builtin.name == "raise_exception" || builtin.name == "strftime_now") {
    const bool raise = builtin.name == "raise_exception";
    SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                          BoundArgs::Bind(builtin.name, {raise ? "message" : "format"}, args));
    if (raise) {
      SOUP_ASSIGN_OR_RETURN(const Value message, bound.Required("message"));
      SOUP_ASSIGN_OR_RETURN(const std::string text, ToText(message, &budget_));
      return absl::InvalidArgumentError(absl::StrCat("the template refuses it: ", text));
    }
    SOUP_ASSIGN_OR_RETURN(const std::string format, bound.Text("format"));
    SOUP_ASSIGN_OR_RETURN(std::string text, FormatTime(format, options_.now_unix_seconds));
    return Value::String(std::move(text));
  }
  // namespace and dict: named values, on top of one dict.
  Value::Items items;
  if (args.positional.size() > 1 ||
      (args.positional.size() == 1 && !args.positional[0].is_dict())) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", builtin.name, "' takes named arguments and at most one object"));
  }
  if (args.positional.size() == 1) items = args.positional[0].AsDict();
  items.insert(items.end(), args.named.begin(), args.named.end());
  if (builtin.name == "dict") return Value::Dict(std::move(items));
  auto ns = std::make_unique<Namespace>();
  for (auto& [name, value] : items) ns->attributes.Set(name, value);
  const Value out = Value::Object(ns.get());
  SOUP_RETURN_IF_ERROR(Own(std::move(ns)));
  return out;
}

absl::StatusOr<Value> Interpreter::CallLoop(Loop* loop, const std::string& name,
                                            const CallArgs& args) {
  if (name == "cycle" && args.named.empty() && !args.positional.empty())
    return args.positional[loop->index % args.positional.size()];
  if (name == "changed" && args.named.empty()) {
    SOUP_ASSIGN_OR_RETURN(Value now, Value::List(args.positional, /*tuple=*/true));
    bool same = false;
    if (loop->last_changed) {
      SOUP_ASSIGN_OR_RETURN(same, Equal(*loop->last_changed, now, &budget_));
    }
    loop->last_changed = std::move(now);
    return Value::Bool(!same);
  }
  return absl::InvalidArgumentError(absl::StrCat("'loop.", name, "' cannot be called so"));
}

Value Interpreter::LoopAttribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(loop.size - index);
  if (name == "revindex0") return Value::Int(loop.size - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == loop.size);
  if (name == "length") return Value::Int(loop.size);
  if (name == "depth") return Value::Int(1);  // of recursive loops, which are not supported
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem" && loop.index > 0 && loop.index - 1 < loop.items.size())
    return loop.items[loop.index - 1];
  if (name == "nextitem" && loop.index + 1 < loop.items.size()) return loop.items[loop.index + 1];
  return Value::Undefined(absl::StrCat("loop.", name));
}

// --- Expressions ---------------------------------------------------------------------------------

absl::StatusOr<Value> Interpreter::Eval(const Expr& e, const ScopePtr& scope) {
  const Depth depth(this);
  absl::Status status = depth.Check();
  if (status.ok()) status = budget_.Steps(1);
  if (!status.ok()) return Place(std::move(status), e.at);
  auto value = EvalNode(e, scope);
  if (!value.ok()) return Place(value.status(), e.at);
  return value;
}

absl::StatusOr<Value> Interpreter::EvalNode(const Expr& e, const ScopePtr& scope) {
  using Kind = Expr::Kind;
  switch (e.kind) {
    case Kind::kConst:
      return e.constant;
    case Kind::kName:
      return EvalName(e.name, scope);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return EvalLiteral(e, scope);
    case Kind::kSlice:
      return EvalSlice(e, scope);
    case Kind::kCall:
      return EvalCall(e, scope);
    case Kind::kConcat:
      return EvalConcat(e, scope);
    case Kind::kCompare:
      return EvalCompare(e, scope);
    case Kind::kConditional: {
      SOUP_ASSIGN_OR_RETURN(const Value condition, Eval(*e.args[0], scope));
      if (Truth(condition)) return Eval(*e.args[1], scope);
      return e.args[2] != nullptr ? Eval(*e.args[2], scope) : Value::Undefined("inline if");
    }
    default:
      break;
  }
  SOUP_ASSIGN_OR_RETURN(Value first, Eval(*e.args[0], scope));
  switch (e.kind) {
    case Kind::kAttribute:
      return EvalAttribute(first, e.name);
    case Kind::kItem: {
      SOUP_ASSIGN_OR_RETURN(const Value key, Eval(*e.args[1], scope));
      if (first.is_object() && key.is_string()) return EvalAttribute(first, key.AsString());
      return Item(first, key, &budget_);
    }
    case Kind::kFilter: {
      SOUP_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(e, scope));
      return ApplyFilter(e.name, first, args, &budget_);
    }
    case Kind::kTest: {
      SOUP_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(e, scope));
      SOUP_ASSIGN_OR_RETURN(const bool holds, ApplyTest(e.name, first, args, &budget_));
      return Value::Bool(holds);
    }
    case Kind::kNegate:
      return Negate(first);
    case Kind::kPlus:
      return first.is_number() ? absl::StatusOr<Value>(first) : TypeError("'+'", first);
    case Kind::kNot:
      return Value::Bool(!Truth(first));
    case Kind::kAnd:
      return Truth(first) ? Eval(*e.args[1], scope) : first;
    case Kind::kOr:
      return Truth(first) ? first : Eval(*e.args[1], scope);
    case Kind::kArithmetic: {
      SOUP_ASSIGN_OR_RETURN(const Value second, Eval(*e.args[1], scope));
      return Arithmetic(e.name, first, second, &budget_);
    }
    default:
      return absl::InternalError("unknown kind of expression");
  }
}

absl::StatusOr<Value> Interpreter::EvalLiteral(const Expr& e, const ScopePtr& scope) {
  std::vector<Value> values;
  for (const ExprPtr& arg : e.args) {
    SOUP_ASSIGN_OR_RETURN(Value value, Eval(*arg, scope));
    values.push_back(std::move(value));
  }
  if (e.kind != Expr::Kind::kDict)
    return Value::List(std::move(values), e.kind == Expr::Kind::kTuple);
  Value::Items items;
  for (size_t i = 0; i < values.size(); i += 2) {
    if (!values[i].is_string()) return TypeError("an object's key", values[i]);
    items.emplace_back(values[i].AsString(), std::move(values[i + 1]));
  }
  return Value::Dict(std::move(items));
}

absl::StatusOr<Value> Interpreter::EvalName(const std::string& name, const ScopePtr& scope) {
  for (Scope* s = scope.get(); s != nullptr; s = s->parent.get())
    if (const Value* found = s->Find(name)) return *found;
  return Value::Undefined(name);
}

absl::StatusOr<Value> Interpreter::EvalAttribute(const Value& of, const std::string& name) {
  if (of.is_object()) {
    if (auto* ns = dynamic_cast<Namespace*>(of.AsObject())) {
      const Value* found = ns->attributes.Find(name);
      return found != nullptr ? *found : Value::Undefined(name);
    }
    if (const auto* loop = dynamic_cast<const Loop*>(of.AsObject()))
      return LoopAttribute(*loop, name);
    return Value::Undefined(name);
  }
  // Python finds the method first; a template that prints one has a mistake in it.
  if (IsMethod(of, name)) {
    return absl::InvalidArgumentError(absl::StrCat("'.", name, "' is a method of ", of.KindName(),
                                                   "; for a key of that name write ['", name,
                                                   "']"));
  }
  return Item(of, Value::String(name), &budget_);
}

absl::StatusOr<Value> Interpreter::EvalCompare(const Expr& e, const ScopePtr& scope) {
  SOUP_ASSIGN_OR_RETURN(Value left, Eval(*e.args[0], scope));
  for (size_t i = 0; i < e.operators.size(); ++i) {
    SOUP_ASSIGN_OR_RETURN(Value right, Eval(*e.args[i + 1], scope));
    const std::string& op = e.operators[i];
    bool holds;
    if (op == "in" || op == "not in") {
      SOUP_ASSIGN_OR_RETURN(holds, Contains(right, left, &budget_));
      holds = holds == (op == "in");
    } else {
      CallArgs args;
      args.positional.push_back(right);
      SOUP_ASSIGN_OR_RETURN(holds, ApplyTest(op, left, args, &budget_));
    }
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvalConcat(const Expr& e, const ScopePtr& scope) {
  std::string out;
  for (const ExprPtr& arg : e.args) {
    SOUP_ASSIGN_OR_RETURN(const Value value, Eval(*arg, scope));
    SOUP_ASSIGN_OR_RETURN(const std::string text, ToText(value, &budget_));
    out += text;
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Interpreter::EvalSlice(const Expr& e, const ScopePtr& scope) {
  Value part[4];
  for (size_t i = 0; i < 4; ++i) {
    if (e.args[i] == nullptr) continue;
    SOUP_ASSIGN_OR_RETURN(part[i], Eval(*e.args[i], scope));
  }
  return Slice(part[0], part[1], part[2], part[3], &budget_);
}

}  // namespace soup::engine::jinja
