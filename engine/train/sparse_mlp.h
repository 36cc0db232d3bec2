// The MLP of a sparse layer over all work items of a pass: router, experts, and their backward.
//
//   h2 = norm(m); p = softmax(h2 Wr^T); the k largest e_j with weights w_j; x' = m + sum_j w_j
//   down_e(act(gate_up_e(h2)))
//
// Expert-major inside a visit: an expert's weight operand is made once, then every item runs one
// product of its own over the rows that chose the expert, in token order; an expert that nobody
// chose is not touched. Contributions add up in fp32 in the order of experts. How many rows chose
// which expert the host must know, so each item's counts are waited for once a visit. The backward
// routes again, by the same calls on the same inputs, and needs no expert's output: a weight's
// gradient is the product of the down projection's input with its gradient (kernels/ops.h).
// Adapters are on attention only. Errors: those of the arena and of the device.
#ifndef SOUP_ENGINE_TRAIN_SPARSE_MLP_H_
#define SOUP_ENGINE_TRAIN_SPARSE_MLP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "engine/train/group_weight.h"
#include "engine/train/pass_item.h"

namespace soup::engine {

class SparseMlp {
 public:
  // `weight_scratch`: wt, as large as the largest weight operand.
  SparseMlp(const PassEnv& env, std::vector<PassItemState>* items, void* weight_scratch)
      : env_(env), items_(*items), weight_scratch_(weight_scratch) {}

  // Takes the buffers of a band for its forward or backward visits; `owners` keeps them. Nothing
  // where the model has no sparse layer.
  absl::Status Begin(bool backward, int32_t band, std::vector<ArenaBuffer>& owners);

  // Scratch of a visit that the layer shares: gate_up act [GateUpScratchElements], null where all
  // items keep it; d_hidden act [T, H], backward only.
  struct Scratch {
    std::byte* gate_up = nullptr;
    std::byte* d_hidden = nullptr;
  };
  using MiddleOf = std::function<const std::byte*(const PassItemState&)>;
  // Each item's middle -> its `output` (may be the same), and its kept gate_up.
  absl::Status Forward(int64_t layer, const std::byte* slab, const MiddleOf& middle,
                       const Scratch& scratch);
  // Each train item's `grad` from the gradient of the output to that of the middle.
  absl::Status Backward(int64_t layer, const std::byte* slab, const MiddleOf& middle,
                        const Scratch& scratch);

 private:
  // Of one item: its buffers, and who chose whom.
  struct Routed {
    std::byte* hidden = nullptr;
    float* sum = nullptr;
    float* logits = nullptr;
    std::byte* d_logits = nullptr;
    int32_t* experts = nullptr;
    float* weights = nullptr;
    float* d_weights = nullptr;
    int32_t* lists = nullptr;
    int32_t* counts = nullptr;
    std::vector<int32_t> host_counts;  // [E]
    std::vector<int64_t> first_row;    // [E] of the experts' rows one after another
  };
  // One expert's share of one item.
  struct Share {
    const PassItemState& item;
    Routed& routed;
    const int32_t* entries;
    int64_t count;
    int64_t rows;
    int64_t first_row;
  };
  using ShareFn = std::function<void(const Share&, const GroupWeight&)>;

  bool Takes(const PassItemState& item) const { return !backward_ || item.train; }
  absl::Status Route(int64_t layer, const std::byte* slab, const MiddleOf& middle);
  void RouteItem(const PassItemState& item, Routed& routed, const GroupWeight& router);
  void Norm(const PassItemState& item, const std::byte* x, const std::byte* weight, std::byte* y);
  // Every expert that some item chose, with the operand of `group`.
  void ForEachShare(int64_t layer, const std::byte* slab, Group group, const ShareFn& fn);
  std::byte* GateUp(const Share& s, std::byte* scratch) const;
  void Gather(const Share& s, const std::byte* x);
  void Scatter(const Share& s, const float* weights);
  void RouterBackward(const PassItemState& item, Routed& routed, const GroupWeight& router,
                      std::byte* d_hidden);

  const PassEnv& env_;
  std::vector<PassItemState>& items_;
  void* weight_scratch_;
  bool backward_ = false;
  std::byte* rows_ = nullptr;  // act [ExpertRows(T), H]
  std::vector<Routed> routed_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_SPARSE_MLP_H_
