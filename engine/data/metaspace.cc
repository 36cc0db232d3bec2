#include "engine/data/metaspace.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode.h"

namespace soup::engine {

absl::StatusOr<Metaspace> ReadMetaspace(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}));
  Metaspace out;
  SOUP_ASSIGN_OR_RETURN(out.replacement, node.Member("replacement").String());
  if (CountCharacters(out.replacement) != 1) {
    return node.Member("replacement").Error("is one character");
  }
  SOUP_ASSIGN_OR_RETURN(out.split, node.Member("split").BoolOr(true));
  const JsonNode scheme = node.Member("prepend_scheme");
  const JsonNode prefix = node.Member("add_prefix_space");
  SOUP_ASSIGN_OR_RETURN(const bool add, prefix.BoolOr(true));
  if (scheme.is_null()) {
    out.prepend = add ? Metaspace::Prepend::kAlways : Metaspace::Prepend::kNever;
    return out;
  }
  SOUP_ASSIGN_OR_RETURN(const std::string name, scheme.String());
  if (name == "always") {
    out.prepend = Metaspace::Prepend::kAlways;
  } else if (name == "first") {
    out.prepend = Metaspace::Prepend::kFirst;
  } else if (name == "never") {
    out.prepend = Metaspace::Prepend::kNever;
  } else {
    return scheme.Error(absl::StrCat("'", name, "' is none of always, first, never"));
  }
  if (!prefix.is_null() && add != (out.prepend != Metaspace::Prepend::kNever))
    return prefix.Error("contradicts prepend_scheme");
  return out;
}

absl::StatusOr<std::unique_ptr<Regex>> ReadReplacePattern(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"Regex", "String"}));
  const bool literal = !node.Member("String").is_null();
  const JsonNode source = node.Member(literal ? "String" : "Regex");
  SOUP_ASSIGN_OR_RETURN(const std::string text, source.String());
  auto regex = literal ? Regex::CreateLiteral(text) : Regex::Create(text);
  if (!regex.ok()) return source.Error(regex.status().message());
  if ((*regex)->MayMatchNothing())
    return source.Error("a pattern that may match nothing is not supported here");
  return regex;
}

absl::StatusOr<std::string> ReplaceAll(const Regex& pattern, absl::string_view text,
                                       absl::string_view content) {
  std::vector<MatchSpan> matches;
  SOUP_RETURN_IF_ERROR(pattern.FindAll(text, &matches));
  std::string out;
  size_t at = 0;
  for (const MatchSpan& m : matches) {
    absl::StrAppend(&out, text.substr(at, m.begin - at), content);
    at = m.end;
  }
  absl::StrAppend(&out, text.substr(at));
  return out;
}

std::string ReplaceEvery(absl::string_view text, absl::string_view from, absl::string_view to) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != absl::string_view::npos; at = hit + from.size())
    absl::StrAppend(&out, text.substr(at, hit - at), to);
  absl::StrAppend(&out, text.substr(at));
  return out;
}

}  // namespace soup::engine
