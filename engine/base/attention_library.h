// Which sequences an attention library (cuDNN) takes instead of our own kernels, and with what
// memory. Pure functions of lengths and widths, so that the numeric plan, the memory plan and the
// backend agree. Plain values; any thread.
#ifndef SOUP_ENGINE_BASE_ATTENTION_LIBRARY_H_
#define SOUP_ENGINE_BASE_ATTENTION_LIBRARY_H_

#include <algorithm>
#include <cstdint>
#include <string>

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

// Whether the library's forward is faster than our own for such a sequence.
inline bool LibraryTakesForward(int64_t length, const TokenRange& range) {
  constexpr int64_t kLeastUnfilled = 3072;
  return range.holds(length) && (FillsItsClass(length) || length > kLeastUnfilled);
}

// Key-value heads of one backward call over a sequence of `length` tokens: as many as the limit
// holds, all calls alike. 0: our own kernel's, because not one fits or a call would have too little
// work: the library's rate rises with the query heads of a call times its square.
inline int64_t AttentionGroups(int64_t length, const AttentionWidths& w, int64_t limit) {
  constexpr int64_t kLeastWork = 1 << 27, kLeastUnfilledWork = 1 << 29;
  const int64_t length_class = AttentionLengthClass(length);
  int64_t groups = std::min(w.kv_heads, limit / AttentionGroupBytes(length_class, w));
  while (groups > 1 && w.kv_heads % groups != 0) --groups;
  const int64_t work = groups * (w.heads / w.kv_heads) * length_class * length_class;
  return work < (FillsItsClass(length) ? kLeastWork : kLeastUnfilledWork) ? 0 : groups;
}

// Bytes of the workspace of an item of so many tokens: the most that any of its sequences can take.
inline int64_t AttentionWorkspaceBytes(int64_t tokens, const AttentionWidths& w,
                                       const AttentionShare& share) {
  if (share.workspace_limit == 0 || tokens < share.backward.least) return 0;
  const int64_t last = AttentionLengthClass(std::min(tokens, share.backward.most));
  int64_t most = 0;
  for (int64_t c = AttentionLengthClass(share.backward.least); c <= last;
       c = AttentionLengthClass(c + 1)) {
    most = std::max(most, AttentionGroups(c, w, share.workspace_limit) * AttentionGroupBytes(c, w));
  }
  return most;
}

// The share of `library` in a job whose items have at most `item_tokens` tokens: a function of the
// job and the machine, never of a budget. Empty where our own kernels are as fast, or where nothing
// of the library's is known (head dimensions other than 128).
AttentionShare ChooseAttentionShare(const std::string& library, int64_t device_memory_bytes,
                                    int64_t item_tokens, const AttentionWidths& w);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_ATTENTION_LIBRARY_H_
