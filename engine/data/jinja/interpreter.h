// Runs a parsed template over its variables. Sandboxed: no value is changed, nothing outside is
// reached, steps, bytes and depth are bounded. One rendering an object; not thread-safe.
#ifndef SOUP_ENGINE_DATA_JINJA_INTERPRETER_H_
#define SOUP_ENGINE_DATA_JINJA_INTERPRETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/jinja/ast.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/jinja/call_args.h"
#include "engine/data/jinja/template.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

class Interpreter {
 public:
  // Both arguments outlive it.
  Interpreter(const Value::Items& globals, const RenderOptions& options);
  ~Interpreter();

  // Errors: InvalidArgument ("line L column C: ...").
  absl::StatusOr<Rendering> Run(const Block& block);

 private:
  struct Scope;
  using ScopePtr = std::shared_ptr<Scope>;
  struct Namespace;
  struct Macro;
  struct Loop;
  struct Builtin;
  enum class Flow { kNext, kBreak, kContinue };
  class Depth;

  absl::StatusOr<Flow> RunBlock(const Block& block, const ScopePtr& scope);
  absl::StatusOr<Flow> RunStatement(const Statement& s, const ScopePtr& scope);
  absl::StatusOr<Flow> RunIf(const Statement& s, const ScopePtr& scope);
  absl::StatusOr<Flow> RunFor(const Statement& s, const ScopePtr& scope);
  // The for statement over a value: the first time, or called by its own body.
  absl::Status RunLoop(const Statement& s, const Value& over, const ScopePtr& scope, int depth);
  absl::Status RunSet(const Statement& s, const ScopePtr& scope);
  absl::Status RunGeneration(const Statement& s, const ScopePtr& scope);
  // What `body` writes, apart from the output.
  absl::StatusOr<std::string> Capture(const Block& body, const ScopePtr& scope);
  absl::Status Write(const std::string& text);
  // Looks at what is looped over until so many items have passed the condition, or at all of it.
  absl::Status LookAhead(Loop* loop, size_t items);
  absl::Status RunCall(const Statement& s, const ScopePtr& scope);
  // The text of s.body, through the filters of s.value if there are any.
  absl::StatusOr<Value> Filtered(const Statement& s, const ScopePtr& scope);
  absl::StatusOr<Value> NewMacro(const Statement& s, const ScopePtr& scope);
  absl::Status Assign(const std::vector<std::string>& targets, const Value& value,
                      const ScopePtr& scope);

  absl::StatusOr<Value> Eval(const Expr& e, const ScopePtr& scope);
  absl::StatusOr<Value> EvalNode(const Expr& e, const ScopePtr& scope);
  absl::StatusOr<Value> EvalLiteral(const Expr& e, const ScopePtr& scope);
  absl::StatusOr<Value> EvalName(const std::string& name, const ScopePtr& scope);
  absl::StatusOr<Value> EvalAttribute(const Value& of, const std::string& name);
  absl::StatusOr<Value> EvalCompare(const Expr& e, const ScopePtr& scope);
  absl::StatusOr<Value> EvalConcat(const Expr& e, const ScopePtr& scope);
  absl::StatusOr<Value> EvalSlice(const Expr& e, const ScopePtr& scope);
  // `caller`: what a call block hands to the macro; null: nothing.
  absl::StatusOr<Value> EvalCall(const Expr& e, const ScopePtr& scope,
                                 const Value* caller = nullptr);
  absl::StatusOr<CallArgs> EvalArgs(const Expr& e, const ScopePtr& scope);
  absl::StatusOr<Value> CallMacro(const Macro& macro, const CallArgs& args);
  absl::Status BindRest(const Statement& definition, CallArgs rest, const ScopePtr& scope);
  absl::StatusOr<Value> CallRecursively(const Loop& loop, const CallArgs& args);
  absl::StatusOr<Value> CallBuiltin(const Builtin& builtin, const CallArgs& args);
  absl::StatusOr<Value> Range(const CallArgs& args);
  absl::StatusOr<Value> LoopAttribute(Loop* loop, const std::string& name);
  absl::StatusOr<Value> CallLoop(Loop* loop, const std::string& name, const CallArgs& args);

  // The object lives as long as the rendering.
  absl::Status Own(std::unique_ptr<TemplateObject> object);
  // Adds the place to an error that has none yet.
  absl::Status Place(absl::Status status, Position at);

  const Value::Items& globals_;
  const RenderOptions& options_;
  Budget budget_;
  std::vector<std::unique_ptr<TemplateObject>> objects_;
  ScopePtr builtins_;
  std::string output_;
  std::string* out_ = &output_;
  std::vector<std::pair<size_t, size_t>> generation_;
  int depth_ = 0;
  bool placed_ = false;
};

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_INTERPRETER_H_
