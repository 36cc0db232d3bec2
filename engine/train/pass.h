// A pass: work items of one base run layer-major over one traversal of its weights. Forward through
// every layer, the loss at the turn, backward through every layer; adapters' gradients are added to
// their jobs' vectors. What a step does with them is the trainer's affair.
//
// Bits of an item depend on the item alone: its rows, its adapter, its numeric plan. Errors: those
// of the arena (a plan that is wrong), of the ring and of the device. After an error nothing of the
// pass is valid, and the rings hold nothing; gradients are undefined.
#ifndef SOUP_ENGINE_TRAIN_PASS_H_
#define SOUP_ENGINE_TRAIN_PASS_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/device/slot_ring.h"
#include "engine/plan/job_plan.h"
#include "engine/train/loss.h"
#include "engine/train/pass_item.h"

namespace soup::engine {

struct PassInputs {
  SlotRing* ring = nullptr;
  HeadStream* head = nullptr;
  const std::byte* final_norm = nullptr;  // device, bf16 [H]
  const std::byte* embedding = nullptr;   // host store, bf16 [V, H]
  Placement placement;
  int64_t head_slice_rows = 0;
  LogitsHook logits_hook;  // may be null
};

// Items in pass order, each with batch, adapter, train, step, micro_batch and loss_scale
// filled in; the rest is filled here. On success row_loss of every item is on the host.
absl::Status RunItems(const PassEnv& env, const PassInputs& inputs,
                      std::vector<PassItemState>* items);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_PASS_H_
