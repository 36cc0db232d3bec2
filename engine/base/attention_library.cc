#include "engine/base/attention_library.h"

#include <map>

namespace soup::engine {
namespace {

// From these lengths on the library is faster (docs/BENCHMARKS.md).
constexpr int64_t kLeastForward = 2048;
constexpr int64_t kLeastBackward = 2048;
constexpr int64_t kHeadDim = 128;
// Workspace of the backward: about three times an item's gate and up of an 8B decoder, whose place
// it takes (they are not live when it is), and a small part of the card.
constexpr int64_t kWorkspaceBytesAToken = 176 << 10;
constexpr int64_t kPartOfDevice = 48;

// Shorter sequences, several a call: not measured.
constexpr int64_t kLeastBatched = 512;

}  // namespace

std::vector<AttentionCall> AttentionCalls(const int32_t* cu_seqlens, int64_t sequences,
                                          int64_t batched) {
  std::vector<AttentionCall> blocks;
  const auto length = [&](int64_t s) -> int64_t { return cu_seqlens[s + 1] - cu_seqlens[s]; };
  for (int64_t s = 0; s < sequences;) {
    int64_t end = s + 1;
    while (batched > 0 && end < sequences && length(s) == batched && length(end) == batched) ++end;
    while (s < end) {
      int64_t count = 1;
      while (count * 2 <= end - s) count *= 2;
      blocks.push_back({s, count, length(s)});
      s += count;
    }
  }
  return blocks;
}

int64_t BatchedAttentionLength(const std::vector<int32_t>& lengths) {
  int64_t all = 0;
  std::map<int64_t, int64_t> tokens;  // of lengths that could share calls
  for (const int32_t n : lengths) {
    all += n;
    if (n >= kLeastBatched && n < kLeastForward && FillsItsClass(n)) tokens[n] += n;
  }
  for (const auto& [length, of_length] : tokens) {
    if (of_length * 2 >= all) return length;
  }
  return 0;
}

int64_t AttentionWorkspaceBytes(int64_t tokens, const AttentionWidths& w,
                                const AttentionShare& share) {
  if (share.workspace_limit == 0) return 0;
  int64_t most = 0;
  for (int64_t count = 2; share.batched > 0 && count * share.batched <= tokens; count *= 2) {
    most = std::max(most, AttentionCallBytes(share.batched, w, share.workspace_limit, count));
  }
  if (tokens < share.backward.least) return most;
  const int64_t last = AttentionLengthClass(std::min(tokens, share.backward.most));
  for (int64_t c = AttentionLengthClass(share.backward.least); c <= last;
       c = AttentionLengthClass(c + 1)) {
    most = std::max(most, AttentionCallBytes(c, w, share.workspace_limit));
  }
  return most;
}

AttentionShare ChooseAttentionShare(const std::string& library, int64_t device_memory_bytes,
                                    int64_t item_tokens, const AttentionWidths& w) {
  AttentionShare share;
  if (library.empty() || w.head_dim != kHeadDim || item_tokens < kLeastForward) return share;
  const int64_t row_stride = (w.heads + 2 * w.kv_heads) * w.head_dim;
  // Offsets of rows are 32-bit.
  const int64_t holds = std::min(kAttentionLibraryMostRows / w.heads, INT32_MAX / row_stride);
  int64_t most = 0;
  for (int64_t c = AttentionLengthClass(kLeastForward);
       c <= std::min(holds, AttentionLengthClass(item_tokens)); c = AttentionLengthClass(c + 1)) {
    most = c;
  }
  if (most == 0) return share;
  share.library = library;
  share.forward = {kLeastForward, most};
  const int64_t limit =
      std::min(device_memory_bytes / kPartOfDevice, kWorkspaceBytesAToken * item_tokens);
  int64_t last = 0;
  for (int64_t c = AttentionLengthClass(kLeastBackward); c <= most;
       c = AttentionLengthClass(c + 1)) {
    if (AttentionGroups(c, w, limit) > 0) last = c;
  }
  if (last == 0) return share;
  share.backward = {kLeastBackward, last};
  share.workspace_limit = limit;
  return share;
}

}  // namespace soup::engine
