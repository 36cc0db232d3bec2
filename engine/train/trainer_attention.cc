// The execution plans of an attention library are made before a run: for every length that the
// job's records have.
#include <map>
#include <utility>
#include <vector>

#include "engine/base/attention_library.h"
#include "engine/train/trainer_rep.h"

namespace soup::engine {

absl::Status Trainer::Rep::PrepareAttention(const JobSetup& setup) {
  const AttentionShare& share = setup.numeric.attention;
  if (share.library.empty()) return absl::OkStatus();
  const ModelSpec& m = base.spec;
  const AttentionWidths widths = AttentionWidthsOf(m);
  // One of the lengths that share plans: of a class, those that fill it apart.
  std::map<std::pair<int64_t, bool>, int64_t> kinds;
  const auto add = [&](const std::vector<int32_t>& lengths) {
    for (const int32_t n : lengths) {
      if (LibraryTakesForward(n, share.forward)) {
        kinds[{AttentionLengthClass(n), FillsItsClass(n)}] = n;
      }
    }
  };
  add(setup.shape.lengths);
  add(setup.shape.validation_lengths);
  std::vector<AttentionPreparation> sequences;
  const auto prepare = [&](int64_t length, int64_t count) {
    AttentionPreparation p;
    p.length_class = AttentionLengthClass(length);
    p.exact = FillsItsClass(length);
    p.sequences = count;
    p.heads = m.heads;
    p.kv_heads = m.kv_heads;
    p.head_dim = m.head_dim;
    p.row_stride = m.qkv_width();
    if (LibraryTakesBackward(length, share.backward, widths, share.workspace_limit, count)) {
      p.groups = AttentionGroups(length, widths, share.workspace_limit, count);
      p.workspace_bytes = AttentionCallBytes(length, widths, share.workspace_limit, count);
    }
    sequences.push_back(p);
  };
  for (const auto& [kind, length] : kinds) prepare(length, 1);
  const int64_t most = setup.numeric.buckets.back();
  for (int64_t count = 2; share.batched > 0 && count * share.batched <= most; count *= 2) {
    if (LibraryTakesForward(share.batched, share.forward, count)) prepare(share.batched, count);
  }
  return backend->PrepareAttention(share.library, sequences);
}

}  // namespace soup::engine
