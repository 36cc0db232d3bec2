// Expressions of an Interpreter.
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/filters.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/interpreter_objects.h"
#include "engine/data/jinja/methods.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/value_ops.h"
#include "engine/data/jinja/value_tests.h"

namespace soup::engine::jinja {
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
    if (auto* loop = dynamic_cast<Loop*>(of.AsObject())) return LoopAttribute(loop, name);
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
