// One work item inside a pass: its rows, its adapter, and where its buffers lie on the device.
//
// Filled by the executor (pass.cc), read by the layer, the loss and LoRA. T: rows of the item's
// bucket; other letters as in kernels/ops.h. Buffers are views of the pass's arena.
#ifndef SOUP_ENGINE_TRAIN_PASS_ITEM_H_
#define SOUP_ENGINE_TRAIN_PASS_ITEM_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/arena.h"
#include "engine/device/backend.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"
#include "engine/train/item_batch.h"

namespace soup::engine {

// What every part of a pass sees. Pointers are borrowed.
struct PassEnv {
  Backend* backend = nullptr;
  Arena* arena = nullptr;
  ModelSpec spec;
  BaseFormat format = BaseFormat::kBf16;
  LayerLayout layout;
  int64_t act_bytes = 4;                       // of kernels/ops.h's act
  int64_t wt_bytes = 4;                        // and wt
  const float* inverse_frequencies = nullptr;  // device, fp32 [D / 2]
  std::atomic<int64_t>* progress = nullptr;    // grows with every large product
};

inline std::byte* At(void* base, int64_t elements, int64_t element_bytes) {
  return static_cast<std::byte*>(base) + elements * element_bytes;
}
inline const std::byte* At(const void* base, int64_t elements, int64_t element_bytes) {
  return static_cast<const std::byte*>(base) + elements * element_bytes;
}

// A and B of one linear of one layer as operands, and their gradients (null in a score item).
struct LoraSite {
  const std::byte* a = nullptr;  // wt [r, in]
  const std::byte* b = nullptr;  // wt [out, r]
  float* grad_a = nullptr;
  float* grad_b = nullptr;
  int64_t in = 0;
  int64_t out = 0;
};

// A job's adapter on the device.
struct LoraOnDevice {
  int64_t r = 0;
  float scale = 0;    // alpha / r, or alpha / sqrt(r)
  float dropout = 0;  // p
  uint64_t seed = 0;
  int64_t targets = 0;
  std::array<int32_t, kModules> target_index;  // place among the targets; -1: not adapted
  std::vector<LoraSite> sites;                 // [layers * kModules]

  bool adapts(Module m) const { return target_index[static_cast<int>(m)] >= 0; }
  const LoraSite& site(int64_t layer, Module m) const {
    return sites[layer * kModules + static_cast<int>(m)];
  }
};

// Activations of one layer that its backward reads; kept from the forward visit, or made again.
struct LayerActivations {
  std::byte* qkv = nullptr;        // act [T, NQ], rotated
  std::byte* attention = nullptr;  // act [T, Q]
  float* lse = nullptr;            // [T, Hq]
  std::byte* middle = nullptr;     // act [T, H]: x + attention's output
  std::byte* gate_up = nullptr;    // act [T, 2 I]; null: made again in the backward
  std::byte* low_rank = nullptr;   // act [targets, T, r]: x A^T of every target
};

struct PassItemState {
  int32_t index = 0;  // in the pass: names its buffers
  const LoraOnDevice* lora = nullptr;
  bool train = true;
  bool keeps = false;  // retention keep
  int64_t step = 0;    // with micro_batch: the dropout stream
  int32_t micro_batch = 0;
  float loss_scale = 0;  // 1 / supervised targets of the whole step
  ItemBatch batch;
  int64_t T = 0;
  int64_t head_rows = 0;  // supervised() rounded up to a bucket: rows of the head's products

  // Device, i32: views of the index buffer.
  const int32_t* ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* rows = nullptr;
  const int32_t* targets = nullptr;
  const int32_t* cu_seqlens = nullptr;
  int64_t sequences() const { return static_cast<int64_t>(batch.cu_seqlens.size()) - 1; }
  int64_t supervised() const { return static_cast<int64_t>(batch.rows.size()); }

  std::vector<ArenaBuffer> buffers;  // owners of what lives through the whole pass
  std::byte* boundaries = nullptr;   // act [L + 1, T, H]; score: [2, T, H]
  LayerActivations kept;             // of layer 0; null unless `keeps`
  std::byte* work = nullptr;         // forward: act [T, max(Q, I)]
  std::byte* grad = nullptr;         // loss, backward: act [T, H]
  std::byte* back_work = nullptr;    // backward: act [T, max(Q, I)]
  LayerActivations again;            // backward, unless `keeps`

  // Result of the loss, host.
  std::vector<float> row_loss;  // [supervised]

  // Input of layer l; l = L: output of the last.
  std::byte* boundary(const PassEnv& env, int64_t l) const {
    return At(boundaries, (train ? l : l % 2) * T * env.spec.hidden, env.act_bytes);
  }
  // What layer l keeps. Only when `keeps`.
  LayerActivations KeptOf(const PassEnv& env, int64_t l) const;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_PASS_ITEM_H_
