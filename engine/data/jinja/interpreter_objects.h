// What an Interpreter's variables hold beside values. Part of interpreter.h, for its .cc files
// alone. Not thread-safe.
#ifndef SOUP_ENGINE_DATA_JINJA_INTERPRETER_OBJECTS_H_
#define SOUP_ENGINE_DATA_JINJA_INTERPRETER_OBJECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/jinja/ast.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

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
  const Statement* statement = nullptr;
  ScopePtr scope;            // around the statement; dropped when the loop is over
  int depth = 1;             // of a recursive loop within itself
  std::vector<Value> over;   // what is looped over; emptied when the loop is over, as `items`
  size_t looked_at = 0;      // of it
  std::vector<Value> items;  // of these, what passes the statement's condition
  size_t index = 0;
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
    if (owner_->depth_ <= kMaxEvaluations) return absl::OkStatus();
    return absl::InvalidArgumentError("the template calls itself too deep");
  }

 private:
  static constexpr int kMaxEvaluations = 400;  // some 5 KiB of stack each with sanitizers on
  Interpreter* owner_;
};

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_INTERPRETER_OBJECTS_H_
