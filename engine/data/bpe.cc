#include "engine/data/bpe.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/data/byte_level.h"
#include "engine/data/decoder.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

// Up to this many symbols a scan for the best pair beats a heap.
constexpr size_t kShortSymbols = 24;
constexpr int64_t kMaxId = 1 << 30;
constexpr char32_t kSpaceMark = 0x2581;
constexpr char kSpaceMarkText[] = "\xe2\x96\x81";

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Create(const JsonNode& node, bool byte_level) {
  SOUP_RETURN_IF_ERROR(node.RequireObject());
  BpeModel out;
  out.byte_level_ = byte_level;
  // Old files leave the type out: what has merges is BPE, as Hugging Face tokenizers reads it.
  if (!node.Member("type").is_null()) {
    SOUP_ASSIGN_OR_RETURN(const std::string type, node.Member("type").String());
    if (type != "BPE") {
      return node.Member("type").Error(
          absl::StrCat("model '", type, "' is not supported (known: BPE)"));
    }
  }
  SOUP_RETURN_IF_ERROR(node.AllowKeys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                                       "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                       "ignore_merges", "vocab", "merges"}));
  const JsonNode dropout = node.Member("dropout");
  if (!dropout.is_null() && !(dropout.json().is_number() && dropout.json().get<double>() == 0.0))
    return dropout.Error("BPE dropout is not supported: tokens would differ from run to run");
  for (absl::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode member = node.Member(affix);
    if (!member.is_null() && member.json() != "") return member.Error("is not supported");
  }
  SOUP_ASSIGN_OR_RETURN(out.byte_fallback_, node.Member("byte_fallback").BoolOr(false));
  if (out.byte_fallback_ && byte_level)
    return node.Member("byte_fallback").Error("is not supported with a ByteLevel pre-tokenizer");
  SOUP_ASSIGN_OR_RETURN(out.fuse_unk_, node.Member("fuse_unk").BoolOr(false));
  SOUP_ASSIGN_OR_RETURN(out.ignore_merges_, node.Member("ignore_merges").BoolOr(false));
  SOUP_RETURN_IF_ERROR(out.ReadVocab(node.Member("vocab")));
  SOUP_RETURN_IF_ERROR(out.ReadMerges(node.Member("merges")));
  if (!node.Member("unk_token").is_null()) {
    SOUP_ASSIGN_OR_RETURN(const std::string unk, node.Member("unk_token").String());
    out.unk_id_ = out.IdOf(unk);
    if (out.unk_id_ < 0)
      return node.Member("unk_token").Error(absl::StrCat("'", unk, "' is not in the vocabulary"));
  }
  if (!byte_level && !out.ignore_merges_) out.FindCuts();
  return out;
}

absl::Status BpeModel::ReadVocab(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.RequireObject());
  if (node.json().empty()) return node.Error("is empty");
  byte_id_.fill(-1);
  fallback_id_.fill(-1);
  vocab_.reserve(node.json().size());
  for (auto it = node.json().begin(); it != node.json().end(); ++it) {
    if (!it.value().is_number_integer() || it.value() < 0 || it.value() > kMaxId)
      return node.Error(absl::StrCat("id of '", it.key(), "' is not an integer of a token"));
    const auto id = it.value().get<int32_t>();
    vocab_.emplace(it.key(), id);
    if (!byte_level_) {
      ReadCharacter(it.key(), id);
      continue;
    }
    const std::optional<std::string> bytes = BytesOfToken(it.key());
    if (!bytes) continue;
    if (bytes->size() == 1) byte_id_[static_cast<uint8_t>((*bytes)[0])] = id;
    if (ignore_merges_) by_bytes_.emplace(*bytes, id);
  }
  return absl::OkStatus();
}

void BpeModel::ReadCharacter(const std::string& token, int32_t id) {
  if (ignore_merges_) by_bytes_.emplace(token, id);
  const int byte = ByteOfFallbackToken(token);
  if (byte >= 0 && token == absl::StrFormat("<0x%02X>", byte)) fallback_id_[byte] = id;
  size_t length = 0;
  if (token.empty()) return;
  const char32_t c = DecodeUtf8(token, 0, &length);
  if (length != token.size()) return;
  if (c < 0x80) {
    byte_id_[c] = id;
  } else {
    by_character_.emplace(c, id);
  }
}

// Every place within a merged token was joined by one merge. So no token spans "x U+2581" when no
// merge has a left side that ends in x and a right side that begins with U+2581; unless unknown and
// byte tokens, whose spelling is not their text, take part in merges.
void BpeModel::FindCuts() {
  if (!by_character_.contains(kSpaceMark)) return;
  absl::flat_hash_map<int32_t, absl::string_view> spelling;
  for (const auto& [token, id] : vocab_) spelling.emplace(id, token);
  const auto is_text = [this](int32_t id) {
    return id != unk_id_ &&
           std::find(fallback_id_.begin(), fallback_id_.end(), id) == fallback_id_.end();
  };
  for (const auto& [pair, merge] : merges_) {
    const auto left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
    if (!is_text(left) || !is_text(right)) return;
    const absl::string_view a = spelling[left], b = spelling[right];
    if (!absl::StartsWith(b, kSpaceMarkText)) continue;
    size_t at = a.size(), length;
    do --at;
    while (at > 0 && (static_cast<unsigned char>(a[at]) & 0xc0) == 0x80);
    joined_to_space_.insert(DecodeUtf8(a, at, &length));
  }
  cuts_ = true;
}

int32_t BpeModel::IdOfCharacter(char32_t c) const {
  if (c < 0x80) return byte_id_[c];
  const auto it = by_character_.find(c);
  return it == by_character_.end() ? -1 : it->second;
}

size_t BpeModel::NextCut(absl::string_view text) const {
  if (!cuts_) return text.size();
  for (size_t at = 1; (at = text.find(kSpaceMarkText, at)) != absl::string_view::npos; ++at) {
    size_t begin = at, length;
    do --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
    const char32_t before = DecodeUtf8(text, begin, &length);
    // One without a token of its own may be left out, and what is around it would be neighbours.
    if (IdOfCharacter(before) >= 0 && !joined_to_space_.contains(before)) return at;
  }
  return text.size();
}

absl::Status BpeModel::ReadMerges(const JsonNode& node) {
  SOUP_RETURN_IF_ERROR(node.RequireArray());
  merges_.reserve(node.json().size());
  int32_t rank = 0;
  for (const nlohmann::json& entry : node.json()) {
    const auto bad = [&node, rank](absl::string_view what) {
      return node.Error(absl::StrCat("merge ", rank, " ", what));
    };
    std::string left, right;
    if (entry.is_string()) {
      const auto& text = entry.get_ref<const std::string&>();
      const size_t blank = text.find(' ');
      if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
        return bad("is not two tokens with one blank between them");
      left = text.substr(0, blank);
      right = text.substr(blank + 1);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      left = entry[0].get<std::string>();
      right = entry[1].get<std::string>();
    } else {
      return bad("is neither a string nor a pair of strings");
    }
    const int32_t a = IdOf(left), b = IdOf(right), merged = IdOf(left + right);
    if (a < 0 || b < 0 || merged < 0) {
      return bad(absl::StrCat("('", left, "', '", right, "'): '",
                              a < 0 ? left : (b < 0 ? right : left + right),
                              "' is not in the vocabulary"));
    }
    merges_[PairKey(a, b)] = {rank++, merged};  // a pair told twice: the last rank, as there
  }
  return absl::OkStatus();
}

int32_t BpeModel::IdOf(absl::string_view token) const {
  const auto it = vocab_.find(token);
  return it == vocab_.end() ? -1 : it->second;
}

const BpeModel::Merge* BpeModel::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

// As Hugging Face tokenizers' BPE::merge_word: an unknown token waits for the next known character
// (and so comes after byte tokens that follow it).
void BpeModel::CharacterIds(absl::string_view piece, std::vector<int32_t>* ids,
                            int64_t* dropped) const {
  bool waiting = false;
  for (size_t i = 0, n; i < piece.size(); i += n) {
    const char32_t c = DecodeUtf8(piece, i, &n);
    const int32_t id = IdOfCharacter(c);
    if (id >= 0) {
      if (waiting) ids->push_back(unk_id_);
      waiting = false;
      ids->push_back(id);
      continue;
    }
    const absl::string_view bytes = piece.substr(i, n);
    const auto has_token = [this](char b) { return fallback_id_[static_cast<uint8_t>(b)] >= 0; };
    if (byte_fallback_ && std::all_of(bytes.begin(), bytes.end(), has_token)) {
      for (char b : bytes) ids->push_back(fallback_id_[static_cast<uint8_t>(b)]);
    } else if (unk_id_ < 0) {
      *dropped += static_cast<int64_t>(n);
    } else {
      if (waiting && !fuse_unk_) ids->push_back(unk_id_);
      waiting = true;
    }
  }
  if (waiting) ids->push_back(unk_id_);
}

void BpeModel::ByteIds(absl::string_view piece, std::vector<int32_t>* ids, int64_t* dropped) const {
  bool after_unk = false;
  for (char c : piece) {
    const int32_t id = byte_id_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      ids->push_back(id);
    } else if (unk_id_ < 0) {
      ++*dropped;
    } else if (!fuse_unk_ || !after_unk) {
      ids->push_back(unk_id_);
    }
    after_unk = id < 0 && unk_id_ >= 0;
  }
}

void BpeModel::MergeShort(std::vector<int32_t>* ids) const {
  std::vector<int32_t>& s = *ids;
  // pair[i]: the merge of s[i] and s[i + 1], or null.
  const Merge* pair[kShortSymbols];
  for (size_t i = 0; i + 1 < s.size(); ++i) pair[i] = Find(s[i], s[i + 1]);
  while (s.size() > 1) {
    size_t best = s.size();
    for (size_t i = 0; i + 1 < s.size(); ++i)
      if (pair[i] != nullptr && (best == s.size() || pair[i]->rank < pair[best]->rank)) best = i;
    if (best == s.size()) return;
    s[best] = pair[best]->id;
    s.erase(s.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::move(pair + best + 1, pair + s.size(), pair + best);
    if (best > 0) pair[best - 1] = Find(s[best - 1], s[best]);
    if (best + 1 < s.size()) pair[best] = Find(s[best], s[best + 1]);
  }
}

void BpeModel::MergeLong(std::vector<int32_t>* ids) const {
  // A doubly linked list of symbols and a heap of candidate merges; a candidate whose pair has
  // changed since is passed over when it comes up.
  std::vector<Symbol> s(ids->size());
  for (size_t i = 0; i < s.size(); ++i) {
    s[i] = {(*ids)[i], static_cast<int32_t>(i) - 1,
            i + 1 < s.size() ? static_cast<int32_t>(i) + 1 : -1};
  }
  struct Candidate {
    int32_t rank, at, id, left, right;
    bool operator<(const Candidate& o) const {  // the heap's top: least rank, then leftmost
      return rank != o.rank ? rank > o.rank : at > o.at;
    }
  };
  std::priority_queue<Candidate> heap;
  const auto push = [&](int32_t at) {
    if (at < 0 || s[at].next < 0) return;
    const int32_t left = s[at].id, right = s[s[at].next].id;
    if (const Merge* m = Find(left, right)) heap.push({m->rank, at, m->id, left, right});
  };
  for (size_t i = 0; i + 1 < s.size(); ++i) push(static_cast<int32_t>(i));
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Symbol& left = s[c.at];
    if (left.id != c.left || left.next < 0 || s[left.next].id != c.right) continue;
    Symbol& right = s[left.next];
    left.id = c.id;
    left.next = right.next;
    right.id = -1;  // no pair has it
    if (left.next >= 0) s[left.next].previous = c.at;
    push(left.previous);
    push(c.at);
  }
  ids->clear();
  for (int32_t i = 0; i >= 0; i = s[i].next) ids->push_back(s[i].id);
}

void BpeModel::Encode(absl::string_view piece, std::vector<int32_t>* ids, int64_t* dropped) const {
  if (ignore_merges_) {
    const auto whole = by_bytes_.find(piece);
    if (whole != by_bytes_.end()) {
      ids->push_back(whole->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  if (byte_level_) {
    ByteIds(piece, &symbols, dropped);
  } else {
    CharacterIds(piece, &symbols, dropped);
  }
  if (symbols.empty()) return;
  if (symbols.size() <= kShortSymbols) {
    MergeShort(&symbols);
  } else {
    MergeLong(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

}  // namespace soup::engine
