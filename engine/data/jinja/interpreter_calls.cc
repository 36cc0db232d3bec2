// Calls of an Interpreter: methods, macros, the few functions that templates are given, loop.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/interpreter_objects.h"
#include "engine/data/jinja/methods.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/value_ops.h"

namespace soup::engine::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox

}  // namespace

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
  if (e.star != nullptr) {
    SOUP_ASSIGN_OR_RETURN(const Value star, Eval(*e.star, scope));
    SOUP_ASSIGN_OR_RETURN(const std::vector<Value> more, Elements(star, &budget_));
    out.positional.insert(out.positional.end(), more.begin(), more.end());
  }
  if (e.star_star != nullptr) {
    SOUP_ASSIGN_OR_RETURN(const Value more, Eval(*e.star_star, scope));
    if (!more.is_dict()) return TypeError("a '**' argument", more);
    for (const auto& [name, value] : more.AsDict()) {
      const auto known = std::find_if(out.named.begin(), out.named.end(),
                                      [&name = name](const auto& a) { return a.first == name; });
      if (known != out.named.end())
        return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' is given twice"));
      out.named.emplace_back(name, value);
    }
  }
  return out;
}

absl::StatusOr<Value> Interpreter::EvalCall(const Expr& e, const ScopePtr& scope,
                                            const Value* caller) {
  const Expr& callee = *e.args[0];
  Value function;
  if (callee.kind == Expr::Kind::kAttribute) {
    SOUP_ASSIGN_OR_RETURN(const Value self, Eval(*callee.args[0], scope));
    const bool known = IsMethod(self, callee.name) ||
                       (self.is_object() && dynamic_cast<Loop*>(self.AsObject()) != nullptr);
    if (known && caller != nullptr)
      return absl::InvalidArgumentError("a call block of a method is not supported");
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
  SOUP_ASSIGN_OR_RETURN(CallArgs args, EvalArgs(e, scope));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  if (function.is_object()) {
    if (const auto* loop = dynamic_cast<const Loop*>(function.AsObject()))
      return CallRecursively(*loop, args);
    if (const auto* macro = dynamic_cast<const Macro*>(function.AsObject()))
      return CallMacro(*macro, args);
    if (const auto* builtin = dynamic_cast<const Builtin*>(function.AsObject()))
      return CallBuiltin(*builtin, args);
  }
  return absl::InvalidArgumentError(absl::StrCat(function.KindName(), " cannot be called"));
}

// As jinja2's Macro: parameters by place, then by name, then what the body's use of caller, kwargs
// and varargs lets in.
absl::StatusOr<Value> Interpreter::CallMacro(const Macro& macro, const CallArgs& args) {
  const Statement& definition = *macro.definition;
  auto scope = std::make_shared<Scope>(macro.scope);
  CallArgs rest;
  rest.named = args.named;
  for (size_t i = definition.parameters.size(); i < args.positional.size(); ++i)
    rest.positional.push_back(args.positional[i]);
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const Statement::Parameter& p = definition.parameters[i];
    if (i < args.positional.size()) {
      scope->Set(p.name, args.positional[i]);
      continue;
    }
    const auto named = std::find_if(rest.named.begin(), rest.named.end(),
                                    [&p](const auto& a) { return a.first == p.name; });
    if (named != rest.named.end()) {
      scope->Set(p.name, named->second);
      rest.named.erase(named);
    } else if (p.default_value != nullptr) {
      SOUP_ASSIGN_OR_RETURN(Value value, Eval(*p.default_value, scope));
      scope->Set(p.name, std::move(value));
    } else {
      scope->Set(p.name, Value::Undefined(p.name));
    }
  }
  SOUP_RETURN_IF_ERROR(BindRest(definition, std::move(rest), scope));
  SOUP_ASSIGN_OR_RETURN(std::string text, Capture(definition.body, scope));
  return Value::String(std::move(text));
}

absl::Status Interpreter::BindRest(const Statement& definition, CallArgs rest,
                                   const ScopePtr& scope) {
  if (definition.uses_caller) {
    const auto caller = std::find_if(rest.named.begin(), rest.named.end(),
                                     [](const auto& a) { return a.first == "caller"; });
    const bool given = caller != rest.named.end();
    scope->Set("caller",
               given && !caller->second.is_none() ? caller->second : Value::Undefined("caller"));
    if (given) rest.named.erase(caller);
  }
  if (definition.uses_kwargs) {
    SOUP_ASSIGN_OR_RETURN(Value more, Value::Dict({rest.named.begin(), rest.named.end()}));
    scope->Set("kwargs", std::move(more));
  } else if (!rest.named.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "macro '", definition.text, "' takes no further argument '", rest.named[0].first, "'"));
  }
  if (definition.uses_varargs) {
    SOUP_ASSIGN_OR_RETURN(Value more, Value::List(std::move(rest.positional), /*tuple=*/true));
    scope->Set("varargs", std::move(more));
  } else if (!rest.positional.empty()) {
    const size_t most = definition.parameters.size();
    return absl::InvalidArgumentError(absl::StrCat("macro '", definition.text, "' takes at most ",
                                                   most, " arguments, ",
                                                   most + rest.positional.size(), " are given"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::CallRecursively(const Loop& loop, const CallArgs& args) {
  if (loop.statement == nullptr || !loop.statement->recursive || loop.scope == nullptr)
    return absl::InvalidArgumentError("'loop' can be called within a recursive loop only");
  if (args.positional.size() != 1 || !args.named.empty())
    return absl::InvalidArgumentError("'loop' is called with one value");
  // The scope is kept: the loop may end within.
  const ScopePtr scope = loop.scope;
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const absl::Status status = RunLoop(*loop.statement, args.positional[0], scope, loop.depth + 1);
  out_ = outer;
  SOUP_RETURN_IF_ERROR(status);
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

absl::StatusOr<Value> Interpreter::LoopAttribute(Loop* loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop->index);
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "depth") return Value::Int(loop->depth);
  if (name == "depth0") return Value::Int(loop->depth - 1);
  if (name == "previtem" && loop->index > 0 && loop->index - 1 < loop->items.size())
    return loop->items[loop->index - 1];
  if (name == "last" || name == "nextitem") {
    SOUP_RETURN_IF_ERROR(LookAhead(loop, loop->index + 2));
    const bool last = loop->index + 1 >= loop->items.size();
    if (name == "last") return Value::Bool(last);
    if (!last) return loop->items[loop->index + 1];
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    SOUP_RETURN_IF_ERROR(LookAhead(loop, loop->over.size()));
    const auto size = static_cast<int64_t>(loop->items.size());
    if (name == "length") return Value::Int(size);
    return Value::Int(size - index - (name == "revindex" ? 0 : 1));
  }
  return Value::Undefined(absl::StrCat("loop.", name));
}

}  // namespace soup::engine::jinja
