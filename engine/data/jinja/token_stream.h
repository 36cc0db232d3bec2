// The tokens of a template with a place in them, and the expression grammar over it (that of
// jinja2's parser, operator by operator). Not thread-safe.
#ifndef SOUP_ENGINE_DATA_JINJA_TOKEN_STREAM_H_
#define SOUP_ENGINE_DATA_JINJA_TOKEN_STREAM_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/ast.h"
#include "engine/data/jinja/lexer.h"

namespace soup::engine::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool Is(TokenKind kind) const { return Now().kind == kind; }
  bool IsOperator(absl::string_view op) const {
    return Is(TokenKind::kOperator) && absl::string_view(Now().text) == op;
  }
  bool IsName(absl::string_view name) const {
    return Is(TokenKind::kName) && absl::string_view(Now().text) == name;
  }
  bool TakeOperator(absl::string_view op);
  bool TakeName(absl::string_view name);
  absl::Status ExpectOperator(absl::string_view op);
  absl::Status ExpectName(absl::string_view name);
  absl::StatusOr<std::string> ExpectAnyName(absl::string_view what);
  absl::Status Error(absl::string_view what) const { return ErrorAt(Now().at, what); }
  absl::Status Unexpected(absl::string_view expected) const;

  // An expression; `with_condition`: "a if b else c" is part of it.
  absl::StatusOr<ExprPtr> Expression(bool with_condition = true);
  // The filters of a filter block, or after a set block's name, over kBlockText: "a | b(c)".
  absl::StatusOr<ExprPtr> BlockFilters();
  // Names read since they were last cleared: caller, varargs, kwargs.
  struct MacroNames {
    bool caller = false, varargs = false, kwargs = false;
  };
  MacroNames& macro_names() { return macro_names_; }
  // One or more expressions with commas between; more than one, or a comma at the end: a tuple.
  absl::StatusOr<ExprPtr> TupleOrExpression(bool with_condition = true);

 private:
  class Nesting;
  static constexpr int kMaxNesting = 100;

  absl::StatusOr<ExprPtr> Conditional();
  absl::StatusOr<ExprPtr> Or();
  absl::StatusOr<ExprPtr> And();
  absl::StatusOr<ExprPtr> Not();
  absl::StatusOr<ExprPtr> Compare();
  absl::StatusOr<ExprPtr> Sum();
  absl::StatusOr<ExprPtr> Concat();
  absl::StatusOr<ExprPtr> Product();
  absl::StatusOr<ExprPtr> Power();
  absl::StatusOr<ExprPtr> Unary(bool with_filter);
  absl::StatusOr<ExprPtr> Primary();
  absl::StatusOr<ExprPtr> Number();
  absl::StatusOr<ExprPtr> ListLiteral();
  absl::StatusOr<ExprPtr> DictLiteral();
  absl::StatusOr<ExprPtr> Parenthesised();
  absl::StatusOr<ExprPtr> Postfix(ExprPtr base);
  absl::StatusOr<ExprPtr> Subscript(ExprPtr base);
  absl::StatusOr<ExprPtr> FilterOrTest(ExprPtr base);
  absl::StatusOr<ExprPtr> Filter(ExprPtr base);  // from its name on
  absl::StatusOr<ExprPtr> Test(ExprPtr base);
  absl::Status Arguments(Expr* call);
  absl::Status CheckLinks(int links) const;
  ExprPtr Make(Expr::Kind kind, Position at, ExprPtr first = nullptr, ExprPtr second = nullptr);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  MacroNames macro_names_;
};

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_TOKEN_STREAM_H_
