#include "engine/data/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

// GPT-2's own pattern, which ByteLevel uses with use_regex.
constexpr char kByteLevelPattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const JsonNode& node) {
  PreTokenizer out;
  if (!node.is_null()) SOUP_RETURN_IF_ERROR(out.Append(node, /*last=*/true));
  return out;
}

absl::Status PreTokenizer::Append(const JsonNode& node, bool last) {
  SOUP_RETURN_IF_ERROR(node.RequireObject());
  SOUP_ASSIGN_OR_RETURN(const std::string type, node.Member("type").String());
  if (type == "Sequence") {
    SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "pretokenizers"}));
    SOUP_RETURN_IF_ERROR(node.Member("pretokenizers").RequireArray());
    const std::vector<JsonNode> parts = node.Member("pretokenizers").Elements();
    for (size_t i = 0; i < parts.size(); ++i)
      SOUP_RETURN_IF_ERROR(Append(parts[i], last && i + 1 == parts.size()));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    if (!last) return node.Error("ByteLevel is supported as the last pre-tokenizer only");
    return AppendByteLevel(node);
  }
  if (type == "Split") return AppendSplit(node);
  if (type == "Digits") return AppendDigits(node);
  if (type == "Metaspace") {
    Step step{Step::Kind::kMetaspace};
    SOUP_ASSIGN_OR_RETURN(step.space, ReadMetaspace(node));
    SOUP_ASSIGN_OR_RETURN(step.pattern, Regex::CreateLiteral(step.space.replacement));
    step.behavior = Behavior::kMergedWithNext;
    steps_.push_back(std::move(step));
    return absl::OkStatus();
  }
  return node.Member("type").Error(
      absl::StrCat("pre-tokenizer '", type,
                   "' is not supported (known: ByteLevel, Split, Digits, Metaspace, Sequence)"));
}

absl::Status PreTokenizer::AppendByteLevel(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  SOUP_ASSIGN_OR_RETURN(const bool prefix, node.Member("add_prefix_space").BoolOr(true));
  SOUP_ASSIGN_OR_RETURN(const bool use_regex, node.Member("use_regex").BoolOr(true));
  byte_level_ = true;
  if (prefix) steps_.push_back({Step::Kind::kPrefixSpace});
  if (use_regex) {
    Step step{Step::Kind::kSplit};
    SOUP_ASSIGN_OR_RETURN(step.pattern, Regex::Create(kByteLevelPattern));
    steps_.push_back(std::move(step));
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::AppendSplit(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "pattern", "behavior", "invert"}));
  Step step{Step::Kind::kSplit};
  SOUP_ASSIGN_OR_RETURN(step.invert, node.Member("invert").BoolOr(false));
  const JsonNode behavior = node.Member("behavior");
  SOUP_ASSIGN_OR_RETURN(const std::string name, behavior.String());
  static constexpr std::pair<const char*, Behavior> kBehaviors[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  const auto* known = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                   [&name](const auto& b) { return name == b.first; });
  if (known == std::end(kBehaviors))
    return behavior.Error(absl::StrCat("behaviour '", name, "' is not supported"));
  step.behavior = known->second;

  const JsonNode pattern = node.Member("pattern");
  SOUP_RETURN_IF_ERROR(pattern.AllowKeys({"Regex", "String"}));
  const bool literal = !pattern.Member("String").is_null();
  const JsonNode source = pattern.Member(literal ? "String" : "Regex");
  SOUP_ASSIGN_OR_RETURN(const std::string text, source.String());
  auto regex = literal ? Regex::CreateLiteral(text) : Regex::Create(text);
  if (!regex.ok()) return source.Error(regex.status().message());
  step.pattern = *std::move(regex);
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AppendDigits(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "individual_digits"}));
  SOUP_ASSIGN_OR_RETURN(const bool individual, node.Member("individual_digits").BoolOr(false));
  Step step{Step::Kind::kDigits};
  step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

// Blanks become the replacement, and a piece gets one before it as the scheme says.
void PreTokenizer::MarkSpaces(const Metaspace& space, TextStart start, PreTokenized* out) {
  std::string text;
  text.reserve(out->text.size() + 3 * out->pieces.size());
  for (MatchSpan& piece : out->pieces) {
    const size_t begin = text.size();
    std::string marked =
        ReplaceEvery(absl::string_view(out->text).substr(piece.begin, piece.end - piece.begin), " ",
                     space.replacement);
    const bool begins = piece.begin == 0;
    const bool wanted =
        space.prepend == Metaspace::Prepend::kAlways
            ? !begins || start != TextStart::kContinued
            : space.prepend == Metaspace::Prepend::kFirst && begins && start == TextStart::kText;
    if (wanted && !absl::StartsWith(marked, space.replacement)) text += space.replacement;
    text += marked;
    piece = {begin, text.size()};
  }
  out->text = std::move(text);
}

void PreTokenizer::AddPrefixSpaces(TextStart start, PreTokenized* out) {
  std::string text;
  text.reserve(out->text.size() + out->pieces.size());
  for (MatchSpan& piece : out->pieces) {
    const size_t begin = text.size();
    const bool goes_on = piece.begin == 0 && start == TextStart::kContinued;
    if (!goes_on && out->text[piece.begin] != ' ') text.push_back(' ');
    text.append(out->text, piece.begin, piece.end - piece.begin);
    piece = {begin, text.size()};
  }
  out->text = std::move(text);
}

// As Hugging Face tokenizers' NormalizedString::split.
void PreTokenizer::Join(const std::vector<Cut>& cuts, Behavior behavior,
                        std::vector<MatchSpan>* out) {
  const size_t first = out->size();
  bool previous = false;
  const auto push = [out](const Cut& c) { out->push_back({c.begin, c.end}); };
  switch (behavior) {
    case Behavior::kIsolated:
      for (const Cut& c : cuts) push(c);
      break;
    case Behavior::kRemoved:
      for (const Cut& c : cuts)
        if (!c.match) push(c);
      break;
    case Behavior::kContiguous:
      for (const Cut& c : cuts) {
        if (c.match == previous && out->size() > first) {
          out->back().end = c.end;
        } else {
          push(c);
        }
        previous = c.match;
      }
      break;
    case Behavior::kMergedWithPrevious:
      for (const Cut& c : cuts) {
        if (c.match && !previous && out->size() > first) {
          out->back().end = c.end;
        } else {
          push(c);
        }
        previous = c.match;
      }
      break;
    case Behavior::kMergedWithNext:
      for (auto c = cuts.rbegin(); c != cuts.rend(); ++c) {
        if (c->match && !previous && out->size() > first) {
          out->back().begin = c->begin;
        } else {
          push(*c);
        }
        previous = c->match;
      }
      std::reverse(out->begin() + static_cast<std::ptrdiff_t>(first), out->end());
      break;
  }
}

absl::Status PreTokenizer::Apply(TextStart start, PreTokenized* out) const {
  out->pieces.clear();
  if (out->text.empty()) return absl::OkStatus();
  out->pieces.push_back({0, out->text.size()});
  std::vector<MatchSpan> matches, next;
  std::vector<Cut> cuts;
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::kPrefixSpace) {
      AddPrefixSpaces(start, out);
      continue;
    }
    if (step.kind == Step::Kind::kMetaspace) {
      MarkSpaces(step.space, start, out);
      if (!step.space.split) continue;
    }
    next.clear();
    for (const MatchSpan& piece : out->pieces) {
      const absl::string_view text =
          absl::string_view(out->text).substr(piece.begin, piece.end - piece.begin);
      if (step.kind != Step::Kind::kDigits) {
        SOUP_RETURN_IF_ERROR(step.pattern->FindAll(text, &matches));
      } else {
        matches.clear();
        for (size_t i = 0, n; i < text.size(); i += n)
          if (IsNumeric(DecodeUtf8(text, i, &n))) matches.push_back({i, i + n});
      }
      cuts.clear();
      size_t at = 0;
      for (const MatchSpan& m : matches) {
        if (m.begin > at) cuts.push_back({piece.begin + at, piece.begin + m.begin, step.invert});
        cuts.push_back({piece.begin + m.begin, piece.begin + m.end, !step.invert});
        at = m.end;
      }
      if (at < text.size()) cuts.push_back({piece.begin + at, piece.end, step.invert});
      Join(cuts, step.behavior, &next);
    }
    out->pieces.swap(next);
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
