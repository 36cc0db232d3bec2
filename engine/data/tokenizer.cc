#include "engine/data/tokenizer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/bpe.h"
#include "engine/data/decoder.h"
#include "engine/data/json_access.h"
#include "engine/data/normalizer.h"
#include "engine/data/post_processor.h"
#include "engine/data/pre_tokenizer.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

constexpr size_t kMaxCachedWords = 1 << 16;
constexpr size_t kMaxCachedWordBytes = 64;
constexpr int64_t kMaxId = 1 << 30;

absl::StatusOr<AddedToken> ReadAddedToken(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.AllowKeys(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken out;
  SOUP_ASSIGN_OR_RETURN(const int64_t id, node.Member("id").Int());
  if (id < 0 || id > kMaxId) return node.Member("id").Error("is not a token's id");
  out.id = static_cast<int32_t>(id);
  SOUP_ASSIGN_OR_RETURN(out.content, node.Member("content").String());
  SOUP_ASSIGN_OR_RETURN(out.single_word, node.Member("single_word").BoolOr(false));
  SOUP_ASSIGN_OR_RETURN(out.lstrip, node.Member("lstrip").BoolOr(false));
  SOUP_ASSIGN_OR_RETURN(out.rstrip, node.Member("rstrip").BoolOr(false));
  SOUP_ASSIGN_OR_RETURN(out.special, node.Member("special").BoolOr(false));
  SOUP_ASSIGN_OR_RETURN(out.normalized, node.Member("normalized").BoolOr(!out.special));
  return out;
}

absl::Status CheckText(absl::string_view text) {
  const auto bad = FindInvalidUtf8(text);
  if (!bad) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a text is not UTF-8 at byte ", *bad, " of ", text.size()));
}

using Start = TextStart;

}  // namespace

struct Tokenizer::Rep {
  std::deque<AddedToken> added;  // addresses are stable: matchers point here
  absl::flat_hash_map<std::string, const AddedToken*> added_by_content;
  std::vector<std::string> added_text;  // by place in `added`: as it is looked for and spelled
  AddedTokenMatcher raw;                // looked for before normalising
  AddedTokenMatcher normalized;         // and after
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  PostProcessor post;
  Decoder decoder;
  std::optional<bool> prefix_space;
  std::vector<std::optional<std::string>> spelling;  // by id

  absl::Status ReadAddedTokens(const JsonNode& node);
  absl::Status FillSpellings(const JsonNode& root);
  struct CutState {
    absl::Span<const Cut> cuts;
    size_t next;    // the first cut that is not counted yet
    size_t before;  // ids that were there when the call began
    EncodeContext* context;
    std::vector<size_t>* counts;
  };
  void EncodeWord(absl::string_view word, EncodeContext* context, std::vector<int32_t>* ids) const;
  absl::Status EncodePlain(absl::string_view text, Start start, EncodeContext* context,
                           std::vector<int32_t>* ids) const;
  absl::Status EncodeFrom(absl::string_view text, Start start, EncodeContext* context,
                          std::vector<int32_t>* ids) const;
  absl::Status EncodeSection(absl::string_view text, size_t offset, Start start, CutState* state,
                             std::vector<int32_t>* ids) const;
  absl::Status EncodeNormalized(absl::string_view text, Start start, EncodeContext* context,
                                std::vector<int32_t>* ids) const;
};

absl::Status Tokenizer::Rep::ReadAddedTokens(const JsonNode& node) {
  if (node.is_null()) return absl::OkStatus();
  SOUP_RETURN_IF_ERROR(node.RequireArray());
  absl::flat_hash_map<int32_t, std::string> seen;
  for (const JsonNode& entry : node.Elements()) {
    SOUP_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(entry));
    const int32_t in_model = model.IdOf(token.content);
    if (in_model >= 0 && in_model != token.id) {
      return entry.Error(absl::StrCat("'", token.content, "' has id ", token.id, " here and id ",
                                      in_model, " in /model/vocab"));
    }
    const auto [it, fresh] = seen.emplace(token.id, token.content);
    if (!fresh && it->second != token.content) {
      return entry.Error(
          absl::StrCat("'", token.content, "' and '", it->second, "' both have id ", token.id));
    }
    const auto known = added_by_content.find(token.content);
    if (known != added_by_content.end()) {
      if (known->second->id == token.id) continue;  // told twice
      return entry.Error(absl::StrCat("'", token.content, "' has two ids, ", known->second->id,
                                      " and ", token.id));
    }
    added.push_back(std::move(token));
    const AddedToken& kept = added.back();
    added_by_content.emplace(kept.content, &kept);
    added_text.push_back(kept.content);
    if (kept.normalized) {
      SOUP_ASSIGN_OR_RETURN(added_text.back(), normalizer.Apply(kept.content));
    }
    (kept.normalized ? normalized : raw).Add(&kept, added_text.back());
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Rep::FillSpellings(const JsonNode& root) {
  int64_t most = 0;
  for (const auto& [token, id] : model.vocab()) most = std::max<int64_t>(most, id);
  for (const AddedToken& token : added) most = std::max<int64_t>(most, token.id);
  // A table by id: ids far beyond the number of tokens are a mistake, not a vocabulary.
  const auto count = static_cast<int64_t>(model.vocab().size() + added.size());
  if (most > 16 * count + 65536) {
    return root.Error(absl::StrCat("the largest id is ", most, " with ", count,
                                   " tokens; the file looks damaged"));
  }
  spelling.resize(static_cast<size_t>(most) + 1);
  for (const auto& [token, id] : model.vocab()) {
    if (spelling[id]) return root.Error(absl::StrCat("/model/vocab gives id ", id, " twice"));
    spelling[id] = token;
  }
  for (size_t i = 0; i < added.size(); ++i) {
    std::optional<std::string>& piece = spelling[added[i].id];
    if (piece && model.IdOf(added[i].content) != added[i].id) {
      return root.Error(absl::StrCat("/added_tokens: '", added[i].content, "' has id ", added[i].id,
                                     ", which /model/vocab gives to '", *piece, "'"));
    }
    piece = added_text[i];
  }
  return absl::OkStatus();
}

Tokenizer::Tokenizer() : rep_(std::make_unique<Rep>()) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  SOUP_ASSIGN_OR_RETURN(const std::string json, RealFileSystem().ReadFile(path));
  return Create(json, path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(absl::string_view json,
                                                             const std::string& file) {
  SOUP_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJsonDocument(json, file));
  const JsonNode root(&document, absl::StrCat(file, ": "));
  SOUP_RETURN_IF_ERROR(
      root.AllowKeys({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  std::unique_ptr<Tokenizer> out(new Tokenizer);
  Rep& rep = *out->rep_;
  SOUP_ASSIGN_OR_RETURN(rep.normalizer, Normalizer::Create(root.Member("normalizer")));
  SOUP_ASSIGN_OR_RETURN(rep.pre_tokenizer, PreTokenizer::Create(root.Member("pre_tokenizer")));
  SOUP_ASSIGN_OR_RETURN(rep.model,
                        BpeModel::Create(root.Member("model"), rep.pre_tokenizer.byte_level()));
  const JsonNode pre = root.Member("pre_tokenizer");
  if (pre.Member("type").json() == "ByteLevel") {
    SOUP_ASSIGN_OR_RETURN(rep.prefix_space, pre.Member("add_prefix_space").BoolOr(true));
  }
  SOUP_ASSIGN_OR_RETURN(rep.post, ReadPostProcessor(root.Member("post_processor")));
  SOUP_ASSIGN_OR_RETURN(rep.decoder, Decoder::Create(root.Member("decoder")));
  SOUP_RETURN_IF_ERROR(rep.ReadAddedTokens(root.Member("added_tokens")));
  SOUP_RETURN_IF_ERROR(rep.FillSpellings(root));
  return out;
}

void Tokenizer::Rep::EncodeWord(absl::string_view word, EncodeContext* context,
                                std::vector<int32_t>* ids) const {
  if (word.size() > kMaxCachedWordBytes) {
    model.Encode(word, ids, &context->dropped_bytes);
    return;
  }
  const auto known = context->words.find(word);
  if (known != context->words.end()) {
    ids->insert(ids->end(), known->second.begin(), known->second.end());
    return;
  }
  std::vector<int32_t> fresh;
  int64_t dropped = 0;
  model.Encode(word, &fresh, &dropped);
  ids->insert(ids->end(), fresh.begin(), fresh.end());
  context->dropped_bytes += dropped;
  if (dropped > 0) return;  // not remembered: each time is counted
  if (context->words.size() >= kMaxCachedWords) context->words.clear();
  context->words.emplace(word, std::move(fresh));
}

absl::Status Tokenizer::Rep::EncodePlain(absl::string_view text, Start start,
                                         EncodeContext* context, std::vector<int32_t>* ids) const {
  PreTokenized cut;
  cut.text = std::string(text);
  SOUP_RETURN_IF_ERROR(pre_tokenizer.Apply(start, &cut));
  for (const MatchSpan& piece : cut.pieces) {
    auto rest = absl::string_view(cut.text).substr(piece.begin, piece.end - piece.begin);
    while (!rest.empty()) {
      const size_t n = model.NextCut(rest);
      EncodeWord(rest.substr(0, n), context, ids);
      rest.remove_prefix(n);
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Rep::EncodeNormalized(absl::string_view text, Start start,
                                              EncodeContext* context,
                                              std::vector<int32_t>* ids) const {
  std::string owned;
  if (!normalizer.identity()) {
    SOUP_ASSIGN_OR_RETURN(owned, normalizer.Apply(text, start));
    text = owned;
  }
  std::vector<AddedSpan> spans;
  normalized.Find(text, &spans);
  size_t at = 0;
  for (const AddedSpan& span : spans) {
    SOUP_RETURN_IF_ERROR(EncodePlain(text.substr(at, span.begin - at),
                                     at == 0 ? start : Start::kLater, context, ids));
    ids->push_back(span.token->id);
    at = span.end;
  }
  return EncodePlain(text.substr(at), at == 0 ? start : Start::kLater, context, ids);
}

absl::Status Tokenizer::Rep::EncodeFrom(absl::string_view text, Start start, EncodeContext* context,
                                        std::vector<int32_t>* ids) const {
  SOUP_RETURN_IF_ERROR(CheckText(text));
  std::vector<AddedSpan> spans;
  raw.Find(text, &spans);
  size_t at = 0;
  for (const AddedSpan& span : spans) {
    if (span.begin > at) {
      SOUP_RETURN_IF_ERROR(EncodeNormalized(text.substr(at, span.begin - at),
                                            at == 0 ? start : Start::kLater, context, ids));
    }
    ids->push_back(span.token->id);
    at = span.end;
  }
  if (at == text.size()) return absl::OkStatus();
  return EncodeNormalized(text.substr(at), at == 0 ? start : Start::kLater, context, ids);
}

absl::Status Tokenizer::Encode(absl::string_view text, EncodeContext* context,
                               std::vector<int32_t>* ids) const {
  return rep_->EncodeFrom(text, Start::kText, context, ids);
}

absl::Status Tokenizer::EncodeContinued(absl::string_view text, EncodeContext* context,
                                        std::vector<int32_t>* ids) const {
  return rep_->EncodeFrom(text, Start::kContinued, context, ids);
}

// A text between added tokens that begins at byte `offset` of the whole; the cuts from (*next) on
// that lie in it, or before its end, are counted.
absl::Status Tokenizer::Rep::EncodeSection(absl::string_view text, size_t offset, Start start,
                                           CutState* state, std::vector<int32_t>* ids) const {
  std::vector<int32_t> whole, part;
  SOUP_RETURN_IF_ERROR(EncodeNormalized(text, start, state->context, &whole));
  for (; state->next < state->cuts.size(); ++state->next) {
    const Cut& cut = state->cuts[state->next];
    if (cut.at >= offset + text.size()) break;
    std::optional<size_t> count;
    for (const size_t place : {cut.at, cut.floor}) {
      if (count) break;
      if (place <= offset) {
        count = 0;
        break;
      }
      part.clear();
      SOUP_RETURN_IF_ERROR(
          EncodeNormalized(text.substr(0, place - offset), start, state->context, &part));
      if (part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin()))
        count = part.size();
    }
    if (count) {
      state->counts->push_back(ids->size() + *count - state->before);
      continue;
    }
    ids->insert(ids->end(), part.begin(), part.end());  // what stands before the floor
    state->counts->push_back(ids->size() - state->before);
    ++state->next;
    const size_t rest = cut.floor - offset;
    return EncodeSection(text.substr(rest), cut.floor, Start::kContinued, state, ids);
  }
  ids->insert(ids->end(), whole.begin(), whole.end());
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeCut(absl::string_view text, absl::Span<const Cut> cuts,
                                  EncodeContext* context, std::vector<int32_t>* ids,
                                  std::vector<size_t>* counts) const {
  SOUP_RETURN_IF_ERROR(CheckText(text));
  counts->clear();
  Rep::CutState state{cuts, 0, ids->size(), context, counts};
  std::vector<AddedSpan> spans;
  rep_->raw.Find(text, &spans);
  spans.push_back({text.size(), text.size(), nullptr});
  size_t at = 0;
  for (const AddedSpan& span : spans) {
    if (span.begin > at) {
      SOUP_RETURN_IF_ERROR(rep_->EncodeSection(text.substr(at, span.begin - at), at,
                                               at == 0 ? Start::kText : Start::kLater, &state,
                                               ids));
    }
    // Within an added token, or the white space that it took before it: before the token; within
    // that which it took after it: after the token.
    const size_t content_end = span.token == nullptr ? span.end
                                                     : text.find(span.token->content, span.begin) +
                                                           span.token->content.size();
    for (; state.next < cuts.size() && cuts[state.next].at < content_end; ++state.next)
      counts->push_back(ids->size() - state.before);
    if (span.token != nullptr) ids->push_back(span.token->id);
    for (; state.next < cuts.size() && cuts[state.next].at < span.end; ++state.next)
      counts->push_back(ids->size() - state.before);
    at = span.end;
  }
  counts->resize(cuts.size(), ids->size() - state.before);
  return absl::OkStatus();
}

const std::vector<int32_t>& Tokenizer::prefix() const { return rep_->post.prefix; }
const std::vector<int32_t>& Tokenizer::suffix() const { return rep_->post.suffix; }

std::string Tokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= rep_->spelling.size() || !rep_->spelling[id]) continue;
    tokens.push_back(*rep_->spelling[id]);
  }
  return rep_->decoder.Decode(std::move(tokens));
}

std::optional<bool> Tokenizer::prefix_space() const { return rep_->prefix_space; }

const AddedToken* Tokenizer::FindAdded(absl::string_view content) const {
  const auto it = rep_->added_by_content.find(content);
  return it == rep_->added_by_content.end() ? nullptr : it->second;
}

int32_t Tokenizer::IdOf(absl::string_view token) const {
  const AddedToken* added = FindAdded(token);
  return added != nullptr ? added->id : rep_->model.IdOf(token);
}

std::vector<AddedSpan> Tokenizer::FindAddedTokens(absl::string_view text) const {
  std::vector<AddedSpan> raw, out;
  rep_->raw.Find(text, &raw);
  size_t at = 0;
  const auto between = [&](size_t end) {
    const size_t first = out.size();
    rep_->normalized.Find(text.substr(at, end - at), &out);
    for (size_t i = first; i < out.size(); ++i) {
      out[i].begin += at;
      out[i].end += at;
    }
  };
  for (const AddedSpan& span : raw) {
    between(span.begin);
    out.push_back(span);
    at = span.end;
  }
  between(text.size());
  return out;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(rep_->spelling.size()); }

}  // namespace soup::engine
