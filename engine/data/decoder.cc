#include "engine/data/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/data/byte_level.h"
#include "engine/data/metaspace.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Runs of byte tokens become the text that they spell, or one U+FFFD a byte when it is none.
std::vector<std::string> JoinByteTokens(std::vector<std::string> tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (!FindInvalidUtf8(bytes)) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), "\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    const int byte = ByteOfFallbackToken(token);
    if (byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  return out;
}

std::string StripCharacter(const std::string& token, absl::string_view character, size_t start,
                           size_t stop) {
  absl::string_view left = token;
  for (size_t i = 0; i < start && left.substr(0, character.size()) == character; ++i)
    left.remove_prefix(character.size());
  for (size_t i = 0; i < stop && left.size() >= character.size() &&
                     left.substr(left.size() - character.size()) == character;
       ++i)
    left.remove_suffix(character.size());
  return std::string(left);
}

}  // namespace

int ByteOfFallbackToken(absl::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const int high = token[3] == '+' ? 0 : HexDigit(token[3]);  // Rust reads "+F" as a number too
  const int low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

absl::StatusOr<Decoder> Decoder::Create(const JsonNode& node) {
  Decoder out;
  if (!node.is_null()) SOUP_RETURN_IF_ERROR(out.Append(node));
  return out;
}

absl::Status Decoder::Append(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.RequireObject());
  SOUP_ASSIGN_OR_RETURN(const std::string type, node.Member("type").String());
  if (type == "Sequence") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "decoders"}));
    SOUP_RETURN_IF_ERROR(node.Member("decoders").RequireArray());
    const std::vector<JsonNode> parts = node.Member("decoders").Elements();
    if (parts.empty()) return node.Member("decoders").Error("is empty");
    for (const JsonNode& part : parts) SOUP_RETURN_IF_ERROR(Append(part));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    steps_.push_back({Step::Kind::kByteLevel});
  } else if (type == "ByteFallback" || type == "Fuse") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type"}));
    steps_.push_back({type == "Fuse" ? Step::Kind::kFuse : Step::Kind::kByteFallback});
  } else if (type == "Replace") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "pattern", "content"}));
    Step step{Step::Kind::kReplace};
    SOUP_ASSIGN_OR_RETURN(step.pattern, ReadReplacePattern(node.Member("pattern")));
    SOUP_ASSIGN_OR_RETURN(step.content, node.Member("content").String());
    steps_.push_back(std::move(step));
  } else if (type == "Strip") {
    return AppendStrip(node);
  } else if (type == "Metaspace") {
    SOUP_ASSIGN_OR_RETURN(Metaspace space, ReadMetaspace(node));
    Step step{Step::Kind::kMetaspace};
    step.content = std::move(space.replacement);
    step.drop_first = space.prepend != Metaspace::Prepend::kNever;
    steps_.push_back(std::move(step));
  } else {
    return node.Member("type").Error(
        absl::StrCat("decoder '", type,
                     "' is not supported (known: ByteLevel, Replace, ByteFallback, Fuse, Strip, "
                     "Metaspace, Sequence)"));
  }
  return absl::OkStatus();
}

absl::Status Decoder::AppendStrip(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "content", "start", "stop"}));
  Step step{Step::Kind::kStrip};
  SOUP_ASSIGN_OR_RETURN(step.content, node.Member("content").String());
  if (CountCharacters(step.content) != 1) return node.Member("content").Error("is one character");
  for (const auto& [key, out] : {std::pair("start", &step.start), std::pair("stop", &step.stop)}) {
    SOUP_ASSIGN_OR_RETURN(const int64_t count, node.Member(key).Int());
    if (count < 0 || count > 1000) return node.Member(key).Error("must lie in 0 .. 1000");
    *out = static_cast<size_t>(count);
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void Decoder::Apply(const Step& step, std::vector<std::string>* tokens) {
  switch (step.kind) {
    case Step::Kind::kByteLevel: {
      std::string bytes;
      for (const std::string& token : *tokens) bytes += BytesOfToken(token).value_or(token);
      *tokens = {ReplaceInvalidUtf8(bytes)};
      break;
    }
    case Step::Kind::kReplace:
      for (std::string& token : *tokens) {
        // A pattern that gives up leaves the token as it is: this is for showing, not for training.
        auto replaced = ReplaceAll(*step.pattern, token, step.content);
        if (replaced.ok()) token = *std::move(replaced);
      }
      break;
    case Step::Kind::kByteFallback:
      *tokens = JoinByteTokens(std::move(*tokens));
      break;
    case Step::Kind::kFuse:
      *tokens = {absl::StrJoin(*tokens, "")};
      break;
    case Step::Kind::kStrip:
      for (std::string& token : *tokens)
        token = StripCharacter(token, step.content, step.start, step.stop);
      break;
    case Step::Kind::kMetaspace:
      for (size_t i = 0; i < tokens->size(); ++i) {
        const absl::string_view blank = i == 0 && step.drop_first ? "" : " ";
        (*tokens)[i] = ReplaceEvery((*tokens)[i], step.content, blank);
      }
      break;
  }
}

std::string Decoder::Decode(std::vector<std::string> tokens) const {
  if (steps_.empty()) return absl::StrJoin(tokens, " ");
  for (const Step& step : steps_) Apply(step, &tokens);
  return absl::StrJoin(tokens, "");
}

}  // namespace soup::engine
