#include "engine/data/tokenizer_config.h"

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/json_access.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

absl::Status ReadSpecialToken(const JsonNode& node, const std::string& name, TokenizerConfig* out) {
  if (node.is_null()) return absl::OkStatus();
  // A plain string, or an added token written out as an object.
  const JsonNode content = node.json().is_object() ? node.Member("content") : node;
  SOUP_ASSIGN_OR_RETURN(out->special_tokens[name], content.String());
  return absl::OkStatus();
}

absl::Status ReadChatTemplate(const JsonNode& node, TokenizerConfig* out) {
  if (node.is_null()) return absl::OkStatus();
  if (node.json().is_string()) {
    SOUP_ASSIGN_OR_RETURN(out->chat_template, node.String());
    return absl::OkStatus();
  }
  SOUP_RETURN_IF_ERROR(node.RequireArray());  // a list of named templates
  for (const JsonNode& entry : node.Elements()) {
    SOUP_ASSIGN_OR_RETURN(const std::string name, entry.Member("name").String());
    SOUP_ASSIGN_OR_RETURN(const std::string text, entry.Member("template").String());
    if (name == "default") out->chat_template = text;
    if (name == "tool_use") out->tool_template = text;
  }
  if (out->chat_template.empty()) return node.Error("has no template named 'default'");
  return absl::OkStatus();
}

absl::StatusOr<std::optional<bool>> OptionalBool(const JsonNode& node) {
  if (node.is_null()) return std::optional<bool>();
  SOUP_ASSIGN_OR_RETURN(const bool value, node.Bool());
  return std::optional<bool>(value);
}

}  // namespace

absl::StatusOr<TokenizerConfig> LoadTokenizerConfig(const std::string& folder) {
  TokenizerConfig out;
  const FileSystem& fs = RealFileSystem();
  const std::string config_path = JoinPath(folder, "tokenizer_config.json");
  if (fs.Exists(config_path)) {
    SOUP_ASSIGN_OR_RETURN(const std::string text, fs.ReadFile(config_path));
    SOUP_ASSIGN_OR_RETURN(const nlohmann::json document,
                          ParseJsonDocument(text, "tokenizer_config.json"));
    const JsonNode root(&document, "tokenizer_config.json: ");
    SOUP_RETURN_IF_ERROR(root.RequireObject());
    for (const char* name : kTokenNames)
      SOUP_RETURN_IF_ERROR(ReadSpecialToken(root.Member(name), name, &out));
    SOUP_ASSIGN_OR_RETURN(out.add_bos_token, OptionalBool(root.Member("add_bos_token")));
    SOUP_ASSIGN_OR_RETURN(out.add_eos_token, OptionalBool(root.Member("add_eos_token")));
    SOUP_RETURN_IF_ERROR(ReadChatTemplate(root.Member("chat_template"), &out));
    out.template_file = "tokenizer_config.json";
  }
  const std::string template_path = JoinPath(folder, "chat_template.jinja");
  if (fs.Exists(template_path)) {
    SOUP_ASSIGN_OR_RETURN(out.chat_template, fs.ReadFile(template_path));
    if (FindInvalidUtf8(out.chat_template))
      return absl::InvalidArgumentError("chat_template.jinja: not UTF-8");
    out.tool_template.clear();
    out.template_file = "chat_template.jinja";
  }
  if (out.tool_template.empty()) out.tool_template = out.chat_template;
  return out;
}

}  // namespace soup::engine
