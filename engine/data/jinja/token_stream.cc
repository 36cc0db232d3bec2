#include "engine/data/jinja/token_stream.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/filters.h"
#include "engine/data/jinja/value_tests.h"

namespace soup::engine::jinja {
namespace {

using Kind = Expr::Kind;

std::string Describe(const Token& t) {
  switch (t.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    default:
      return absl::StrCat("'", t.text, "'");
  }
}

}  // namespace

// Counts how deep an expression is: recursion here and in the interpreter stays bounded.
class TokenStream::Nesting {
 public:
  explicit Nesting(TokenStream* stream) : stream_(stream) { ++stream_->nesting_; }
  ~Nesting() { --stream_->nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  bool too_deep() const { return stream_->nesting_ > kMaxNesting; }

 private:
  TokenStream* stream_;
};

bool TokenStream::TakeOperator(absl::string_view op) {
  if (!IsOperator(op)) return false;
  Advance();
  return true;
}
bool TokenStream::TakeName(absl::string_view name) {
  if (!IsName(name)) return false;
  Advance();
  return true;
}
absl::Status TokenStream::Unexpected(absl::string_view expected) const {
  return Error(absl::StrCat("unexpected ", Describe(Now()), ", expected ", expected));
}
absl::Status TokenStream::ExpectOperator(absl::string_view op) {
  return TakeOperator(op) ? absl::OkStatus() : Unexpected(absl::StrCat("'", op, "'"));
}
absl::Status TokenStream::ExpectName(absl::string_view name) {
  return TakeName(name) ? absl::OkStatus() : Unexpected(absl::StrCat("'", name, "'"));
}
absl::StatusOr<std::string> TokenStream::ExpectAnyName(absl::string_view what) {
  if (!Is(TokenKind::kName)) return Unexpected(what);
  std::string name = Now().text;
  Advance();
  return name;
}

// A chain `a + b + c ...` makes a tree as deep as it is long.
absl::Status TokenStream::CheckLinks(int links) const {
  return links < kMaxNesting ? absl::OkStatus() : Error("an expression is too long");
}

ExprPtr TokenStream::Make(Kind kind, Position at, ExprPtr first, ExprPtr second) {
  auto out = std::make_unique<Expr>();
  out->kind = kind;
  out->at = at;
  if (first != nullptr) out->args.push_back(std::move(first));
  if (second != nullptr) out->args.push_back(std::move(second));
  return out;
}

absl::StatusOr<ExprPtr> TokenStream::Expression(bool with_condition) {
  const Nesting nesting(this);
  if (nesting.too_deep()) return Error("expressions are nested too deep");
  return with_condition ? Conditional() : Or();
}

absl::StatusOr<ExprPtr> TokenStream::TupleOrExpression(bool with_condition) {
  const Position at = Now().at;
  SOUP_ASSIGN_OR_RETURN(ExprPtr first, Expression(with_condition));
  if (!IsOperator(",")) return first;
  ExprPtr tuple = Make(Kind::kTuple, at, std::move(first));
  while (TakeOperator(",")) {
    if (Is(TokenKind::kVariableEnd) || Is(TokenKind::kBlockEnd) || IsOperator(")") || IsName("if"))
      break;
    SOUP_ASSIGN_OR_RETURN(ExprPtr next, Expression(with_condition));
    tuple->args.push_back(std::move(next));
  }
  return tuple;
}

absl::StatusOr<ExprPtr> TokenStream::Conditional() {
  SOUP_ASSIGN_OR_RETURN(ExprPtr value, Or());
  for (int links = 0; IsName("if"); ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    const Position at = Now().at;
    Advance();
    SOUP_ASSIGN_OR_RETURN(ExprPtr condition, Or());
    ExprPtr out = Make(Kind::kConditional, at, std::move(condition), std::move(value));
    ExprPtr otherwise;
    if (TakeName("else")) {
      SOUP_ASSIGN_OR_RETURN(otherwise, Expression());
    }
    out->args.push_back(std::move(otherwise));
    value = std::move(out);
  }
  return value;
}

absl::StatusOr<ExprPtr> TokenStream::Or() {
  SOUP_ASSIGN_OR_RETURN(ExprPtr left, And());
  for (int links = 0; IsName("or"); ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    const Position at = Now().at;
    Advance();
    SOUP_ASSIGN_OR_RETURN(ExprPtr right, And());
    left = Make(Kind::kOr, at, std::move(left), std::move(right));
  }
  return left;
}

absl::StatusOr<ExprPtr> TokenStream::And() {
  SOUP_ASSIGN_OR_RETURN(ExprPtr left, Not());
  for (int links = 0; IsName("and"); ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    const Position at = Now().at;
    Advance();
    SOUP_ASSIGN_OR_RETURN(ExprPtr right, Not());
    left = Make(Kind::kAnd, at, std::move(left), std::move(right));
  }
  return left;
}

absl::StatusOr<ExprPtr> TokenStream::Not() {
  if (!IsName("not")) return Compare();
  const Nesting nesting(this);
  if (nesting.too_deep()) return Error("expressions are nested too deep");
  const Position at = Now().at;
  Advance();
  SOUP_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  return Make(Kind::kNot, at, std::move(operand));
}

absl::StatusOr<ExprPtr> TokenStream::Compare() {
  const Position at = Now().at;
  SOUP_ASSIGN_OR_RETURN(ExprPtr left, Sum());
  ExprPtr out;
  for (;;) {
    std::string op;
    for (const char* known : {"==", "!=", "<=", ">=", "<", ">"})
      if (op.empty() && TakeOperator(known)) op = known;
    if (op.empty() && TakeName("in")) op = "in";
    if (op.empty() && IsName("not") && Ahead().kind == TokenKind::kName && Ahead().text == "in") {
      Advance();
      Advance();
      op = "not in";
    }
    if (op.empty()) break;
    if (out == nullptr) out = Make(Kind::kCompare, at, std::move(left));
    SOUP_ASSIGN_OR_RETURN(ExprPtr right, Sum());
    out->operators.push_back(op);
    out->args.push_back(std::move(right));
  }
  return out != nullptr ? std::move(out) : std::move(left);
}

absl::StatusOr<ExprPtr> TokenStream::Sum() {
  SOUP_ASSIGN_OR_RETURN(ExprPtr left, Concat());
  for (int links = 0; IsOperator("+") || IsOperator("-"); ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    const Token op = Now();
    Advance();
    SOUP_ASSIGN_OR_RETURN(ExprPtr right, Concat());
    left = Make(Kind::kArithmetic, op.at, std::move(left), std::move(right));
    left->name = op.text;
  }
  return left;
}

absl::StatusOr<ExprPtr> TokenStream::Concat() {
  const Position at = Now().at;
  SOUP_ASSIGN_OR_RETURN(ExprPtr left, Product());
  if (!IsOperator("~")) return left;
  ExprPtr out = Make(Kind::kConcat, at, std::move(left));
  while (TakeOperator("~")) {
    SOUP_ASSIGN_OR_RETURN(ExprPtr next, Product());
    out->args.push_back(std::move(next));
  }
  return out;
}

absl::StatusOr<ExprPtr> TokenStream::Product() {
  SOUP_ASSIGN_OR_RETURN(ExprPtr left, Power());
  for (int links = 0; IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%");
       ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    const Token op = Now();
    Advance();
    SOUP_ASSIGN_OR_RETURN(ExprPtr right, Power());
    left = Make(Kind::kArithmetic, op.at, std::move(left), std::move(right));
    left->name = op.text;
  }
  return left;
}

absl::StatusOr<ExprPtr> TokenStream::Power() {
  SOUP_ASSIGN_OR_RETURN(ExprPtr left, Unary(/*with_filter=*/true));
  for (int links = 0; IsOperator("**"); ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    const Token op = Now();
    Advance();
    SOUP_ASSIGN_OR_RETURN(ExprPtr right, Unary(/*with_filter=*/true));
    left = Make(Kind::kArithmetic, op.at, std::move(left), std::move(right));
    left->name = op.text;
  }
  return left;
}

absl::StatusOr<ExprPtr> TokenStream::Unary(bool with_filter) {
  const Nesting nesting(this);
  if (nesting.too_deep()) return Error("expressions are nested too deep");
  const Position at = Now().at;
  ExprPtr node;
  if (IsOperator("-") || IsOperator("+")) {
    const Kind kind = IsOperator("-") ? Kind::kNegate : Kind::kPlus;
    Advance();
    SOUP_ASSIGN_OR_RETURN(ExprPtr operand, Unary(/*with_filter=*/false));
    node = Make(kind, at, std::move(operand));
  } else {
    SOUP_ASSIGN_OR_RETURN(node, Primary());
  }
  SOUP_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
  return with_filter ? FilterOrTest(std::move(node)) : std::move(node);
}

absl::StatusOr<ExprPtr> TokenStream::Number() {
  ExprPtr out = Make(Kind::kConst, Now().at);
  if (Is(TokenKind::kInteger)) {
    int64_t value;
    if (!absl::SimpleAtoi(Now().text, &value)) return Error("an integer beyond 64 bits");
    out->constant = Value::Int(value);
  } else {
    double value;
    if (!absl::SimpleAtod(Now().text, &value)) return Error("a malformed number");
    out->constant = Value::Float(value);
  }
  Advance();
  return out;
}

absl::StatusOr<ExprPtr> TokenStream::Primary() {
  const Token& token = Now();
  const Position at = token.at;
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return Number();
  if (token.kind == TokenKind::kString) {
    std::string text;
    for (; Is(TokenKind::kString); Advance()) text += Now().text;  // adjacent ones are one
    ExprPtr out = Make(Kind::kConst, at);
    out->constant = Value::String(std::move(text));
    return out;
  }
  if (token.kind == TokenKind::kName) {
    const std::string name = token.text;
    ExprPtr out = Make(Kind::kConst, at);
    if (name == "true" || name == "True") {
      out->constant = Value::Bool(true);
    } else if (name == "false" || name == "False") {
      out->constant = Value::Bool(false);
    } else if (name == "none" || name == "None") {
      out->constant = Value::None();
    } else {
      for (const char* word : {"and", "or", "not", "if", "else", "elif", "in", "is"})
        if (name == word) return Unexpected("an expression");
      out->kind = Kind::kName;
      out->name = name;
      macro_names_.caller |= name == "caller";
      macro_names_.varargs |= name == "varargs";
      macro_names_.kwargs |= name == "kwargs";
    }
    Advance();
    return out;
  }
  if (IsOperator("(")) return Parenthesised();
  if (IsOperator("[")) return ListLiteral();
  if (IsOperator("{")) return DictLiteral();
  return Unexpected("an expression");
}

absl::StatusOr<ExprPtr> TokenStream::Parenthesised() {
  const Position at = Now().at;
  Advance();
  if (TakeOperator(")")) return Make(Kind::kTuple, at);
  SOUP_ASSIGN_OR_RETURN(ExprPtr out, TupleOrExpression());
  SOUP_RETURN_IF_ERROR(ExpectOperator(")"));
  return out;
}

absl::StatusOr<ExprPtr> TokenStream::ListLiteral() {
  ExprPtr out = Make(Kind::kList, Now().at);
  Advance();
  while (!TakeOperator("]")) {
    if (!out->args.empty()) {
      SOUP_RETURN_IF_ERROR(ExpectOperator(","));
      if (TakeOperator("]")) break;
    }
    SOUP_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    out->args.push_back(std::move(item));
  }
  return out;
}

absl::StatusOr<ExprPtr> TokenStream::DictLiteral() {
  ExprPtr out = Make(Kind::kDict, Now().at);
  Advance();
  while (!TakeOperator("}")) {
    if (!out->args.empty()) {
      SOUP_RETURN_IF_ERROR(ExpectOperator(","));
      if (TakeOperator("}")) break;
    }
    SOUP_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    SOUP_RETURN_IF_ERROR(ExpectOperator(":"));
    SOUP_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    out->args.push_back(std::move(key));
    out->args.push_back(std::move(value));
  }
  return out;
}

absl::StatusOr<ExprPtr> TokenStream::Postfix(ExprPtr base) {
  for (int links = 0;; ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    const Position at = Now().at;
    if (TakeOperator(".")) {
      if (Is(TokenKind::kInteger)) {
        SOUP_ASSIGN_OR_RETURN(ExprPtr index, Number());
        base = Make(Kind::kItem, at, std::move(base), std::move(index));
        continue;
      }
      SOUP_ASSIGN_OR_RETURN(std::string name, ExpectAnyName("a name after '.'"));
      base = Make(Kind::kAttribute, at, std::move(base));
      base->name = std::move(name);
    } else if (IsOperator("[")) {
      SOUP_ASSIGN_OR_RETURN(base, Subscript(std::move(base)));
    } else if (IsOperator("(")) {
      ExprPtr call = Make(Kind::kCall, at, std::move(base));
      SOUP_RETURN_IF_ERROR(Arguments(call.get()));
      base = std::move(call);
    } else {
      return base;
    }
  }
}

absl::StatusOr<ExprPtr> TokenStream::Subscript(ExprPtr base) {
  const Position at = Now().at;
  Advance();
  ExprPtr part[3];
  bool slice = false;
  if (!IsOperator(":")) {
    SOUP_ASSIGN_OR_RETURN(part[0], Expression());
  }
  for (int i = 1; i < 3 && TakeOperator(":"); ++i) {
    slice = true;
    if (IsOperator(":") || IsOperator("]")) continue;
    SOUP_ASSIGN_OR_RETURN(part[i], Expression());
  }
  SOUP_RETURN_IF_ERROR(ExpectOperator("]"));
  if (!slice) return Make(Kind::kItem, at, std::move(base), std::move(part[0]));
  ExprPtr out = Make(Kind::kSlice, at, std::move(base));
  for (ExprPtr& p : part) out->args.push_back(std::move(p));
  return out;
}

absl::Status TokenStream::Arguments(Expr* call) {
  SOUP_RETURN_IF_ERROR(ExpectOperator("("));
  for (bool first = true; !TakeOperator(")"); first = false) {
    if (!first) {
      SOUP_RETURN_IF_ERROR(ExpectOperator(","));
      if (TakeOperator(")")) break;
    }
    if (IsOperator("*") || IsOperator("**")) {
      const bool named = IsOperator("**");
      if (call->star_star != nullptr || (!named && call->star != nullptr))
        return Error("a '*' argument too many");
      Advance();
      ExprPtr& star = named ? call->star_star : call->star;
      SOUP_ASSIGN_OR_RETURN(star, Expression());
      continue;
    }
    if (call->star_star != nullptr) return Error("an argument after a '**' one");
    if (Is(TokenKind::kName) && Ahead().kind == TokenKind::kOperator && Ahead().text == "=") {
      std::string name = Now().text;
      Advance();
      Advance();
      SOUP_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      call->named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!call->named.empty() || call->star != nullptr)
      return Error("a positional argument after a named or '*' one");
    SOUP_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    call->args.push_back(std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExprPtr> TokenStream::FilterOrTest(ExprPtr base) {
  for (int links = 0;; ++links) {
    SOUP_RETURN_IF_ERROR(CheckLinks(links));
    if (TakeOperator("|")) {
      SOUP_ASSIGN_OR_RETURN(base, Filter(std::move(base)));
    } else if (IsName("is")) {
      SOUP_ASSIGN_OR_RETURN(base, Test(std::move(base)));
    } else if (IsOperator("(")) {
      ExprPtr call = Make(Kind::kCall, Now().at, std::move(base));
      SOUP_RETURN_IF_ERROR(Arguments(call.get()));
      base = std::move(call);
    } else {
      return base;
    }
  }
}

absl::StatusOr<ExprPtr> TokenStream::BlockFilters() {
  ExprPtr base = Make(Kind::kName, Now().at);
  base->name = kBlockText;
  int links = 0;
  do {
    SOUP_RETURN_IF_ERROR(CheckLinks(links++));
    SOUP_ASSIGN_OR_RETURN(base, Filter(std::move(base)));
  } while (TakeOperator("|"));
  return base;
}

absl::StatusOr<ExprPtr> TokenStream::Filter(ExprPtr base) {
  const Token name = Now();
  SOUP_RETURN_IF_ERROR(ExpectAnyName("a filter's name").status());
  if (!IsFilter(name.text))
    return ErrorAt(name.at, absl::StrCat("filter '", name.text, "' is not supported"));
  ExprPtr out = Make(Kind::kFilter, name.at, std::move(base));
  out->name = name.text;
  if (IsOperator("(")) SOUP_RETURN_IF_ERROR(Arguments(out.get()));
  return out;
}

absl::StatusOr<ExprPtr> TokenStream::Test(ExprPtr base) {
  Advance();
  const bool negated = TakeName("not");
  const Token name = Now();
  SOUP_RETURN_IF_ERROR(ExpectAnyName("a test's name").status());
  if (!IsTest(name.text))
    return ErrorAt(name.at, absl::StrCat("test '", name.text, "' is not supported"));
  ExprPtr out = Make(Kind::kTest, name.at, std::move(base));
  out->name = name.text;
  if (IsOperator("(")) {
    SOUP_RETURN_IF_ERROR(Arguments(out.get()));
  } else if (Is(TokenKind::kString) || Is(TokenKind::kInteger) || Is(TokenKind::kFloat) ||
             IsOperator("[") || IsOperator("{") ||
             (Is(TokenKind::kName) && !IsName("else") && !IsName("or") && !IsName("and"))) {
    if (IsName("is")) return Error("tests cannot be chained with 'is'");
    // As in jinja2, any word here is the test's argument: `a if b is string if c` is a mistake.
    SOUP_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    SOUP_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    out->args.push_back(std::move(argument));
  }
  if (!negated) return out;
  return Make(Kind::kNot, name.at, std::move(out));
}

}  // namespace soup::engine::jinja
