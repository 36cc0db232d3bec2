// The BPE model of a byte-level tokenizer.json: vocabulary and merges over raw bytes. Immutable;
// any thread.
#ifndef SOUP_ENGINE_DATA_BPE_H_
#define SOUP_ENGINE_DATA_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/json_access.h"

namespace soup::engine {

class BpeModel {
 public:
  // Reads the "model" object. Merges may be strings ("a b") or pairs. Errors: InvalidArgument
  // (another model type, dropout, subword affixes, byte fallback, a merge outside the vocabulary).
  static absl::StatusOr<BpeModel> Create(const JsonNode& node);

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
  absl::Status ReadMerges(const JsonNode& node);
  const Merge* Find(int32_t left, int32_t right) const;
  void InitialIds(absl::string_view piece, std::vector<int32_t>* ids, int64_t* dropped) const;
  void MergeShort(std::vector<int32_t>* ids) const;
  void MergeLong(std::vector<int32_t>* ids) const;

  absl::flat_hash_map<std::string, int32_t> vocab_;     // spelling -> id
  absl::flat_hash_map<std::string, int32_t> by_bytes_;  // raw bytes -> id; ignore_merges only
  absl::flat_hash_map<uint64_t, Merge> merges_;         // left << 32 | right
  std::array<int32_t, 256> byte_id_;
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_BPE_H_
