#include "engine/data/normalizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/metaspace.h"

namespace soup::engine {

absl::StatusOr<Normalizer> Normalizer::Create(const JsonNode& node) {
  Normalizer out;
  SOUP_RETURN_IF_ERROR(out.Append(node));
  return out;
}

absl::Status Normalizer::Append(const JsonNode& node) {
  if (node.is_null()) return absl::OkStatus();
  SOUP_RETURN_IF_ERROR(node.RequireObject());
  SOUP_ASSIGN_OR_RETURN(const std::string type, node.Member("type").String());
  if (type == "Sequence") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "normalizers"}));
    SOUP_RETURN_IF_ERROR(node.Member("normalizers").RequireArray());
    for (const JsonNode& part : node.Member("normalizers").Elements())
      SOUP_RETURN_IF_ERROR(Append(part));
    return absl::OkStatus();
  }
  static constexpr std::pair<const char*, NormalForm> kForms[] = {{"NFC", NormalForm::kNfc},
                                                                  {"NFD", NormalForm::kNfd},
                                                                  {"NFKC", NormalForm::kNfkc},
                                                                  {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type"}));
    steps_.push_back({Step::Kind::kForm, form, nullptr, "", ""});
    return absl::OkStatus();
  }
  if (type == "Replace") return AppendReplace(node);
  if (type == "Prepend") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "prepend"}));
    Step step{Step::Kind::kPrepend};
    SOUP_ASSIGN_OR_RETURN(step.content, node.Member("prepend").String());
    steps_.push_back(std::move(step));
    return absl::OkStatus();
  }
  return node.Member("type").Error(
      absl::StrCat("normaliser '", type,
                   "' is not supported (known: NFC, NFD, NFKC, NFKD, Prepend, "
                   "Replace, Sequence)"));
}

absl::Status Normalizer::AppendReplace(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "pattern", "content"}));
  Step step{Step::Kind::kReplace};
  SOUP_ASSIGN_OR_RETURN(step.pattern, ReadReplacePattern(node.Member("pattern")));
  SOUP_ASSIGN_OR_RETURN(step.content, node.Member("content").String());
  const JsonNode literal = node.Member("pattern").Member("String");
  if (!literal.is_null()) {
    step.pattern = nullptr;
    SOUP_ASSIGN_OR_RETURN(step.from, literal.String());
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Normalizer::Apply(absl::string_view text, TextStart start) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kForm: {
        SOUP_ASSIGN_OR_RETURN(out, Normalize(out, step.form));
        break;
      }
      case Step::Kind::kPrepend:
        if (!out.empty() && start != TextStart::kContinued) out.insert(0, step.content);
        break;
      case Step::Kind::kReplace:
        if (step.pattern == nullptr) {
          out = ReplaceEvery(out, step.from, step.content);
        } else {
          SOUP_ASSIGN_OR_RETURN(out, ReplaceAll(*step.pattern, out, step.content));
        }
        break;
    }
  }
  return out;
}

}  // namespace soup::engine
