// One decoder layer over all work items of a pass, forward and backward by hand.
//
//   h1 = norm(x); qkv = h1 Wqkv^T; rope(q, k); att = attention(q, k, v)
//   m = x + att Wo^T; h2 = norm(m); gu = h2 Wgu^T; act = silu(gate) * up; x' = m + act Wd^T
// with LoRA on any of the seven linears.
//
// Group-major inside a visit: each group's weight operand is made once, then every item runs its
// own GEMM. The backward never runs the down projection again: d act = g Wd comes first, then gate
// and up are read or recomputed and differentiated from one weight operand. Without retention q, k,
// v and o are made again first, by the same calls on the same inputs, hence with the same bits.
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

namespace soup::engine {

// Told when nothing that is launched later reads the visit's slab.
using SlabDone = std::function<absl::Status()>;

class DecoderLayer {
 public:
  // `weight_scratch`: wt, as large as the largest group.
  DecoderLayer(const PassEnv& env, std::vector<PassItemState>* items, void* weight_scratch);

  // Takes the buffers of a phase, and gives them back.
  absl::Status BeginForward();
  void EndForward();
  absl::Status BeginBackward();
  void EndBackward();

  // boundary(l) -> boundary(l + 1) of every item.
  absl::Status Forward(int64_t layer, const std::byte* slab, const SlabDone& slab_done);
  // Each train item's `grad` from the gradient of boundary(l + 1) to that of boundary(l) (not
  // written for layer 0: nothing reads it), adapters' gradients added.
  absl::Status Backward(int64_t layer, const std::byte* slab, const SlabDone& slab_done);

 private:
  // A phase's shared buffers.
  struct Scratch {
    std::vector<ArenaBuffer> owners;
    std::byte* hidden = nullptr;    // act [T, H]
    float* rstd = nullptr;          // [T]
    std::byte* d_hidden = nullptr;  // act [T, H]; backward
    std::byte* low_rank = nullptr;  // act [T, r]; forward of items that keep nothing
    float* partials = nullptr;      // attention backward where act is bf16 and heads share
    LoraScratch lora;
  };
  // The largest of the items: what the shared buffers are sized by.
  struct Largest {
    int64_t tokens = 0;
    int64_t unkept_tokens = 0;
    int64_t unkept_rank = 0;
    int64_t train_tokens = 0;
    int64_t train_rank = 0;
    int64_t dropped = 0;      // tokens * widest adapted input
    int64_t down_tokens = 0;  // of train items that adapt down_proj
  };

  // Takes a buffer of `elements` and hands it to `owners`; null when there are none.
  absl::StatusOr<std::byte*> Take(std::vector<ArenaBuffer>& owners, absl::string_view name,
                                  int64_t elements, int64_t element_bytes);
  absl::Status TakeAgain(PassItemState& item);
  std::byte* LowRank(const PassItemState& item, Module m, const LayerActivations& a) const;

  void Norm(const PassItemState& item, const std::byte* x, const std::byte* weight);
  void NormBackward(const PassItemState& item, const std::byte* x, const std::byte* weight);
  // The four parts of a forward; `a` says where results go.
  void Qkv(const PassItemState& item, int64_t layer, const std::byte* slab, const GroupWeight& w,
           const LayerActivations& a);
  void Output(const PassItemState& item, int64_t layer, const GroupWeight& w,
              const LayerActivations& a);
  void GateUp(const PassItemState& item, int64_t layer, const std::byte* slab, const GroupWeight& w,
              const LayerActivations& a);
  void Down(const PassItemState& item, int64_t layer, const GroupWeight& w,
            const LayerActivations& a);

  absl::Status ForwardAttention(int64_t layer, const std::byte* slab);
  absl::Status ForwardMlp(int64_t layer, const std::byte* slab, const SlabDone& slab_done);
  void RecomputeAttention(int64_t layer, const std::byte* slab);
  absl::Status BackwardMlp(int64_t layer, const std::byte* slab);
  void BackwardGateUp(const PassItemState& item, int64_t layer, const std::byte* slab,
                      const GroupWeight& w, std::byte* gate_up_scratch, std::byte* act);
  absl::Status BackwardAttention(int64_t layer, const std::byte* slab);
  void BackwardOutput(const PassItemState& item, int64_t layer, const GroupWeight& w,
                      const LayerActivations& a);
  void BackwardQkv(const PassItemState& item, int64_t layer, const std::byte* slab,
                   const GroupWeight& w, const LayerActivations& a, std::byte* d_qkv, float* delta);
  // What the backward of a layer reads, kept or made again.
  LayerActivations BackwardActivations(const PassItemState& item, int64_t layer) const {
    return item.keeps ? item.KeptOf(env_, layer) : item.again;
  }

  const PassEnv& env_;
  std::vector<PassItemState>& items_;
  void* weight_scratch_;
  Largest largest_;
  Scratch scratch_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_DECODER_LAYER_H_
