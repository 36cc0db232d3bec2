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

#include "engine/base/attention_library.h"
#include "engine/base/dtype.h"
#include "engine/device/arena.h"
#include "engine/device/backend.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"
#include "engine/plan/pass_buffers.h"
#include "engine/plan/placement.h"
#include "engine/train/item_batch.h"
#include "engine/train/kept_blocks.h"

namespace soup::engine {

// What every part of a pass sees. Pointers are borrowed.
struct PassEnv {
  Backend* backend = nullptr;
  Arena* arena = nullptr;
  Arena* host_arena = nullptr;  // null: the pass keeps nothing in host memory
  ModelSpec spec;
  BaseFormat format = BaseFormat::kBf16;
  // Of layers with a dense MLP, and of those with experts.
  std::array<LayerLayout, 2> layouts;
  int64_t act_bytes = 4;                       // of kernels/ops.h's act, in this pass
  int64_t wt_bytes = 4;                        // and wt
  const float* inverse_frequencies = nullptr;  // device, fp32: RopeTables of the spec
  std::atomic<int64_t>* progress = nullptr;    // grows with every large product

  const LayerLayout& layout(int64_t layer) const { return layouts[spec.kind(layer).sparse]; }
};

inline kernels::GateActivation GateOf(const ModelSpec& spec) {
  return spec.activation == Activation::kGeluTanh ? kernels::GateActivation::kGeluTanh
                                                  : kernels::GateActivation::kSilu;
}

inline std::byte* At(void* base, int64_t elements, int64_t element_bytes) {
  return static_cast<std::byte*>(base) + elements * element_bytes;
}
inline const std::byte* At(const void* base, int64_t elements, int64_t element_bytes) {
  return static_cast<const std::byte*>(base) + elements * element_bytes;
}

// A and B of the adapted linears of one group of one layer as operands, and their gradients (null
// in a score item). Linear i of the n adapted ones: rows [i r, (i + 1) r) of A, width[i] rows of B.
struct LoraSite {
  kernels::LoraLinears linears = {};  // count 0: none is adapted
  std::array<Module, 3> modules = {};
  const std::byte* a = nullptr;  // act [n r, in]
  const std::byte* b = nullptr;  // act [sum of widths, r]
  float* grad_a = nullptr;
  float* grad_b = nullptr;
  int64_t in = 0;
  int32_t first_target = 0;  // place of the first among all targets
};

// A job's adapter on the device.
struct LoraOnDevice {
  int64_t r = 0;
  float scale = 0;    // alpha / r, or alpha / sqrt(r)
  float dropout = 0;  // p
  uint64_t seed = 0;
  int64_t targets = 0;
  int64_t attention_targets = 0;  // the first of them; the others are the MLP's
  bool turns = false;             // AdaptersTurn of engine/plan/job_plan.h
  std::vector<LoraSite> sites;    // [layers * kGroups]

  // Of x A^T, a linear.
  int64_t columns() const { return LowRankColumns(r); }
  const LoraSite& site(int64_t layer, Group g) const {
    return sites[layer * kGroups + static_cast<int>(g)];
  }
  bool adapts(Group g) const { return site(0, g).linears.count > 0; }
};

// Activations of one layer that its backward reads; kept from the forward visit, or made again.
// Each class (engine/plan/placement.h) is there whole or not at all.
struct LayerActivations {
  // attention
  std::byte* qkv = nullptr;            // act [T, qkv_row()], rotated
  std::byte* attention = nullptr;      // act [T, Q]
  float* lse = nullptr;                // [T, Hq]
  std::byte* middle = nullptr;         // act [T, H]: x + attention's output
  std::byte* attention_out = nullptr;  // act [T, H]: attention's output before its norm, if any
  std::byte* low_rank = nullptr;  // act [attention targets, T, r]: x A^T, a group's side by side
  // mlp
  std::byte* gate_up = nullptr;       // act [T, 2 I]
  std::byte* mlp_low_rank = nullptr;  // act [MLP targets, T, r]

  bool has_attention() const { return qkv != nullptr; }
  bool has_mlp() const { return gate_up != nullptr; }
};

struct PassItemState {
  int32_t index = 0;  // in the pass: names its buffers
  const LoraOnDevice* lora = nullptr;
  bool train = true;
  int64_t step = 0;  // with micro_batch: the dropout stream
  int32_t micro_batch = 0;
  float loss_scale = 0;  // 1 / supervised targets of the whole step
  ItemBatch batch;
  int64_t T = 0;
  AttentionShare attention;         // of the job's numeric plan
  int64_t attention_workspace = 0;  // bytes of a backward call, as planned for the item
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
  Boundaries boundaries;
  KeptBlocks kept_attention;  // keep nothing in a score item
  KeptBlocks kept_mlp;

  // Of the visit under way.
  const std::byte* input = nullptr;  // act [T, H]: the layer's input
  // Forward: act [T, H]: the next one's; then, where outputs are normed, the MLP's before its norm.
  std::byte* output = nullptr;
  LayerActivations kept;  // what the layer keeps: written in the forward, then read

  const std::byte* last = nullptr;  // loss: act [T, H]: the last layer's output
  std::byte* work = nullptr;        // forward: act [T, max(Q, I)]
  std::byte* middle = nullptr;      // forward: act [T, H]; null where there is none (kItemMiddle)
  std::byte* grad = nullptr;        // loss, backward: act [T, H]
  std::byte* mlp_out = nullptr;    // backward: act [T, H]: the MLP's output before its norm, if any
  std::byte* back_work = nullptr;  // backward: act [T, max(Q, I)]
  LayerActivations again;          // backward: attention, where a band's layers make it again

  // Result of the loss, host.
  std::vector<float> row_loss;  // [supervised]
};

// Bytes of an item's blocks, and views of one; null blocks set nothing.
int64_t AttentionBlockBytes(const PassEnv& env, const PassItemState& item);
int64_t MlpBlockBytes(const PassEnv& env, const PassItemState& item);
void SetAttention(const PassEnv& env, const PassItemState& item, std::byte* block,
                  LayerActivations* a);
void SetMlp(const PassEnv& env, const PassItemState& item, std::byte* block, LayerActivations* a);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_PASS_ITEM_H_
