#include "engine/data/tokenizer_config.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/json_access.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

absl::Status ReadSpecialToken(const JsonNode& node, const std::string& name, TokenizerConfig* out) {
  out->special_tokens.erase(name);
  if (node.is_null()) return absl::OkStatus();
  // A plain string, or an added token written out as an object.
  const JsonNode content = node.json().is_object() ? node.Member("content") : node;
  SOUP_ASSIGN_OR_RETURN(out->special_tokens[name], content.String());
  return absl::OkStatus();
}

// The usual ones are texts or null; other members of such names may be anything.
bool IsUsualToken(absl::string_view name) {
  constexpr absl::string_view kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// Every token by its name, a model's own ("image_token") too: templates see them all. Those already
// there stay unless they are `replaced`, as do names that a file gave as null.
absl::Status ReadSpecialTokens(const JsonNode& node, bool replaced, TokenizerConfig* out) {
  for (auto it = node.json().begin(); it != node.json().end(); ++it) {
    const bool text = it->is_string() || (it->is_object() && it->contains("content"));
    const bool own = absl::EndsWith(it.key(), "_token") && (text || it->is_null());
    if (!own && !IsUsualToken(it.key())) continue;
    if (!out->seen_tokens.insert(it.key()).second && !replaced) continue;
    SOUP_RETURN_IF_ERROR(ReadSpecialToken(node.Member(it.key()), it.key(), out));
  }
  return absl::OkStatus();
}

// Lists of tokens without names (additional_special_tokens, extra_special_tokens), texts or added
// tokens written out; other things of such names are passed over.
void ReadUnnamedTokens(const JsonNode& node, TokenizerConfig* out) {
  if (!node.json().is_array()) return;
  for (const nlohmann::json& token : node.json()) {
    if (token.is_string()) out->unnamed_tokens.push_back(token.get<std::string>());
    if (!token.is_object()) continue;
    const auto content = token.find("content");
    if (content != token.end() && content->is_string())
      out->unnamed_tokens.push_back(content->get<std::string>());
  }
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

absl::Status ReadAddedTokens(const JsonNode& node, TokenizerConfig* out) {
  if (node.is_null()) return absl::OkStatus();
  SOUP_RETURN_IF_ERROR(node.RequireObject());
  for (auto it = node.json().begin(); it != node.json().end(); ++it) {
    const JsonNode entry = node.Member(it.key());
    AddedToken token;
    if (!absl::SimpleAtoi(it.key(), &token.id) || token.id < 0)
      return entry.Error("the key is not a token's id");
    SOUP_ASSIGN_OR_RETURN(token.content, entry.Member("content").String());
    SOUP_ASSIGN_OR_RETURN(token.lstrip, entry.Member("lstrip").BoolOr(false));
    SOUP_ASSIGN_OR_RETURN(token.rstrip, entry.Member("rstrip").BoolOr(false));
    SOUP_ASSIGN_OR_RETURN(token.single_word, entry.Member("single_word").BoolOr(false));
    out->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<bool>> OptionalBool(const JsonNode& node) {
  if (node.is_null()) return std::optional<bool>();
  SOUP_ASSIGN_OR_RETURN(const bool value, node.Bool());
  return std::optional<bool>(value);
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view json) {
  TokenizerConfig out;
  SOUP_ASSIGN_OR_RETURN(const nlohmann::json document,
                        ParseJsonDocument(json, "tokenizer_config.json"));
  const JsonNode root(&document, "tokenizer_config.json: ");
  SOUP_RETURN_IF_ERROR(root.RequireObject());
  SOUP_RETURN_IF_ERROR(ReadSpecialTokens(root, /*replaced=*/false, &out));
  // Newer files name a model's own tokens apart; older ones have a list here, without names.
  const JsonNode extra = root.Member("extra_special_tokens");
  if (extra.json().is_object())
    SOUP_RETURN_IF_ERROR(ReadSpecialTokens(extra, /*replaced=*/false, &out));
  ReadUnnamedTokens(extra, &out);
  ReadUnnamedTokens(root.Member("additional_special_tokens"), &out);
  SOUP_ASSIGN_OR_RETURN(const std::optional<bool> split,
                        OptionalBool(root.Member("split_special_tokens")));
  if (split.value_or(false)) {
    return absl::UnimplementedError(
        "tokenizer_config.json: split_special_tokens is true, which is not supported: special "
        "tokens in texts become one token here; set it to false");
  }
  out.has_added_tokens = !root.Member("added_tokens_decoder").is_null();
  SOUP_ASSIGN_OR_RETURN(out.add_bos_token, OptionalBool(root.Member("add_bos_token")));
  SOUP_ASSIGN_OR_RETURN(out.add_eos_token, OptionalBool(root.Member("add_eos_token")));
  SOUP_ASSIGN_OR_RETURN(out.add_prefix_space, OptionalBool(root.Member("add_prefix_space")));
  SOUP_RETURN_IF_ERROR(ReadAddedTokens(root.Member("added_tokens_decoder"), &out));
  SOUP_RETURN_IF_ERROR(ReadChatTemplate(root.Member("chat_template"), &out));
  out.template_file = "tokenizer_config.json";
  if (out.tool_template.empty()) out.tool_template = out.chat_template;
  return out;
}

absl::StatusOr<TokenizerConfig> LoadTokenizerConfig(const std::string& folder) {
  TokenizerConfig out;
  const FileSystem& fs = RealFileSystem();
  const std::string config_path = JoinPath(folder, "tokenizer_config.json");
  if (fs.Exists(config_path)) {
    SOUP_ASSIGN_OR_RETURN(const std::string text, fs.ReadFile(config_path));
    SOUP_ASSIGN_OR_RETURN(out, ParseTokenizerConfig(text));
  }
  // What older folders say in a file of its own, which then counts; with added_tokens_decoder it is
  // not read. As in transformers.
  const std::string map_path = JoinPath(folder, "special_tokens_map.json");
  if (!out.has_added_tokens && fs.Exists(map_path)) {
    SOUP_ASSIGN_OR_RETURN(const std::string text, fs.ReadFile(map_path));
    SOUP_ASSIGN_OR_RETURN(const nlohmann::json document,
                          ParseJsonDocument(text, "special_tokens_map.json"));
    const JsonNode root(&document, "special_tokens_map.json: ");
    SOUP_RETURN_IF_ERROR(root.RequireObject());
    SOUP_RETURN_IF_ERROR(ReadSpecialTokens(root, /*replaced=*/true, &out));
    ReadUnnamedTokens(root.Member("additional_special_tokens"), &out);
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

absl::Status CheckAgreement(const TokenizerConfig& config, const Tokenizer& tokenizer,
                            std::vector<std::string>* warnings) {
  const std::optional<bool> prefix_space = tokenizer.prefix_space();
  if (config.add_prefix_space && prefix_space && *config.add_prefix_space != *prefix_space) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer_config.json: add_prefix_space is ", *config.add_prefix_space ? "true" : "false",
        ", but tokenizer.json says otherwise; save the tokenizer again, so that both files agree"));
  }
  for (const AddedToken& token : config.added_tokens) {
    if (tokenizer.IdOf(token.content) != token.id) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer_config.json: added_tokens_decoder has '", token.content,
                       "' with id ", token.id, ", which tokenizer.json ",
                       tokenizer.IdOf(token.content) < 0
                           ? "lacks"
                           : absl::StrCat("gives id ", tokenizer.IdOf(token.content)),
                       "; save the tokenizer again, so that both files agree"));
    }
    const AddedToken* obeyed = tokenizer.FindAdded(token.content);
    if (obeyed == nullptr) continue;
    if (obeyed->lstrip == token.lstrip && obeyed->rstrip == token.rstrip &&
        obeyed->single_word == token.single_word)
      continue;
    warnings->push_back(absl::StrCat("added token '", token.content,
                                     "' has other lstrip, rstrip or single_word flags in "
                                     "tokenizer_config.json than in tokenizer.json; those of "
                                     "tokenizer.json are obeyed"));
  }
  std::set<std::string> unknown(config.unnamed_tokens.begin(), config.unnamed_tokens.end());
  for (const auto& [name, content] : config.special_tokens) unknown.insert(content);
  for (const std::string& content : unknown) {
    if (content.empty() || tokenizer.FindAdded(content) != nullptr) continue;
    warnings->push_back(absl::StrCat("the tokenizer's configuration names the special token '",
                                     content,
                                     "', which is no added token of tokenizer.json: a text that "
                                     "spells it is split like any other; save the tokenizer again, "
                                     "so that both files agree"));
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
