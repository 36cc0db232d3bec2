// What the experts of a sparse layer need in a pass, beyond a dense layer's buffers. Names as in
// pass_buffers.h; letters as in kernels/ops.h. `act`: bytes of an activation; `wt`: of a product's
// weight operand, 2 on CUDA and 4 on the CPU. Pure; any thread.
//
// Row counts of an expert's products are rounded up: on CUDA to a short list, so that every product
// can be timed before a run; on the CPU to a multiple of 8.
#ifndef SOUP_ENGINE_PLAN_EXPERT_BUFFERS_H_
#define SOUP_ENGINE_PLAN_EXPERT_BUFFERS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/base/arena_layout.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

// An item's, of one band; forward and backward.
inline constexpr char kForwardExpertHidden[] = "forward/expert_hidden";    // act [T, H]: h2
inline constexpr char kForwardExpertSum[] = "forward/expert_sum";          // fp32 [T, H]
inline constexpr char kForwardRouting[] = "forward/routing";               // RoutingBlock
inline constexpr char kBackwardExpertHidden[] = "backward/expert_hidden";  // act [T, H]: h2
inline constexpr char kBackwardExpertSum[] = "backward/expert_sum";        // fp32 [T, H]: d h2
inline constexpr char kBackwardRouting[] = "backward/routing";             // RoutingBlock
// Shared, of one band: act [ExpertRows(T), H].
inline constexpr char kForwardExpertRows[] = "forward/expert_rows";
inline constexpr char kBackwardExpertRows[] = "backward/expert_rows";

inline constexpr int64_t kCudaWeightBytes = 2;

// Rows of an expert's products for `count` tokens.
inline int64_t ExpertRows(int64_t count, int64_t wt) {
  if (wt != kCudaWeightBytes) return (count + 7) / 8 * 8;
  if (count <= 64) return (count + 15) / 16 * 16;
  int64_t rows = 64;
  while (count > 2 * rows) rows *= 2;
  return count <= rows * 3 / 2 ? rows * 3 / 2 : 2 * rows;
}
// Every value that ExpertRows has for counts from 1 to `tokens`.
inline std::vector<int64_t> ExpertRowCounts(int64_t tokens, int64_t wt) {
  std::vector<int64_t> out;
  for (int64_t count = 1; count <= tokens;) {
    out.push_back(ExpertRows(count, wt));
    count = out.back() + 1;
  }
  return out;
}
// At most the sum of ExpertRows over all experts, whatever the routing of `tokens` tokens.
inline int64_t MostExpertRows(const ModelSpec& model, int64_t tokens, int64_t wt) {
  const int64_t entries = tokens * model.experts.per_token;
  const int64_t experts = std::min(model.experts.count, entries);
  const int64_t padded =
      wt == kCudaWeightBytes ? entries * 3 / 2 + 16 * experts : entries + 7 * experts;
  return std::min(padded, experts * ExpertRows(tokens, wt));
}

// Elements of the buffers that dense and sparse layers share.
inline int64_t GateUpElements(const ModelSpec& model, int64_t tokens, int64_t wt) {  // kept
  int64_t n = model.has_dense_layers() ? tokens * 2 * model.intermediate : 0;
  if (model.has_sparse_layers()) {
    n = std::max(n, MostExpertRows(model, tokens, wt) * 2 * model.experts.intermediate);
  }
  return n;
}
inline int64_t GateUpScratchElements(const ModelSpec& model, int64_t tokens, int64_t wt) {
  int64_t n = model.has_dense_layers() ? tokens * 2 * model.intermediate : 0;
  if (model.has_sparse_layers()) {
    n = std::max(n, ExpertRows(tokens, wt) * 2 * model.experts.intermediate);
  }
  return n;
}
// kItemWork, kItemBackWork: the activation, and attention's output or its gradient.
inline int64_t WorkElements(const ModelSpec& model, int64_t tokens, bool attention, int64_t wt) {
  int64_t n = attention ? tokens * model.q_width() : 0;
  if (model.has_dense_layers()) n = std::max(n, tokens * model.intermediate);
  if (model.has_sparse_layers()) {
    n = std::max(n, MostExpertRows(model, tokens, wt) * model.experts.intermediate);
  }
  return n;
}

// Columns of a row of router logits: rows start at multiples of 16 bytes in either type.
inline int64_t RouterColumns(const ModelSpec& model) { return (model.experts.count + 7) / 8 * 8; }

// Offsets in bytes from the block's start.
struct RoutingBlock {
  int64_t logits = 0;     // fp32 [T, RouterColumns]
  int64_t d_logits = 0;   // act [T, RouterColumns]
  int64_t experts = 0;    // i32 [T, k]
  int64_t weights = 0;    // fp32 [T, k]
  int64_t d_weights = 0;  // fp32 [T, k]
  int64_t lists = 0;      // i32 [E, T]
  int64_t counts = 0;     // i32 [E]
  int64_t bytes = 0;
};
inline RoutingBlock MakeRoutingBlock(const ModelSpec& model, int64_t tokens, int64_t act) {
  const int64_t columns = RouterColumns(model), k = model.experts.per_token;
  RoutingBlock b;
  b.d_logits = b.logits + ArenaRoundUp(tokens * columns * 4);
  b.experts = b.d_logits + ArenaRoundUp(tokens * columns * act);
  b.weights = b.experts + ArenaRoundUp(tokens * k * 4);
  b.d_weights = b.weights + ArenaRoundUp(tokens * k * 4);
  b.lists = b.d_weights + ArenaRoundUp(tokens * k * 4);
  b.counts = b.lists + ArenaRoundUp(model.experts.count * tokens * 4);
  b.bytes = b.counts + ArenaRoundUp(model.experts.count * 4);
  return b;
}

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_EXPERT_BUFFERS_H_
