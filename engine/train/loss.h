// The loss of every item of a pass, and the gradient of the last layer's output.
//
// Supervised rows only: gathered, normed, then the head once by vocabulary slices with a running
// maximum and sum (Milakov & Gimelshein, arXiv 1805.02867); logits never exist whole. The gradient
// is scaled by 1 / (supervised targets of the whole step), so micro-batches just add up. The
// products' rows are rounded up to one of the job's buckets, so that their shapes are known before
// the run.
#ifndef SOUP_ENGINE_TRAIN_LOSS_H_
#define SOUP_ENGINE_TRAIN_LOSS_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "engine/train/group_weight.h"
#include "engine/train/head_stream.h"
#include "engine/train/pass_item.h"

namespace soup::engine {

// Sees a slice of an item's logits, fp32 [rows, slice rows] on the device, before they are consumed
// (and before the soft cap of a family that has one).
struct LogitsSlice {
  int32_t item = 0;  // index in the pass
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
  const float* logits = nullptr;
};
using LogitsHook = std::function<absl::Status(const LogitsSlice&)>;

class Loss {
 public:
  // `final_norm`: bf16 [H] on the device. `slice_rows`: the numeric plan's head_slice_rows.
  Loss(const PassEnv& env, std::vector<PassItemState>* items, HeadStream* head,
       const std::byte* final_norm, int64_t slice_rows, void* weight_scratch)
      : env_(env),
        items_(*items),
        head_(*head),
        final_norm_(final_norm),
        slice_rows_(slice_rows),
        weight_scratch_(weight_scratch) {}

  // `last` -> every item's row_loss (on its way to the host: valid after Synchronize), and the
  // train items' `grad`. `hook` may be null.
  absl::Status Run(const LogitsHook& hook);

 private:
  // Views of an item's loss buffers.
  struct Rows {
    std::vector<ArenaBuffer> owners;
    std::byte* hidden = nullptr;  // act [head rows, H]: normed rows, then dh
    float* grad = nullptr;        // [head rows, H]; train only
    std::byte* target = nullptr;  // wt [n, H]; train only
    float* max = nullptr;
    float* sum = nullptr;
    float* target_logit = nullptr;
    float* loss = nullptr;
    float* rstd = nullptr;
  };
  absl::Status TakeRows(const PassItemState& item, Rows& rows);
  void Gather(const PassItemState& item, std::byte* gathered);
  void ZeroTail(const PassItemState& item, const Rows& rows);
  absl::Status Slice(int32_t slice, float* logits, const LogitsHook& hook);
  absl::Status Finish(PassItemState& item, Rows& rows, std::byte* gathered);

  const PassEnv& env_;
  std::vector<PassItemState>& items_;
  HeadStream& head_;
  const std::byte* final_norm_;
  const int64_t slice_rows_;
  void* weight_scratch_;
  std::vector<Rows> rows_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_LOSS_H_
