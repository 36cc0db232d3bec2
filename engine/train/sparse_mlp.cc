#include "engine/train/sparse_mlp.h"

#include <algorithm>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/plan/expert_buffers.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

using kernels::GemmArgs;
using kernels::Operand;

constexpr absl::Duration kCountsLimit = absl::Minutes(10);
constexpr int64_t kF32Bytes = 4;

}  // namespace

absl::Status SparseMlp::Begin(bool backward, int32_t band, std::vector<ArenaBuffer>& owners) {
  const ModelSpec& m = env_.spec;
  if (!m.has_sparse_layers()) return absl::OkStatus();
  backward_ = backward;
  routed_.assign(items_.size(), Routed());
  const auto take = [&](const std::string& name, int64_t bytes) -> absl::StatusOr<std::byte*> {
    SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer, env_.arena->Take(name, bytes));
    owners.push_back(std::move(buffer));
    return owners.back().data();
  };
  int64_t tokens = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    const PassItemState& item = items_[i];
    if (!Takes(item)) continue;
    tokens = std::max(tokens, item.T);
    Routed& r = routed_[i];
    const auto own = [&](const char* forward_name, const char* backward_name, int64_t bytes) {
      const std::string name = InBand(backward ? backward_name : forward_name, band);
      return take(ItemBuffer(item.index, name), bytes);
    };
    SOUP_ASSIGN_OR_RETURN(r.hidden, own(kForwardExpertHidden, kBackwardExpertHidden,
                                        item.T * m.hidden * env_.act_bytes));
    SOUP_ASSIGN_OR_RETURN(
        std::byte * sum, own(kForwardExpertSum, kBackwardExpertSum, item.T * m.hidden * kF32Bytes));
    r.sum = reinterpret_cast<float*>(sum);
    const RoutingBlock at = MakeRoutingBlock(m, item.T, env_.act_bytes);
    SOUP_ASSIGN_OR_RETURN(std::byte * block, own(kForwardRouting, kBackwardRouting, at.bytes));
    r.logits = reinterpret_cast<float*>(block + at.logits);
    r.d_logits = block + at.d_logits;
    r.experts = reinterpret_cast<int32_t*>(block + at.experts);
    r.weights = reinterpret_cast<float*>(block + at.weights);
    r.d_weights = reinterpret_cast<float*>(block + at.d_weights);
    r.lists = reinterpret_cast<int32_t*>(block + at.lists);
    r.counts = reinterpret_cast<int32_t*>(block + at.counts);
    r.host_counts.assign(static_cast<size_t>(m.experts.count), 0);
    r.first_row.assign(static_cast<size_t>(m.experts.count), 0);
  }
  SOUP_ASSIGN_OR_RETURN(rows_,
                        take(InBand(backward ? kBackwardExpertRows : kForwardExpertRows, band),
                             ExpertRows(tokens, env_.wt_bytes) * m.hidden * env_.act_bytes));
  return absl::OkStatus();
}

void SparseMlp::Norm(const PassItemState& item, const std::byte* x, const std::byte* weight,
                     std::byte* y) {
  kernels::RmsNormForwardArgs args;
  args.x = x;
  args.weight = reinterpret_cast<const uint16_t*>(weight);
  args.y = y;
  args.rstd = nullptr;
  args.T = item.T;
  args.H = env_.spec.hidden;
  args.eps = static_cast<float>(env_.spec.rms_eps);
  args.weight_offset = static_cast<float>(env_.spec.norm_offset);
  env_.backend->RmsNormForward(args);
}

// logits, chosen experts and their lists, of the rows before the bucket's tail.
void SparseMlp::RouteItem(const PassItemState& item, Routed& r, const GroupWeight& router) {
  const ExpertSpec& e = env_.spec.experts;
  const int64_t columns = RouterColumns(env_.spec), n = item.batch.tokens;
  GemmArgs g;  // logits [T, E] = h2 [T, H] Wr^T
  g.transpose_a = false;
  g.transpose_b = true;
  g.M = item.T;
  g.N = e.count;
  g.K = env_.spec.hidden;
  g.alpha = 1;
  g.beta = 0;
  g.A = r.hidden;
  g.lda = env_.spec.hidden;
  g.B = router.data;
  g.ldb = env_.spec.hidden;
  g.C = r.logits;
  g.ldc = columns;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kWt;
  g.c_type = Operand::kF32;
  env_.backend->Gemm(g);
  env_.backend->Route(
      {r.logits, r.experts, r.weights, n, e.count, columns, e.per_token, e.normalise});
  env_.backend->ListExperts({r.experts, r.lists, r.counts, n, e.count, e.per_token});
}

absl::Status SparseMlp::Route(int64_t layer, const std::byte* slab, const MiddleOf& middle) {
  const LayerLayout& layout = env_.layout(layer);
  const GroupWeight router =
      MakeBf16Weight(env_, slab + layout.experts.router_offset, env_.spec.experts.count,
                     env_.spec.hidden, weight_scratch_);
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!Takes(items_[i])) continue;
    Routed& r = routed_[i];
    Norm(items_[i], middle(items_[i]), slab + layout.post_attention_norm_offset, r.hidden);
    RouteItem(items_[i], r, router);
    SOUP_RETURN_IF_ERROR(env_.backend->CopyToHostAsync(
        r.host_counts.data(), r.counts,
        static_cast<int64_t>(r.host_counts.size() * sizeof(int32_t))));
  }
  Event counted = env_.backend->MakeEvent();
  SOUP_RETURN_IF_ERROR(env_.backend->Record(counted, env_.backend->compute_stream()));
  SOUP_RETURN_IF_ERROR(env_.backend->HostWait(counted, kCountsLimit));
  for (Routed& r : routed_) {
    int64_t row = 0;
    for (size_t e = 0; e < r.host_counts.size(); ++e) {
      r.first_row[e] = row;
      row += ExpertRows(r.host_counts[e], env_.wt_bytes);
    }
  }
  return absl::OkStatus();
}

void SparseMlp::ForEachShare(int64_t layer, const std::byte* slab, Group group, const ShareFn& fn) {
  if (!env_.backend->computes()) {
    // A dry run has no counts: it asks for every product that counts could lead to.
    const GroupWeight w = MakeExpertWeight(env_, layer, slab, 0, group, weight_scratch_);
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!Takes(items_[i])) continue;
      for (const int64_t rows : ExpertRowCounts(items_[i].T, env_.wt_bytes)) {
        fn({items_[i], routed_[i], routed_[i].lists, rows, rows, 0}, w);
      }
    }
    return;
  }
  for (int64_t e = 0; e < env_.spec.experts.count; ++e) {
    GroupWeight w;
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!Takes(items_[i])) continue;
      Routed& r = routed_[i];
      const int64_t count = r.host_counts[static_cast<size_t>(e)];
      if (count == 0) continue;
      if (w.data == nullptr) w = MakeExpertWeight(env_, layer, slab, e, group, weight_scratch_);
      fn({items_[i], r, r.lists + e * items_[i].batch.tokens, count,
          ExpertRows(count, env_.wt_bytes), r.first_row[static_cast<size_t>(e)]},
         w);
    }
  }
}

// Where a share's gate and up lie: with the item's kept ones, or in the scratch for a moment.
std::byte* SparseMlp::GateUp(const Share& s, std::byte* scratch) const {
  if (!s.item.kept.has_mlp()) return scratch;
  return At(s.item.kept.gate_up, s.first_row * 2 * env_.spec.experts.intermediate, env_.act_bytes);
}

void SparseMlp::Gather(const Share& s, const std::byte* x) {
  env_.backend->GatherEntries(
      {x, s.entries, rows_, s.count, s.rows, env_.spec.hidden, env_.spec.experts.per_token});
}
void SparseMlp::Scatter(const Share& s, const float* weights) {
  env_.backend->ScatterEntries({rows_, s.entries, weights, s.routed.sum, s.count, env_.spec.hidden,
                                env_.spec.experts.per_token});
}

absl::Status SparseMlp::Forward(int64_t layer, const std::byte* slab, const MiddleOf& middle,
                                const Scratch& scratch) {
  const int64_t inner = env_.spec.experts.intermediate, h = env_.spec.hidden, act = env_.act_bytes;
  SOUP_RETURN_IF_ERROR(Route(layer, slab, middle));
  ForEachShare(layer, slab, Group::kGateUp, [&](const Share& s, const GroupWeight& w) {
    std::byte* gate_up = GateUp(s, scratch.gate_up);
    Gather(s, s.routed.hidden);
    LinearForward(env_, rows_, s.rows, w, gate_up, 2 * inner, nullptr);
    env_.backend->SwigluForward(
        {gate_up, At(s.item.work, s.first_row * inner, act), s.rows, inner, GateOf(env_.spec)});
  });
  for (size_t i = 0; i < items_.size(); ++i) {
    env_.backend->FillZero(routed_[i].sum, items_[i].T * h * kF32Bytes);
  }
  ForEachShare(layer, slab, Group::kDown, [&](const Share& s, const GroupWeight& w) {
    LinearForward(env_, At(s.item.work, s.first_row * inner, act), s.rows, w, rows_, h, nullptr);
    Scatter(s, s.routed.weights);
  });
  for (size_t i = 0; i < items_.size(); ++i) {
    const PassItemState& item = items_[i];
    if (middle(item) != item.output) {
      env_.backend->CopyOnDevice(item.output, middle(item), item.T * h * act);
    }
    env_.backend->AddF32({routed_[i].sum, item.output, item.batch.tokens * h, true});
  }
  return absl::OkStatus();
}

absl::Status SparseMlp::Backward(int64_t layer, const std::byte* slab, const MiddleOf& middle,
                                 const Scratch& scratch) {
  const ModelSpec& m = env_.spec;
  const int64_t inner = m.experts.intermediate, act = env_.act_bytes;
  const kernels::GateActivation gate = GateOf(m);
  SOUP_RETURN_IF_ERROR(Route(layer, slab, middle));
  // d act, not yet times the weights
  ForEachShare(layer, slab, Group::kDown, [&](const Share& s, const GroupWeight& w) {
    Gather(s, s.item.grad);
    LinearBackward(env_, rows_, s.rows, w, At(s.item.back_work, s.first_row * inner, act));
  });
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].train) {
      env_.backend->FillZero(routed_[i].sum, items_[i].T * m.hidden * kF32Bytes);
    }
  }
  ForEachShare(layer, slab, Group::kGateUp, [&](const Share& s, const GroupWeight& w) {
    std::byte* gate_up = GateUp(s, scratch.gate_up);
    std::byte* d_act = At(s.item.back_work, s.first_row * inner, act);
    if (!s.item.kept.has_mlp()) {
      Gather(s, s.routed.hidden);
      LinearForward(env_, rows_, s.rows, w, gate_up, 2 * inner, nullptr);
    }
    env_.backend->EntryGrad(
        {gate_up, d_act, s.entries, s.routed.weights, s.routed.d_weights, s.count, inner, gate});
    env_.backend->SwigluBackward({gate_up, d_act, gate_up, s.rows, inner, gate});
    LinearBackward(env_, gate_up, s.rows, w, rows_);
    Scatter(s, nullptr);
  });
  const LayerLayout& layout = env_.layout(layer);
  const GroupWeight router = MakeBf16Weight(env_, slab + layout.experts.router_offset,
                                            m.experts.count, m.hidden, weight_scratch_);
  for (size_t i = 0; i < items_.size(); ++i) {
    const PassItemState& item = items_[i];
    if (!item.train) continue;
    RouterBackward(item, routed_[i], router, scratch.d_hidden);
    kernels::RmsNormBackwardArgs norm;
    norm.dy = scratch.d_hidden;
    norm.x = middle(item);
    norm.weight = reinterpret_cast<const uint16_t*>(slab + layout.post_attention_norm_offset);
    norm.rstd = nullptr;
    norm.dx = item.grad;
    norm.T = item.T;
    norm.H = m.hidden;
    norm.accumulate = true;
    norm.weight_offset = static_cast<float>(m.norm_offset);
    norm.eps = static_cast<float>(m.rms_eps);
    env_.backend->RmsNormBackward(norm);
  }
  return absl::OkStatus();
}

// d h2: what came through the experts, and through the router's weights.
void SparseMlp::RouterBackward(const PassItemState& item, Routed& r, const GroupWeight& router,
                               std::byte* d_hidden) {
  const ExpertSpec& e = env_.spec.experts;
  const int64_t columns = RouterColumns(env_.spec), n = item.batch.tokens, h = env_.spec.hidden;
  const int64_t act = env_.act_bytes, tail = item.T - n;
  env_.backend->AddF32({r.sum, d_hidden, n * h, false});
  if (tail > 0) {
    env_.backend->FillZero(At(d_hidden, n * h, act), tail * h * act);
    env_.backend->FillZero(At(r.d_logits, n * columns, act), tail * columns * act);
  }
  env_.backend->RouteBackward({r.logits, r.experts, r.weights, r.d_weights, r.d_logits, n, e.count,
                               columns, e.per_token, e.normalise});
  GemmArgs g;  // d h2 [T, H] += d logits [T, E] Wr
  g.transpose_a = false;
  g.transpose_b = false;
  g.M = item.T;
  g.N = h;
  g.K = e.count;
  g.alpha = 1;
  g.beta = 1;
  g.A = r.d_logits;
  g.lda = columns;
  g.B = router.data;
  g.ldb = h;
  g.C = d_hidden;
  g.ldc = h;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kWt;
  g.c_type = Operand::kAct;
  env_.backend->Gemm(g);
}

}  // namespace soup::engine
