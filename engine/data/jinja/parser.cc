#include "engine/data/jinja/parser.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/token_stream.h"

namespace soup::engine::jinja {
namespace {

constexpr int kMaxBlocks = 50;  // statements within statements

using Kind = Statement::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  absl::StatusOr<Block> Run() {
    SOUP_ASSIGN_OR_RETURN(Block out, Body({}));
    if (!in_.Is(TokenKind::kEnd)) return in_.Unexpected("the end of the template");
    return out;
  }

 private:
  // Statements up to a tag whose name is one of `ends` (its '{%' taken, the name not), or to the
  // end of the template when there are none.
  absl::StatusOr<Block> Body(std::initializer_list<absl::string_view> ends) {
    if (++depth_ > kMaxBlocks) return in_.Error("blocks are nested too deep");
    Block out;
    for (;;) {
      const Token& token = in_.Now();
      if (token.kind == TokenKind::kText) {
        Statement text;
        text.at = token.at;
        text.text = token.text;
        out.push_back(std::move(text));
        in_.Advance();
      } else if (token.kind == TokenKind::kVariableBegin) {
        SOUP_ASSIGN_OR_RETURN(Statement output, Output());
        out.push_back(std::move(output));
      } else if (token.kind == TokenKind::kBlockBegin) {
        in_.Advance();
        for (absl::string_view end : ends) {
          if (!in_.IsName(end)) continue;
          --depth_;
          return out;
        }
        SOUP_ASSIGN_OR_RETURN(Statement statement, Tag());
        out.push_back(std::move(statement));
      } else if (token.kind == TokenKind::kEnd && ends.size() == 0) {
        --depth_;
        return out;
      } else {
        return in_.Unexpected(ends.size() == 0 ? "text or a tag"
                                               : absl::StrCat("'{% ", *(ends.end() - 1), " %}'"));
      }
    }
  }

  absl::Status EndOfTag() {
    if (!in_.Is(TokenKind::kBlockEnd)) return in_.Unexpected("'%}'");
    in_.Advance();
    return absl::OkStatus();
  }
  absl::Status EndTag(absl::string_view name) {
    SOUP_RETURN_IF_ERROR(in_.ExpectName(name));
    return EndOfTag();
  }

  absl::StatusOr<Statement> Output() {
    Statement out;
    out.kind = Kind::kOutput;
    in_.Advance();
    out.at = in_.Now().at;
    SOUP_ASSIGN_OR_RETURN(out.value, in_.TupleOrExpression());
    if (!in_.Is(TokenKind::kVariableEnd)) return in_.Unexpected("'}}'");
    in_.Advance();
    return out;
  }

  absl::StatusOr<Statement> Tag() {
    const Token name = in_.Now();
    if (name.kind != TokenKind::kName) return in_.Unexpected("a statement");
    in_.Advance();
    absl::StatusOr<Statement> out = [&]() -> absl::StatusOr<Statement> {
      if (name.text == "if") return If();
      if (name.text == "for") return For();
      if (name.text == "set") return Set();
      if (name.text == "macro") return Macro();
      if (name.text == "call") return Call();
      if (name.text == "filter") return FilterBlock();
      if (name.text == "with") return With();
      if (name.text == "generation") return Generation(name.at);
      if (name.text == "break" || name.text == "continue") return Jump(name);
      return ErrorAt(name.at, absl::StrCat("statement '", name.text, "' is not supported"));
    }();
    if (out.ok()) out->at = name.at;
    return out;
  }

  absl::StatusOr<Statement> If() {
    Statement out;
    out.kind = Kind::kIf;
    for (;;) {
      Statement::Branch branch;
      SOUP_ASSIGN_OR_RETURN(branch.condition, in_.TupleOrExpression(/*with_condition=*/false));
      SOUP_RETURN_IF_ERROR(EndOfTag());
      SOUP_ASSIGN_OR_RETURN(branch.body, Body({"elif", "else", "endif"}));
      out.branches.push_back(std::move(branch));
      if (in_.TakeName("elif")) continue;
      if (in_.TakeName("else")) {
        SOUP_RETURN_IF_ERROR(EndOfTag());
        Statement::Branch last;
        SOUP_ASSIGN_OR_RETURN(last.body, Body({"endif"}));
        out.branches.push_back(std::move(last));
      }
      SOUP_RETURN_IF_ERROR(EndTag("endif"));
      return out;
    }
  }

  absl::StatusOr<std::vector<std::string>> Names() {
    std::vector<std::string> out;
    const bool parenthesised = in_.TakeOperator("(");
    do {
      if (in_.IsName("in") || in_.IsOperator(")")) break;  // a comma at the end
      SOUP_ASSIGN_OR_RETURN(std::string name, in_.ExpectAnyName("a variable's name"));
      for (const char* word : {"true", "false", "none", "True", "False", "None", "loop"})
        if (name == word) return in_.Error(absl::StrCat("'", name, "' cannot be assigned to"));
      out.push_back(std::move(name));
    } while (in_.TakeOperator(","));
    if (parenthesised) SOUP_RETURN_IF_ERROR(in_.ExpectOperator(")"));
    if (out.empty()) return in_.Unexpected("a variable's name");
    return out;
  }

  absl::StatusOr<Statement> For() {
    Statement out;
    out.kind = Kind::kFor;
    SOUP_ASSIGN_OR_RETURN(out.targets, Names());
    SOUP_RETURN_IF_ERROR(in_.ExpectName("in"));
    SOUP_ASSIGN_OR_RETURN(out.value, in_.TupleOrExpression(/*with_condition=*/false));
    if (in_.TakeName("if")) {
      SOUP_ASSIGN_OR_RETURN(out.condition, in_.Expression());
    }
    out.recursive = in_.TakeName("recursive");
    SOUP_RETURN_IF_ERROR(EndOfTag());
    ++loops_;
    SOUP_ASSIGN_OR_RETURN(out.body, Body({"else", "endfor"}));
    --loops_;
    if (in_.TakeName("else")) {
      SOUP_RETURN_IF_ERROR(EndOfTag());
      SOUP_ASSIGN_OR_RETURN(out.otherwise, Body({"endfor"}));
    }
    SOUP_RETURN_IF_ERROR(EndTag("endfor"));
    return out;
  }

  absl::StatusOr<Statement> Jump(const Token& name) {
    if (loops_ == 0) {
      return ErrorAt(name.at, absl::StrCat("'", name.text,
                                           "' outside of a loop, or out of a block that gathers "
                                           "text, is not supported"));
    }
    SOUP_RETURN_IF_ERROR(EndOfTag());
    Statement out;
    out.kind = name.text == "break" ? Kind::kBreak : Kind::kContinue;
    return out;
  }

  absl::StatusOr<Statement> Set() {
    Statement out;
    out.kind = Kind::kSet;
    SOUP_ASSIGN_OR_RETURN(out.targets, Names());
    if (out.targets.size() == 1 && in_.TakeOperator(".")) {
      SOUP_ASSIGN_OR_RETURN(const std::string attribute, in_.ExpectAnyName("an attribute"));
      absl::StrAppend(&out.targets[0], ".", attribute);
    }
    if (in_.TakeOperator("=")) {
      SOUP_ASSIGN_OR_RETURN(out.value, in_.TupleOrExpression());
      SOUP_RETURN_IF_ERROR(EndOfTag());
      return out;
    }
    if (out.targets.size() != 1) return in_.Unexpected("'='");
    out.kind = Kind::kSetBlock;
    if (in_.TakeOperator("|")) {
      SOUP_ASSIGN_OR_RETURN(out.value, in_.BlockFilters());
    }
    SOUP_RETURN_IF_ERROR(EndOfTag());
    SOUP_ASSIGN_OR_RETURN(out.body, Gathered("endset"));
    return out;
  }

  // The body of a block whose text goes elsewhere than to the output: no jump leaves it.
  absl::StatusOr<Block> Gathered(absl::string_view end) {
    const int loops = std::exchange(loops_, 0);
    SOUP_ASSIGN_OR_RETURN(Block out, Body({end}));
    loops_ = loops;
    SOUP_RETURN_IF_ERROR(EndTag(end));
    return out;
  }

  absl::StatusOr<Statement> FilterBlock() {
    Statement out;
    out.kind = Kind::kFilter;
    SOUP_ASSIGN_OR_RETURN(out.value, in_.BlockFilters());
    SOUP_RETURN_IF_ERROR(EndOfTag());
    SOUP_ASSIGN_OR_RETURN(out.body, Gathered("endfilter"));
    return out;
  }

  absl::StatusOr<Statement> Call() {
    Statement out;
    out.kind = Kind::kCall;
    out.text = "caller";
    if (in_.IsOperator("(")) SOUP_RETURN_IF_ERROR(Parameters(&out));
    SOUP_ASSIGN_OR_RETURN(out.value, in_.Expression());
    if (out.value->kind != Expr::Kind::kCall) return in_.Unexpected("a call");
    SOUP_RETURN_IF_ERROR(EndOfTag());
    SOUP_RETURN_IF_ERROR(MacroBody("endcall", &out));
    return out;
  }

  absl::Status MacroBody(absl::string_view end, Statement* out) {
    const TokenStream::MacroNames outer = std::exchange(in_.macro_names(), {});
    SOUP_ASSIGN_OR_RETURN(out->body, Gathered(end));
    TokenStream::MacroNames& names = in_.macro_names();
    out->uses_caller = names.caller;
    out->uses_varargs = names.varargs;
    out->uses_kwargs = names.kwargs;
    names.caller |= outer.caller;  // a macro's use is one of the macro around it too
    names.varargs |= outer.varargs;
    names.kwargs |= outer.kwargs;
    return absl::OkStatus();
  }

  absl::StatusOr<Statement> Macro() {
    Statement out;
    out.kind = Kind::kMacro;
    SOUP_ASSIGN_OR_RETURN(out.text, in_.ExpectAnyName("a macro's name"));
    SOUP_RETURN_IF_ERROR(Parameters(&out));
    SOUP_RETURN_IF_ERROR(EndOfTag());
    SOUP_RETURN_IF_ERROR(MacroBody("endmacro", &out));
    return out;
  }

  absl::Status Parameters(Statement* out) {
    SOUP_RETURN_IF_ERROR(in_.ExpectOperator("("));
    while (!in_.TakeOperator(")")) {
      if (!out->parameters.empty()) {
        SOUP_RETURN_IF_ERROR(in_.ExpectOperator(","));
        if (in_.TakeOperator(")")) break;
      }
      Statement::Parameter parameter;
      SOUP_ASSIGN_OR_RETURN(parameter.name, in_.ExpectAnyName("a parameter's name"));
      if (parameter.name == "caller")
        return in_.Error("a parameter named 'caller' is not supported");
      if (in_.TakeOperator("=")) {
        SOUP_ASSIGN_OR_RETURN(parameter.default_value, in_.Expression());
      } else if (!out->parameters.empty() && out->parameters.back().default_value != nullptr) {
        return in_.Error("a parameter without a default after one that has one");
      }
      out->parameters.push_back(std::move(parameter));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Statement> With() {
    Statement out;
    out.kind = Kind::kWith;
    while (!in_.Is(TokenKind::kBlockEnd)) {
      if (!out.targets.empty()) SOUP_RETURN_IF_ERROR(in_.ExpectOperator(","));
      SOUP_ASSIGN_OR_RETURN(std::string name, in_.ExpectAnyName("a variable's name"));
      SOUP_RETURN_IF_ERROR(in_.ExpectOperator("="));
      SOUP_ASSIGN_OR_RETURN(ExprPtr value, in_.Expression());
      out.targets.push_back(std::move(name));
      out.values.push_back(std::move(value));
    }
    SOUP_RETURN_IF_ERROR(EndOfTag());
    SOUP_ASSIGN_OR_RETURN(out.body, Body({"endwith"}));
    SOUP_RETURN_IF_ERROR(EndTag("endwith"));
    return out;
  }

  absl::StatusOr<Statement> Generation(Position at) {
    if (in_generation_) return ErrorAt(at, "a generation block within another");
    Statement out;
    out.kind = Kind::kGeneration;
    SOUP_RETURN_IF_ERROR(EndOfTag());
    in_generation_ = true;
    const int loops = std::exchange(loops_, 0);  // no jump leaves the block
    SOUP_ASSIGN_OR_RETURN(out.body, Body({"endgeneration"}));
    loops_ = loops;
    in_generation_ = false;
    SOUP_RETURN_IF_ERROR(EndTag("endgeneration"));
    return out;
  }

  TokenStream in_;
  int depth_ = 0;
  int loops_ = 0;
  bool in_generation_ = false;
};

}  // namespace

absl::StatusOr<Block> Parse(absl::string_view source) {
  SOUP_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace soup::engine::jinja
