#include "engine/data/normalizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

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
    forms_.push_back(form);
    return absl::OkStatus();
  }
  return node.Member("type").Error(absl::StrCat(
      "normaliser '", type, "' is not supported (known: NFC, NFD, NFKC, NFKD, Sequence)"));
}

absl::StatusOr<std::string> Normalizer::Apply(absl::string_view text) const {
  std::string out(text);
  for (NormalForm form : forms_) {
    SOUP_ASSIGN_OR_RETURN(out, Normalize(out, form));
  }
  return out;
}

}  // namespace soup::engine
