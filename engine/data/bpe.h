// The BPE model of a tokenizer.json: vocabulary and merges, over the bytes of a text (its
// vocabulary is spelled in ByteLevel's characters) or over its characters (with byte fallback or
// an unknown token for those that the vocabulary lacks). Immutable; any thread.
#ifndef SOUP_ENGINE_DATA_BPE_H_
#define SOUP_ENGINE_DATA_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/json_access.h"

namespace soup::engine {

class BpeModel {
 public:
  // Reads the "model" object. Merges may be strings ("a b") or pairs. Errors: InvalidArgument
  // (another model type, dropout, subword affixes, byte fallback over bytes, a merge outside the
  // vocabulary).
  static absl::StatusOr<BpeModel> Create(const JsonNode& node, bool byte_level);

  // Bytes from the start of `text` to a place that no merge crosses, so that both sides may be
  // encoded apart; text.size() when none is known. (Before a word's U+2581, most often:
  // vocabularies of characters come without a pre-tokenizer, and a whole text would be one piece.)
  size_t NextCut(absl::string_view text) const;

  // Appends the ids of one piece (raw bytes of text): merges are applied in the order of rank, the
  // leftmost first. *dropped grows by the bytes that no token stands for when there is no
  // unk_token: like Hugging Face tokenizers we leave them out, but say so.
  void Encode(absl::string_view piece, std::vector<int32_t>* ids, int64_t* dropped) const;

  // By the token's spelling in tokenizer.json; -1: not there.
  int32_t IdOf(absl::string_view token) const;
  const absl::flat_hash_map<std::string, int32_t>& vocab() const { return vocab_; }

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // -1: none
  };

  absl::Status ReadVocab(const JsonNode& node);
  void ReadCharacter(const std::string& token, int32_t id);
  absl::Status ReadMerges(const JsonNode& node);
  int32_t IdOfCharacter(char32_t c) const;  // -1: none
  const Merge* Find(int32_t left, int32_t right) const;
  void FindCuts();
  void ByteIds(absl::string_view piece, std::vector<int32_t>* ids, int64_t* dropped) const;
  void CharacterIds(absl::string_view piece, std::vector<int32_t>* ids, int64_t* dropped) const;
  void MergeShort(std::vector<int32_t>* ids) const;
  void MergeLong(std::vector<int32_t>* ids) const;

  absl::flat_hash_map<std::string, int32_t> vocab_;      // spelling -> id
  absl::flat_hash_map<std::string, int32_t> by_bytes_;   // raw bytes -> id; ignore_merges only
  absl::flat_hash_map<uint64_t, Merge> merges_;          // left << 32 | right
  absl::flat_hash_map<char32_t, int32_t> by_character_;  // over characters only, above ASCII
  absl::flat_hash_set<char32_t> joined_to_space_;  // some merge joins it and a U+2581 after it
  std::array<int32_t, 256> byte_id_;               // of a byte; over characters: of the ASCII ones
  std::array<int32_t, 256> fallback_id_;           // of "<0x00>" and so on; -1: none
  bool byte_level_ = true;
  bool byte_fallback_ = false;
  bool cuts_ = false;
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_BPE_H_
