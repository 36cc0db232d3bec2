// Which sequences an attention library (cuDNN) takes instead of our own kernels, and with what
// memory. Pure functions of lengths and widths, so that the numeric plan, the memory plan and the
// backend agree. Plain values; any thread.
#ifndef SOUP_ENGINE_BASE_ATTENTION_LIBRARY_H_
#define SOUP_ENGINE_BASE_ATTENTION_LIBRARY_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace soup::engine {

// Lengths of sequences, both ends in; none where most is 0.
struct TokenRange {
  int64_t least = 0;
  int64_t most = 0;
  bool holds(int64_t tokens) const { return tokens > 0 && tokens >= least && tokens <= most; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// The library's share of a job's sequences. It decides bits, so the numeric plan holds it. Forward
// and backward are apart because the backward takes a workspace; lse means the same in both
// kernels.
struct AttentionShare {
  std::string library;  // "cudnn-9.14.0"; empty: our own kernels take all
  TokenRange forward;
  TokenRange backward;          // within `forward`
  int64_t workspace_limit = 0;  // bytes of one backward call: how many heads it takes
  int64_t batched =
      0;  // neighbours of this length, shorter than those ranges', share calls; 0: none
};

// Of a decoder's attention.
struct AttentionWidths {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// A sequence runs by the execution plan of its class, the least one that holds it: plans take long
// to make, so there must be few. Multiples of 128 up to 2,048, then eight an octave.
inline int64_t AttentionLengthClass(int64_t tokens) {
  int64_t step = 128;
  while (step * 16 < tokens) step *= 2;
  return (tokens + step - 1) / step * step;
}

// Bytes of workspace, at most, that the deterministic backward takes for one key-value head and its
// query heads: dS in bf16, dk and dv of each query head in bf16, row sums in fp32, and a little
// that the library rounds up. As measured on sm_90 (docs/NUMERICS.md); one that wants more is
// refused.
inline int64_t AttentionGroupBytes(int64_t length_class, const AttentionWidths& w) {
  const int64_t rows = w.heads / w.kv_heads * length_class;
  return rows * (2 * length_class + 4 * w.head_dim + 4) + (int64_t{64} << 10);
}

// Most rows of heads of a sequence: what the backend keeps statistics for.
inline constexpr int64_t kAttentionLibraryMostRows = 1 << 20;

// A sequence that fills its class runs by a plan without lengths, which is faster.
inline bool FillsItsClass(int64_t length) { return length == AttentionLengthClass(length); }

// Neighbouring sequences of an item that one call may take: all of one length.
struct AttentionCall {
  int64_t first = 0;  // sequence
  int64_t count = 0;  // a power of two
  int64_t length = 0;
};

// An item's sequences in blocks: of the neighbours that have `batched` tokens as many as a power of
// two allows, the largest first; all others alone. cu_seqlens [sequences + 1].
std::vector<AttentionCall> AttentionCalls(const int32_t* cu_seqlens, int64_t sequences,
                                          int64_t batched);

// Whether the library's forward is faster than our own for such a block.
inline bool LibraryTakesForward(int64_t length, const TokenRange& range, int64_t count = 1) {
  constexpr int64_t kLeastUnfilled = 3072, kLeastTokens = 2048;
  if (count > 1) return range.most > 0 && count * length >= kLeastTokens;
  return range.holds(length) && (FillsItsClass(length) || length > kLeastUnfilled);
}

// Key-value heads of one backward call over `count` sequences of `length` tokens: as many as the
// limit holds, all calls alike. 0: our own kernel's, because not one fits or a call would have too
// little work: the library's rate rises with the query heads of a call times the squares of its
// lengths.
inline int64_t AttentionGroups(int64_t length, const AttentionWidths& w, int64_t limit,
                               int64_t count = 1) {
  constexpr int64_t kLeastWork = 1 << 27, kLeastUnfilledWork = 1 << 29, kLeastBlockWork = 1 << 26;
  const int64_t least = count > 1               ? kLeastBlockWork
                        : FillsItsClass(length) ? kLeastWork
                                                : kLeastUnfilledWork;
  const int64_t length_class = AttentionLengthClass(length);
  int64_t groups = std::min(w.kv_heads, limit / (count * AttentionGroupBytes(length_class, w)));
  while (groups > 1 && w.kv_heads % groups != 0) --groups;
  const int64_t work = groups * (w.heads / w.kv_heads) * count * length_class * length_class;
  return work < least ? 0 : groups;
}

// Whether a backward call takes such a block, which then has AttentionGroups key-value heads.
inline bool LibraryTakesBackward(int64_t length, const TokenRange& range, const AttentionWidths& w,
                                 int64_t limit, int64_t count = 1) {
  return range.most > 0 && (count > 1 || range.holds(length)) &&
         AttentionGroups(length, w, limit, count) > 0;
}

// Bytes of workspace of a backward call over such a block.
inline int64_t AttentionCallBytes(int64_t length, const AttentionWidths& w, int64_t limit,
                                  int64_t count = 1) {
  return AttentionGroups(length, w, limit, count) * count *
         AttentionGroupBytes(AttentionLengthClass(length), w);
}

// Bytes of the workspace of an item of so many tokens: the most that any of its blocks can take.
int64_t AttentionWorkspaceBytes(int64_t tokens, const AttentionWidths& w,
                                const AttentionShare& share);

// The length whose sequences share calls in a job with these: one that fills its class, is too
// short for a call of its own, and has at least half of all tokens; 0: none. Plans are made for
// each number of sequences, therefore only one length has them.
int64_t BatchedAttentionLength(const std::vector<int32_t>& lengths);

// The share of `library` in a job whose items have at most `item_tokens` tokens: a function of the
// job and the machine, never of a budget. `batched` is not chosen here. Empty where our own kernels
// are as fast, or where nothing of the library's is known (head dimensions other than 128).
AttentionShare ChooseAttentionShare(const std::string& library, int64_t device_memory_bytes,
                                    int64_t item_tokens, const AttentionWidths& w);

// Who computes a call within the library's share, on a device that has our own warpgroup kernels
// (kernels/cuda/hopper_attention.h), the library, or both: ours where they are faster.
struct AttentionMakers {
  bool own_forward = false;
  bool own_backward = false;
};

// The longest sequences whose forward cuDNN 9.14 is not faster with, and the fewest blocks, pairs
// of 128 keys of each key-value head, that our backward fills a large card with
// (docs/BENCHMARKS.md).
inline constexpr int64_t kOwnForwardTokens = 4096, kOwnBackwardBlocks = 120;
inline constexpr int64_t kOwnAttentionHeadDim = 128;

// `groups`: key-value heads of a backward call; 0: there is none.
inline AttentionMakers AttentionMakersOf(int64_t head_dim, int64_t length_class, int64_t sequences,
                                         int64_t groups, bool has_own, bool has_library) {
  AttentionMakers makers;
  if (!has_own || head_dim != kOwnAttentionHeadDim) return makers;
  const int64_t blocks = (length_class + 255) / 256 * sequences * groups;
  makers.own_forward = !has_library || length_class <= kOwnForwardTokens;
  makers.own_backward = groups > 0 && (!has_library || blocks >= kOwnBackwardBlocks);
  return makers;
}
// Whether the library must be ready for such calls.
inline bool NeedsLibrary(const AttentionMakers& makers, int64_t groups) {
  return !makers.own_forward || (groups > 0 && !makers.own_backward);
}

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_ATTENTION_LIBRARY_H_
