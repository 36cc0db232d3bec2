#include "engine/data/added_tokens.h"

#include <algorithm>
#include <functional>

#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

// The character that ends before `at` in well-formed UTF-8 (at > 0); where it begins in *begin.
char32_t CharacterBefore(absl::string_view text, size_t at, size_t* begin) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  *begin = at;
  size_t n;
  return DecodeUtf8(text, at, &n);
}

bool IsWordAlone(absl::string_view text, size_t begin, size_t end) {
  size_t n;
  if (begin > 0 && IsWord(CharacterBefore(text, begin, &n))) return false;
  return end >= text.size() || !IsWord(DecodeUtf8(text, end, &n));
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken* token, absl::string_view pattern) {
  if (pattern.empty() || !patterns_.emplace(std::string(pattern), token).second) return;
  std::vector<size_t>& lengths = lengths_[static_cast<unsigned char>(pattern[0])];
  const auto at =
      std::lower_bound(lengths.begin(), lengths.end(), pattern.size(), std::greater<size_t>());
  if (at == lengths.end() || *at != pattern.size()) lengths.insert(at, pattern.size());
}

size_t AddedTokenMatcher::LongestAt(absl::string_view text, const AddedToken** token) const {
  for (size_t length : lengths_[static_cast<unsigned char>(text[0])]) {
    if (length > text.size()) continue;
    const auto it = patterns_.find(text.substr(0, length));
    if (it != patterns_.end()) {
      *token = it->second;
      return length;
    }
  }
  return 0;
}

void AddedTokenMatcher::Find(absl::string_view text, std::vector<AddedSpan>* out) const {
  if (empty()) return;
  size_t taken = 0;  // end of the last match with what it swallowed
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = nullptr;
    const size_t length = LongestAt(text.substr(at), &token);
    if (length == 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    if (begin < taken) continue;  // begins within white space that the last match swallowed
    if (token->single_word && !IsWordAlone(text, begin, end)) continue;
    if (token->lstrip) {
      for (size_t before; begin > taken && IsSpace(CharacterBefore(text, begin, &before));)
        begin = before;
    }
    if (token->rstrip) {
      for (size_t n; end < text.size() && IsSpace(DecodeUtf8(text, end, &n));) end += n;
    }
    out->push_back({begin, end, token});
    taken = end;
  }
}

}  // namespace soup::engine
