#include "engine/data/jinja/template.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/ast.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/parser.h"

namespace soup::engine::jinja {
namespace {

bool HasGeneration(const Block& block) {
  for (const Statement& s : block) {
    if (s.kind == Statement::Kind::kGeneration) return true;
    if (HasGeneration(s.body) || HasGeneration(s.otherwise)) return true;
    for (const Statement::Branch& b : s.branches)
      if (HasGeneration(b.body)) return true;
  }
  return false;
}

}  // namespace

struct Template::Rep {
  std::string file;
  Block block;
  bool has_generation = false;

  absl::Status Named(const absl::Status& status) const {
    const bool placed = absl::StartsWith(status.message(), "line ");
    return absl::Status(status.code(), absl::StrCat(file, placed ? " " : ": ", status.message()));
  }
};

Template::Template() : rep_(std::make_unique<Rep>()) {}
Template::~Template() = default;

absl::StatusOr<std::unique_ptr<Template>> Template::Parse(absl::string_view source,
                                                          const std::string& file) {
  std::unique_ptr<Template> out(new Template);
  out->rep_->file = file;
  auto block = jinja::Parse(source);
  if (!block.ok()) return out->rep_->Named(block.status());
  out->rep_->block = *std::move(block);
  out->rep_->has_generation = HasGeneration(out->rep_->block);
  return out;
}

absl::StatusOr<Rendering> Template::Render(const Value::Items& variables,
                                           const RenderOptions& options) const {
  Interpreter interpreter(variables, options);
  auto out = interpreter.Run(rep_->block);
  if (!out.ok()) return rep_->Named(out.status());
  return out;
}

bool Template::has_generation_blocks() const { return rep_->has_generation; }

}  // namespace soup::engine::jinja
