// What a model folder says beside tokenizer.json: special tokens, whether a BOS is added, the chat
// template. Plain value; any thread.
#ifndef SOUP_ENGINE_DATA_TOKENIZER_CONFIG_H_
#define SOUP_ENGINE_DATA_TOKENIZER_CONFIG_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/tokenizer.h"

namespace soup::engine {

struct TokenizerConfig {
  // "bos_token", "eos_token", "pad_token", ... as a template sees them; absent: null in the file.
  std::map<std::string, std::string> special_tokens;
  std::set<std::string> seen_tokens;  // names that a file has, null or not
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;

  std::vector<AddedToken> added_tokens;     // added_tokens_decoder
  bool has_added_tokens = false;            // there is such a member
  std::vector<std::string> unnamed_tokens;  // of additional_special_tokens, extra_special_tokens

  // The template for conversations without tools, and the one for those with (the same unless the
  // folder has another under the name "tool_use"). Empty: none.
  std::string chat_template;
  std::string tool_template;
  std::string template_file;  // where it was found, for messages

  const std::string* Token(const std::string& name) const {
    const auto it = special_tokens.find(name);
    return it == special_tokens.end() ? nullptr : &it->second;
  }
};

// Reads tokenizer_config.json, special_tokens_map.json (where the former has no
// added_tokens_decoder; its tokens win) and chat_template.jinja of a folder (which wins), as
// transformers does; any may be absent. Errors: InvalidArgument (file, path in it), Unimplemented
// (split_special_tokens).
absl::StatusOr<TokenizerConfig> LoadTokenizerConfig(const std::string& folder);

// The same of tokenizer_config.json's text alone.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view json);

// Both files of a folder tell of some things. Errors: InvalidArgument when tokenizer_config.json
// has an added token that tokenizer.json lacks or numbers otherwise, or another add_prefix_space
// (transformers would change the tokenizer, and tokens would differ). Told in *warnings: flags of
// added tokens that differ (those of tokenizer.json are obeyed), special tokens that tokenizer.json
// does not add.
absl::Status CheckAgreement(const TokenizerConfig& config, const Tokenizer& tokenizer,
                            std::vector<std::string>* warnings);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_TOKENIZER_CONFIG_H_
