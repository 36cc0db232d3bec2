// One decoder layer over all work items of a pass, forward and backward by hand.
//
//   h1 = norm(x); qkv = h1 Wqkv^T; rope(q, k); att = attention(q, k, v)
//   m = x + att Wo^T; h2 = norm(m); gu = h2 Wgu^T; act = silu(gate) * up; x' = m + act Wd^T
// with LoRA on any linear, and what the model's spec adds (engine/model/model_spec.h): biases,
// norms of q and k, norms of attention's and the MLP's outputs before the residual, a window, a
// soft cap.
//
// Group-major inside a visit: each group's weight operand is made once, then every item runs its
// own GEMM. The backward never runs the down projection again: d act = g Wd comes first, then gate
// and up are read or recomputed and differentiated from one weight operand. Where attention is not
// kept, q, k, v and o are made again first, by the same calls on the same inputs, hence with the
// same bits. What an item keeps of the layer lies where its `kept` says.
// Errors: those of the arena (a buffer that the plan does not hold: our own mistake).
#ifndef SOUP_ENGINE_TRAIN_DECODER_LAYER_H_
#define SOUP_ENGINE_TRAIN_DECODER_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/train/group_weight.h"
#include "engine/train/lora.h"
#include "engine/train/pass_item.h"
#include "engine/train/sparse_mlp.h"

namespace soup::engine {

// Told when nothing that is launched later reads the visit's slab.
using SlabDone = std::function<absl::Status()>;

class DecoderLayer {
 public:
  // `weight_scratch`: wt, as large as the largest group.
  DecoderLayer(const PassEnv& env, std::vector<PassItemState>* items, void* weight_scratch);

  // Takes the buffers of a band of layers (`index` among the pass's bands), and gives them back.
  absl::Status BeginForward(const LayerBand& band, int32_t index);
  void EndForward();
  absl::Status BeginBackward(const LayerBand& band, int32_t index);
  void EndBackward();

  // Every item's `input` -> its `output`, and its `kept`.
  absl::Status Forward(int64_t layer, const std::byte* slab, const SlabDone& slab_done);
  // Each train item's `grad` from the gradient of the layer's output to that of its `input` (not
  // written for layer 0: nothing reads it), adapters' gradients added.
  absl::Status Backward(int64_t layer, const std::byte* slab, const SlabDone& slab_done);

 private:
  // A band's shared buffers.
  struct Scratch {
    std::vector<ArenaBuffer> owners;
    std::byte* hidden = nullptr;             // act [T, H]
    float* qkv_product = nullptr;            // [T, NQ], where QkvFinish reads it and act is bf16
    std::byte* d_hidden = nullptr;           // act [T, H]; backward
    std::byte* low_rank = nullptr;           // act [T, n r]; forward where a class is not kept
    float* partials = nullptr;               // attention backward where act is bf16 and heads share
    std::byte* attention_library = nullptr;  // attention backward where a library takes some
    LoraScratch lora;
  };
  // The largest of the items: what the shared buffers are sized by.
  struct Largest {
    int64_t tokens = 0;
    int64_t score_tokens = 0;  // of score items
    int64_t score_rank = 0;
    int64_t train_tokens = 0;
    int64_t train_rank = 0;
    int64_t dropped = 0;              // tokens * widest adapted input
    int64_t down_tokens = 0;          // of train items that adapt down_proj
    int64_t mlp_low_rank = 0;         // elements of x A^T of a train item's MLP targets
    int64_t attention_workspace = 0;  // bytes, of train items
    int64_t finish_tokens = 0;        // where act is bf16: of items whose q, k, v QkvFinish makes
    int64_t finish_train_tokens = 0;  // and of the train items among them
  };

  // Takes a buffer of `elements` and hands it to `owners`; null when there are none.
  absl::StatusOr<std::byte*> Take(std::vector<ArenaBuffer>& owners, absl::string_view name,
                                  int64_t elements, int64_t element_bytes);
  // The same of a shared buffer of the band, and of an item's.
  absl::StatusOr<std::byte*> TakeShared(std::vector<ArenaBuffer>& owners, absl::string_view name,
                                        int64_t elements, int64_t element_bytes);
  absl::StatusOr<std::byte*> TakeOwn(const PassItemState& item, absl::string_view name,
                                     int64_t elements, int64_t element_bytes);
  // Tokens of the largest item that does not keep a class whose home is `home`.
  int64_t UnkeptTokens(Home home) const {
    return home == Home::kRecompute ? largest_.tokens : largest_.score_tokens;
  }
  std::byte* LowRank(const PassItemState& item, Group g, const LayerActivations& a) const;
  // Where the middle of an item lies that does not keep attention: where the next layer's input
  // will, if what is added to it is added in place.
  std::byte* UnkeptMiddle(const PassItemState& item, int64_t layer) const {
    return item.middle == nullptr || env_.spec.kind(layer).sparse ? item.output : item.middle;
  }

  // Into scratch_.hidden.
  void Norm(const PassItemState& item, const std::byte* x, const std::byte* weight);
  void NormBackward(const PassItemState& item, const std::byte* x, const std::byte* weight,
                    float* rstd);
  void InputGradient(const PassItemState& item, int64_t layer, Group group, const std::byte* dy,
                     const GroupWeight& w, std::byte* dx);
  void NormedGroupBackward(const PassItemState& item, int64_t layer, Group group,
                           const std::byte* dy, int64_t ldy, const std::byte* u,
                           const GroupWeight& w, const std::byte* x, const std::byte* norm,
                           bool input);
  // y += norm(x), and dx from item.grad: the norm of an output, before the residual.
  void OutputNorm(const PassItemState& item, const std::byte* x, const std::byte* weight,
                  std::byte* y);
  void OutputNormBackward(const PassItemState& item, const std::byte* x, const std::byte* weight,
                          std::byte* dx);
  // A group's biases on its output y, whose rows are `ldy` apart.
  void Bias(const PassItemState& item, int64_t layer, const std::byte* slab, Group group,
            std::byte* y, int64_t ldy);
  const std::byte* BiasRows(const PassItemState& item, int64_t layer, const std::byte* slab,
                            Group group, std::byte* y, int64_t ldy);
  // Of the norms of q and k, and of rope on both.
  void HeadNormsBackward(const PassItemState& item, int64_t layer, const std::byte* slab,
                         const LayerActivations& a, std::byte* d_qkv);
  kernels::HeadRope TableOf(const PassItemState& item, int64_t layer) const;
  kernels::HeadRope HeadRopeOf(const PassItemState& item, int64_t layer) const;
  kernels::RopeArgs RopeRows(const PassItemState& item, int64_t layer, int64_t begin, int64_t end,
                             int64_t length, std::byte* x, int64_t row_stride, bool inverse) const;
  void Rope(const PassItemState& item, int64_t layer, std::byte* x, int64_t row_stride,
            bool inverse);
  void FinishQkv(const PassItemState& item, int64_t layer, const std::byte* slab,
                 const LayerActivations& a, const float* product, int64_t product_stride);
  // What IntoResidual makes: out = x W^T (+ residual, null: none), with bias and adapters.
  struct ResidualProduct {
    const PassItemState& item;
    int64_t layer;
    const std::byte* slab;
    Group group;  // kO, kDown
    const GroupWeight& w;
    const std::byte* x;
    std::byte* low_rank;
    std::byte* out;
    const std::byte* residual;
    std::byte* free;  // act [T, H], apart from out and x: written where the residual is null
  };
  void IntoResidual(const ResidualProduct& p);
  // The four parts of a forward; `a` says where results go.
  void Qkv(const PassItemState& item, int64_t layer, const std::byte* slab, const GroupWeight& w,
           const LayerActivations& a);
  void Output(const PassItemState& item, int64_t layer, const std::byte* slab, const GroupWeight& w,
              const LayerActivations& a);
  void GateUp(const PassItemState& item, int64_t layer, const std::byte* slab, const GroupWeight& w,
              const LayerActivations& a, std::byte* act, bool wanted);
  bool GatesWithinProduct(const PassItemState& item, int64_t layer, Group group) const;
  bool AdaptersWithinProduct(const PassItemState& item, int64_t layer, Group group,
                             const GroupWeight& w) const;
  bool BackThroughGate(const PassItemState& item, int64_t layer) const;
  void Down(const PassItemState& item, int64_t layer, const std::byte* slab, const GroupWeight& w,
            const LayerActivations& a);

  absl::Status ForwardAttention(int64_t layer, const std::byte* slab);
  absl::Status ForwardMlp(int64_t layer, const std::byte* slab, const SlabDone& slab_done);
  absl::Status RecomputeAttention(int64_t layer, const std::byte* slab);
  absl::Status BackwardMlp(int64_t layer, const std::byte* slab);
  void BackwardGateUp(const PassItemState& item, int64_t layer, const std::byte* slab,
                      const GroupWeight& w, const LayerActivations& mlp_again, std::byte* act);
  absl::Status BackwardAttention(int64_t layer, const std::byte* slab);
  void BackwardOutput(const PassItemState& item, int64_t layer, const std::byte* slab,
                      const GroupWeight& w, const LayerActivations& a);
  void BackwardQkv(const PassItemState& item, int64_t layer, const std::byte* slab,
                   const GroupWeight& w, const LayerActivations& a, std::byte* d_qkv, float* delta);
  absl::Status ForwardSparse(int64_t layer, const std::byte* slab, const SlabDone& slab_done);
  absl::Status BackwardSparse(int64_t layer, const std::byte* slab);
  // What the backward of the visit reads: attention kept or made again, the MLP where kept.
  static LayerActivations BackwardActivations(const PassItemState& item) {
    LayerActivations a = item.kept.has_attention() ? item.kept : item.again;
    a.gate_up = item.kept.gate_up;
    a.mlp_low_rank = item.kept.mlp_low_rank;
    return a;
  }

  const PassEnv& env_;
  std::vector<PassItemState>& items_;
  void* weight_scratch_;
  Largest largest_;
  LayerBand band_;
  int32_t band_index_ = 0;
  Scratch scratch_;
  SparseMlp sparse_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_DECODER_LAYER_H_
