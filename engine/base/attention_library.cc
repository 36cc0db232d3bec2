#include "engine/base/attention_library.h"

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

}  // namespace

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
