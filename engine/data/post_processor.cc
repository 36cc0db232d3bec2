#include "engine/data/post_processor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

absl::Status AppendSpecial(const JsonNode& piece, const JsonNode& special_tokens,
                           std::vector<int32_t>* out) {
  SOUP_ASSIGN_OR_RETURN(const std::string name, piece.Member("id").String());
  const JsonNode ids = special_tokens.Member(name).Member("ids");
  SOUP_RETURN_IF_ERROR(ids.RequireArray());
  for (const JsonNode& id : ids.Elements()) {
    SOUP_ASSIGN_OR_RETURN(const int64_t value, id.Int());
    if (value < 0 || value > INT32_MAX) return id.Error("is not a token's id");
    out->push_back(static_cast<int32_t>(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<PostProcessor> ReadTemplate(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "single", "pair", "special_tokens"}));
  const JsonNode single = node.Member("single");
  SOUP_RETURN_IF_ERROR(single.RequireArray());
  PostProcessor out;
  bool seen_text = false;
  for (const JsonNode& piece : single.Elements()) {
    SOUP_RETURN_IF_ERROR(piece.AllowKeys({"SpecialToken", "Sequence"}));
    if (!piece.Member("SpecialToken").is_null()) {
      SOUP_RETURN_IF_ERROR(AppendSpecial(piece.Member("SpecialToken"),
                                         node.Member("special_tokens"),
                                         seen_text ? &out.suffix : &out.prefix));
    } else {
      SOUP_ASSIGN_OR_RETURN(const std::string id, piece.Member("Sequence").Member("id").String());
      if (id != "A" || seen_text) return piece.Error("a single template holds sequence A once");
      seen_text = true;
    }
  }
  if (!seen_text) return single.Error("the template leaves the text out");
  return out;
}

}  // namespace

absl::StatusOr<PostProcessor> ReadPostProcessor(const JsonNode& node) {
  if (node.is_null()) return PostProcessor();
  SOUP_RETURN_IF_ERROR(node.RequireObject());
  SOUP_ASSIGN_OR_RETURN(const std::string type, node.Member("type").String());
  if (type == "TemplateProcessing") return ReadTemplate(node);
  if (type == "ByteLevel") {  // moves offsets only
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    return PostProcessor();
  }
  if (type == "Sequence") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "processors"}));
    SOUP_RETURN_IF_ERROR(node.Member("processors").RequireArray());
    PostProcessor out;
    for (const JsonNode& part : node.Member("processors").Elements()) {
      SOUP_ASSIGN_OR_RETURN(const PostProcessor outer, ReadPostProcessor(part));
      out.prefix.insert(out.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
      out.suffix.insert(out.suffix.end(), outer.suffix.begin(), outer.suffix.end());
    }
    return out;
  }
  return node.Member("type").Error(
      absl::StrCat("post-processor '", type,
                   "' is not supported (known: TemplateProcessing, ByteLevel, Sequence)"));
}

}  // namespace soup::engine
