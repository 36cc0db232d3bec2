// What a chat template says, parsed. Nodes are plain values, immutable once parsed; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_AST_H_
#define SOUP_ENGINE_DATA_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/jinja/lexer.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

// The name under which a filter chain finds the text of its block.
inline constexpr char kBlockText[] = "{text of the block}";

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kConst,        // constant
    kName,         // name
    kList,         // args
    kTuple,        // args
    kDict,         // args: key, value, key, value, ...
    kAttribute,    // args[0].name
    kItem,         // args[0][args[1]]
    kSlice,        // args[0][args[1]:args[2]:args[3]], null where left out
    kCall,         // args[0](args[1..], named)
    kFilter,       // args[0] | name(args[1..], named)
    kTest,         // args[0] is name(args[1..], named)
    kNegate,       // -args[0]
    kPlus,         // +args[0]
    kNot,          // not args[0]
    kAnd,          // args[0] and args[1]
    kOr,           // args[0] or args[1]
    kArithmetic,   // args[0] name args[1]; name: + - * / // % **
    kConcat,       // args[0] ~ args[1] ~ ...
    kCompare,      // args[0] operators[0] args[1] operators[1] args[2] ...
    kConditional,  // args[1] if args[0] else args[2] (null: undefined)
  };
  Kind kind = Kind::kConst;
  Position at;
  std::string name;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;             // f(*star, **star_star); null: none
  std::vector<std::string> operators;  // == != < <= > >= in "not in"
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // {{ value }}
    kIf,        // branches in order; the last may have no condition
    kFor,       // for targets in value [if condition] [recursive]: body, else: otherwise
    kSet,       // set targets = value
    kSetBlock,  // set targets[0]: body, through the filters of value (null: none)
    kMacro,     // macro text(parameters): body
    kCall,      // call(parameters) value: body, which the called macro knows as caller
    kFilter,    // filter: body, through the filters of value
    kBreak,
    kContinue,
    kGeneration,  // body, in a scope of its own
    kWith,        // with targets[i] = values[i]: body
  };
  struct Branch {
    ExprPtr condition;  // null: else
    Block body;
  };
  struct Parameter {
    std::string name;
    ExprPtr default_value;  // null: none
  };
  Kind kind = Kind::kText;
  Position at;
  std::string text;
  // Names, or "namespace.attribute" in kSet.
  std::vector<std::string> targets;
  ExprPtr value;
  ExprPtr condition;
  std::vector<ExprPtr> values;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  bool recursive = false;                                               // kFor
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  // kMacro, kCall
  Block body;
  Block otherwise;
};

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_AST_H_
