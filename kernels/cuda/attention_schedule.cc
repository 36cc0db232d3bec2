// Host side of attention: which blocks of work a micro-batch has. Pure.
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_f32.h"
#include "kernels/cuda/attention_instances.h"

namespace soup::kernels::cuda {
namespace {

struct Weighted {
  AttentionTile tile;
  int64_t weight;  // keys (or queries) the block walks
};

// One entry a block of `rows` rows of a sequence, heaviest first over all sequences; ties keep
// their order. Measured against keeping each sequence's blocks together for L2: the shorter tail
// wins, 0 to 20 %.
std::vector<AttentionTile> Tiles(const int32_t* cu, int64_t sequences, const uint8_t* skipped,
                                 int rows, int window, bool over_keys) {
  std::vector<Weighted> all;
  for (int64_t s = 0; s < sequences; ++s) {
    if (skipped != nullptr && skipped[s] != 0) continue;
    const int32_t length = cu[s + 1] - cu[s];
    for (int32_t r = 0; r < length; r += rows) {
      const int32_t end = std::min(length, r + rows);
      int64_t weight;
      if (over_keys) {
        weight = (window > 0 ? std::min(length, end - 1 + window) : length) - r;
      } else {
        weight = end - (window > 0 ? std::max(0, r - window + 1) : 0);
      }
      all.push_back({{cu[s], length, r, 0}, weight});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Weighted& a, const Weighted& b) { return a.weight > b.weight; });
  std::vector<AttentionTile> tiles;
  tiles.reserve(all.size());
  for (const Weighted& w : all) tiles.push_back(w.tile);
  return tiles;
}

// How many CTAs share the query heads of one kv block: only as many as the machine needs to fill,
// none of them idle.
int PickSplit(int64_t tiles, int64_t Hkv, int64_t group, int sms) {
  int64_t split = 1;
  while (split < group && tiles * Hkv * split < 4 * static_cast<int64_t>(sms)) ++split;
  while (split < group && (group + split - 1) / split * (split - 1) >= group) ++split;
  return static_cast<int>(split);
}

}  // namespace

cudaError_t MakeAttentionSchedule(const AttentionDevice& device, const int32_t* cu_seqlens,
                                  int64_t sequences, int64_t Hq, int64_t Hkv, int64_t D,
                                  const AttentionVariant& variant, AttentionSchedule* out,
                                  const uint8_t* skipped) {
  const AttentionInstances* kernels = FindAttentionInstances(device.tile_class, D);
  if (kernels == nullptr || Hkv < 1 || Hq % Hkv != 0) return cudaErrorInvalidValue;
  out->forward =
      Tiles(cu_seqlens, sequences, skipped, kernels->forward.block_rows, variant.window, false);
  out->backward_q =
      Tiles(cu_seqlens, sequences, skipped, kernels->backward_q.block_rows, variant.window, false);
  out->backward_kv =
      Tiles(cu_seqlens, sequences, skipped, kernels->backward_kv.block_rows, variant.window, true);
  out->kv_split =
      out->backward_kv.empty()
          ? 1
          : PickSplit(static_cast<int64_t>(out->backward_kv.size()), Hkv, Hq / Hkv, device.sms);
  return cudaSuccess;
}

cudaError_t MakeAttentionF32Schedule(const int32_t* cu_seqlens, int64_t sequences, int64_t Hq,
                                     int64_t Hkv, int64_t D, const AttentionVariant& variant,
                                     AttentionSchedule* out) {
  if (Hkv < 1 || Hq % Hkv != 0) return cudaErrorInvalidValue;
  const int rows = AttentionF32Rows(D);
  out->forward = Tiles(cu_seqlens, sequences, nullptr, rows, variant.window, false);
  out->backward_q = out->forward;
  out->backward_kv = Tiles(cu_seqlens, sequences, nullptr, rows, variant.window, true);
  out->kv_split = 1;
  return cudaSuccess;
}

int64_t AttentionPartialsBytes(int kv_split, int64_t T, int64_t Hkv, int64_t D) {
  return kv_split == 1 ? 0 : static_cast<int64_t>(kv_split) * 2 * T * Hkv * D * 4;
}

}  // namespace soup::kernels::cuda
