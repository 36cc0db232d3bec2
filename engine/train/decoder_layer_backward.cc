// Backward of the decoder layer; the order of the groups and why: decoder_layer.h.
#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/model/rope_table.h"
#include "engine/plan/expert_buffers.h"
#include "engine/plan/pass_buffers.h"
#include "engine/train/decoder_layer.h"

namespace soup::engine {

absl::Status DecoderLayer::BeginBackward(const LayerBand& band, int32_t index) {
  const ModelSpec& m = env_.spec;
  band_ = band;
  band_index_ = index;
  std::vector<ArenaBuffer>& owners = scratch_.owners;
  const int64_t act = env_.act_bytes, t = largest_.train_tokens;
  for (PassItemState& item : items_) {
    if (!item.train) continue;
    SOUP_ASSIGN_OR_RETURN(
        item.back_work,
        TakeOwn(item, kItemBackWork, WorkElements(m, item.T, true, env_.wt_bytes), act));
    if (band.attention != Home::kRecompute) continue;
    SOUP_ASSIGN_OR_RETURN(std::byte * again,
                          TakeOwn(item, kAgainAttention, AttentionBlockBytes(env_, item), 1));
    SetAttention(env_, item, again, &item.again);
  }
  SOUP_ASSIGN_OR_RETURN(scratch_.hidden, TakeShared(owners, kBackwardHidden, t * m.hidden, act));
  SOUP_ASSIGN_OR_RETURN(scratch_.d_hidden, TakeShared(owners, kBackwardDHidden, t * m.hidden, act));
  SOUP_ASSIGN_OR_RETURN(scratch_.lora.d_low_rank,
                        TakeShared(owners, kBackwardDLowRank, t * largest_.train_rank, act));
  SOUP_ASSIGN_OR_RETURN(scratch_.lora.dropped,
                        TakeShared(owners, kBackwardDropped, largest_.dropped, act));
  SOUP_ASSIGN_OR_RETURN(scratch_.lora.d_dropped,
                        TakeShared(owners, kBackwardDDropped, largest_.dropped, act));
  return sparse_.Begin(/*backward=*/true, index, owners);
}

void DecoderLayer::EndBackward() {
  for (PassItemState& item : items_) {
    item.back_work = nullptr;
    item.again = LayerActivations();
  }
  scratch_ = Scratch();
}

absl::Status DecoderLayer::Backward(int64_t layer, const std::byte* slab,
                                    const SlabDone& slab_done) {
  SOUP_RETURN_IF_ERROR(RecomputeAttention(layer, slab));
  SOUP_RETURN_IF_ERROR(BackwardMlp(layer, slab));
  SOUP_RETURN_IF_ERROR(BackwardAttention(layer, slab));
  return slab_done();
}

// q k v, attention and the middle of the items that have not kept them.
absl::Status DecoderLayer::RecomputeAttention(int64_t layer, const std::byte* slab) {
  const auto again = [](const PassItemState& item) {
    return item.train && !item.kept.has_attention();
  };
  if (std::none_of(items_.begin(), items_.end(), again)) return absl::OkStatus();
  std::vector<ArenaBuffer> owners;
  SOUP_ASSIGN_OR_RETURN(std::byte * product,
                        TakeShared(owners, kBackwardQkvProduct,
                                   largest_.finish_train_tokens * env_.spec.qkv_width(), 4));
  scratch_.qkv_product = reinterpret_cast<float*>(product);
  GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kQkv, weight_scratch_);
  for (const PassItemState& item : items_) {
    if (again(item)) Qkv(item, layer, slab, w, item.again);
  }
  w = MakeGroupWeight(env_, layer, slab, Group::kO, weight_scratch_);
  for (const PassItemState& item : items_) {
    if (again(item)) Output(item, layer, slab, w, item.again);
  }
  return absl::OkStatus();
}

absl::Status DecoderLayer::BackwardSparse(int64_t layer, const std::byte* slab) {
  std::vector<ArenaBuffer> owners;
  SparseMlp::Scratch scratch;
  scratch.d_hidden = scratch_.d_hidden;
  if (band_.mlp == Home::kRecompute) {
    const int64_t elements = GateUpScratchElements(env_.spec, largest_.train_tokens, env_.wt_bytes);
    SOUP_ASSIGN_OR_RETURN(scratch.gate_up,
                          TakeShared(owners, kBackwardGateUpIn, elements, env_.act_bytes));
  }
  const auto middle = [](const PassItemState& item) -> const std::byte* {
    return BackwardActivations(item).middle;
  };
  return sparse_.Backward(layer, slab, middle, scratch);
}

absl::Status DecoderLayer::BackwardMlp(int64_t layer, const std::byte* slab) {
  const ModelSpec& m = env_.spec;
  if (m.kind(layer).sparse) return BackwardSparse(layer, slab);
  GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kDown, weight_scratch_);
  const std::byte* out_norm = slab + env_.layout(layer).mlp_out_norm_offset;
  for (const PassItemState& item : items_) {
    if (!item.train) continue;
    if (m.post_norms) OutputNormBackward(item, item.mlp_out, out_norm, scratch_.d_hidden);
    // Into d gate and d up where gate and up are at hand, else into d act.
    kernels::DownBackwardArgs args{};
    args.dy = m.post_norms ? scratch_.d_hidden : item.grad;
    args.w = w.data;
    args.d_act = item.back_work;
    if (BackThroughGate(item, layer)) args.gate_up = BackwardActivations(item).gate_up;
    args.T = item.T;
    args.H = w.rows;
    args.I = w.cols;
    args.gate = GateOf(m);
    env_.backend->DownBackward(args);
    env_.progress->fetch_add(1, std::memory_order_relaxed);
  }
  std::vector<ArenaBuffer> owners;
  LayerActivations mlp_again;
  if (band_.mlp == Home::kRecompute) {
    SOUP_ASSIGN_OR_RETURN(
        mlp_again.gate_up,
        TakeShared(owners, kBackwardGateUpIn,
                   GateUpScratchElements(m, largest_.train_tokens, env_.wt_bytes), env_.act_bytes));
    SOUP_ASSIGN_OR_RETURN(
        mlp_again.mlp_low_rank,
        TakeShared(owners, kBackwardMlpLowRank, largest_.mlp_low_rank, env_.act_bytes));
  }
  SOUP_ASSIGN_OR_RETURN(
      std::byte * act,
      TakeShared(owners, kBackwardAct, largest_.down_tokens * m.intermediate, env_.act_bytes));
  w = MakeGroupWeight(env_, layer, slab, Group::kGateUp, weight_scratch_);
  for (const PassItemState& item : items_) {
    if (item.train) BackwardGateUp(item, layer, slab, w, mlp_again, act);
  }
  return absl::OkStatus();
}

// Whether down's product goes on through the gate: nothing stands between, and what the forward has
// made of gate and up is kept.
bool DecoderLayer::BackThroughGate(const PassItemState& item, int64_t layer) const {
  return BackwardActivations(item).has_mlp() && GatesWithinProduct(item, layer, Group::kDown);
}

// From d act in item.back_work, or d gate and d up, to the gradient of the middle in item.grad.
void DecoderLayer::BackwardGateUp(const PassItemState& item, int64_t layer, const std::byte* slab,
                                  const GroupWeight& w, const LayerActivations& mlp_again,
                                  std::byte* act) {
  const int64_t inner = env_.spec.intermediate, h = env_.spec.hidden;
  LayerActivations a = BackwardActivations(item);
  const bool kept = a.has_mlp(), adapts_down = item.lora->adapts(Group::kDown);
  const LayerLayout& layout = env_.layout(layer);
  const std::byte* norm = slab + layout.post_attention_norm_offset;
  const kernels::GateActivation gate = GateOf(env_.spec);
  if (!kept) {
    a.gate_up = mlp_again.gate_up;
    a.mlp_low_rank = mlp_again.mlp_low_rank;
    GateUp(item, layer, slab, w, a, adapts_down ? act : nullptr, /*wanted=*/true);
  }
  if (adapts_down) {
    std::byte* u = LowRank(item, Group::kDown, a);
    if (kept) env_.backend->SwigluForward({a.gate_up, act, item.T, inner, gate});
    if (!kept) LoraLowRank(env_, item, layer, Group::kDown, act, u, scratch_.lora);
    const bool normed = env_.spec.post_norms;
    if (normed) {
      OutputNormBackward(item, item.mlp_out, slab + layout.mlp_out_norm_offset, scratch_.d_hidden);
    }
    LoraBackward(env_, item, layer, Group::kDown, normed ? scratch_.d_hidden : item.grad, h, act, u,
                 item.back_work, scratch_.lora);
  }
  if (!BackThroughGate(item, layer)) {
    env_.backend->SwigluBackward({a.gate_up, item.back_work, a.gate_up, item.T, inner, gate});
  }
  NormedGroupBackward(item, layer, Group::kGateUp, a.gate_up, 2 * inner,
                      LowRank(item, Group::kGateUp, a), w, a.middle, norm, /*input=*/true);
}

// dx = dy W + drop(du A), du as LoraBackwardUp has left it. Adapters first, unless dropout stands
// between, and the product on top: the sum is rounded once, and theirs is only written.
void DecoderLayer::InputGradient(const PassItemState& item, int64_t layer, Group group,
                                 const std::byte* dy, const GroupWeight& w, std::byte* dx) {
  if (AdaptersWithinProduct(item, layer, group, w) && !LoraDrops(item)) {
    const LoraSite& site = item.lora->site(layer, group);
    env_.backend->AdaptedProduct({false, dy, w.data, dx, item.T, w.cols, w.rows,
                                  scratch_.lora.d_low_rank, site.a,
                                  site.linears.count * item.lora->r});
    env_.progress->fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const bool first = item.lora->adapts(group) && !LoraDrops(item);
  if (first) LoraBackwardInput(env_, item, layer, group, /*accumulate=*/false, dx, scratch_.lora);
  LinearBackward(env_, dy, item.T, w, dx, /*accumulate=*/first);
  if (!first) LoraBackwardInput(env_, item, layer, group, /*accumulate=*/true, dx, scratch_.lora);
}

// The backward of a group whose input is norm(x): its adapters' gradients, and the gradient of x
// added to item.grad unless nobody wants it (`input` false). dA norms x on its way, by the rstd
// that the norm's backward tells; dropout and layer 0 have the norm's output made again.
void DecoderLayer::NormedGroupBackward(const PassItemState& item, int64_t layer, Group group,
                                       const std::byte* dy, int64_t ldy, const std::byte* u,
                                       const GroupWeight& w, const std::byte* x,
                                       const std::byte* norm, bool input) {
  const bool adapts = item.lora->adapts(group);
  const bool on_its_way = adapts && input && !LoraDrops(item);
  LoraBackwardUp(env_, item, layer, group, dy, ldy, u, scratch_.lora);
  if (adapts && !on_its_way) {
    Norm(item, x, norm);
    LoraBackwardDown(env_, item, layer, group, scratch_.hidden, scratch_.lora);
  }
  if (!input) return;
  InputGradient(item, layer, group, dy, w, scratch_.d_hidden);
  float* rstd = on_its_way ? reinterpret_cast<float*>(scratch_.hidden) : nullptr;
  NormBackward(item, x, norm, rstd);
  if (!on_its_way) return;
  LoraBackwardDown(env_, item, layer, group, LoraNorm{x, norm, scratch_.hidden}, rstd,
                   scratch_.lora);
}

absl::Status DecoderLayer::BackwardAttention(int64_t layer, const std::byte* slab) {
  const ModelSpec& m = env_.spec;
  GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kO, weight_scratch_);
  for (const PassItemState& item : items_) {
    if (item.train) BackwardOutput(item, layer, slab, w, BackwardActivations(item));
  }
  std::vector<ArenaBuffer> owners;
  const bool act_is_bf16 = env_.act_bytes == DTypeBytes(DType::kBF16);
  SOUP_ASSIGN_OR_RETURN(
      std::byte * d_qkv,
      TakeShared(owners, kBackwardDQkv, largest_.train_tokens * m.qkv_width(), env_.act_bytes));
  SOUP_ASSIGN_OR_RETURN(std::byte * delta,
                        TakeShared(owners, kBackwardDelta, largest_.train_tokens * m.heads, 4));
  scratch_.partials = nullptr;
  if (act_is_bf16 && m.heads != m.kv_heads) {
    SOUP_ASSIGN_OR_RETURN(
        std::byte * partials,
        TakeShared(owners, kBackwardPartials,
                   AttentionPartialsPlanned(largest_.train_tokens, m.heads, m.kv_heads, m.head_dim),
                   1));
    scratch_.partials = reinterpret_cast<float*>(partials);
  }
  SOUP_ASSIGN_OR_RETURN(scratch_.attention_library, TakeShared(owners, kBackwardAttentionLibrary,
                                                               largest_.attention_workspace, 1));
  // Layer 0's input is the embedding, which is frozen: its gradient is not made.
  if (layer > 0) w = MakeGroupWeight(env_, layer, slab, Group::kQkv, weight_scratch_);
  for (const PassItemState& item : items_) {
    if (item.train) {
      BackwardQkv(item, layer, slab, w, BackwardActivations(item), d_qkv,
                  reinterpret_cast<float*>(delta));
    }
  }
  return absl::OkStatus();
}

// d attention into item.back_work.
void DecoderLayer::BackwardOutput(const PassItemState& item, int64_t layer, const std::byte* slab,
                                  const GroupWeight& w, const LayerActivations& a) {
  const std::byte* dy = item.grad;
  if (env_.spec.post_norms) {
    OutputNormBackward(item, a.attention_out, slab + env_.layout(layer).attention_out_norm_offset,
                       scratch_.d_hidden);
    dy = scratch_.d_hidden;
  }
  LoraBackwardUp(env_, item, layer, Group::kO, dy, env_.spec.hidden, LowRank(item, Group::kO, a),
                 scratch_.lora);
  LoraBackwardDown(env_, item, layer, Group::kO, a.attention, scratch_.lora);
  InputGradient(item, layer, Group::kO, dy, w, item.back_work);
}

void DecoderLayer::HeadNormsBackward(const PassItemState& item, int64_t layer,
                                     const std::byte* slab, const LayerActivations& a,
                                     std::byte* d_qkv) {
  const ModelSpec& m = env_.spec;
  if (!m.qk_norm) return;
  const LayerLayout& layout = env_.layout(layer);
  kernels::HeadNormBackwardArgs args;
  args.T = item.T;
  args.D = m.head_dim;
  args.row_stride = m.qkv_row();
  args.grad_row_stride = m.qkv_width();
  args.eps = static_cast<float>(m.rms_eps);
  args.weight_offset = static_cast<float>(m.norm_offset);
  args.rope = HeadRopeOf(item, layer);
  args.dx = d_qkv;
  args.x = At(a.qkv, m.qkv_width(), env_.act_bytes);
  args.weight = reinterpret_cast<const uint16_t*>(slab + layout.q_norm_offset);
  args.heads = m.heads;
  env_.backend->HeadNormBackward(args);
  args.dx = At(d_qkv, m.q_width(), env_.act_bytes);
  args.x = At(a.qkv, m.qkv_width() + m.q_width(), env_.act_bytes);
  args.weight = reinterpret_cast<const uint16_t*>(slab + layout.k_norm_offset);
  args.heads = m.kv_heads;
  env_.backend->HeadNormBackward(args);
}

// From d attention in item.back_work to the gradient of the layer's input in item.grad.
void DecoderLayer::BackwardQkv(const PassItemState& item, int64_t layer, const std::byte* slab,
                               const GroupWeight& w, const LayerActivations& a, std::byte* d_qkv,
                               float* delta) {
  const ModelSpec& m = env_.spec;
  const int64_t act = env_.act_bytes, nq = m.qkv_width();
  const int64_t k_column = m.q_width(), v_column = m.q_width() + m.kv_width();
  kernels::AttentionBackwardArgs args;
  args.q = a.qkv;
  args.k = At(a.qkv, k_column, act);
  args.v = At(a.qkv, v_column, act);
  args.row_stride = m.qkv_row();
  args.out = a.attention;
  args.dout = item.back_work;
  args.lse = a.lse;
  args.delta = delta;
  args.dq = d_qkv;
  args.dk = At(d_qkv, k_column, act);
  args.dv = At(d_qkv, v_column, act);
  args.grad_row_stride = nq;
  args.cu_seqlens = item.batch.cu_seqlens.data();
  args.S = item.sequences();
  args.T = item.T;
  args.Hq = m.heads;
  args.Hkv = m.kv_heads;
  args.D = m.head_dim;
  args.scale = static_cast<float>(m.attention_scale());
  args.window = m.kind(layer).window;
  args.soft_cap = static_cast<float>(m.attention_soft_cap);
  AttentionScratch scratch;
  scratch.partials = scratch_.partials;
  if (scratch.partials != nullptr) {
    scratch.most_split = AttentionSplitPlanned(item.T, m.heads, m.kv_heads);
  }
  args.library.least_tokens = item.attention.backward.least;
  args.library.most_tokens = item.attention.backward.most;
  args.library.batched = item.attention.batched;
  args.library.workspace_limit = item.attention.workspace_limit;
  args.library.workspace = scratch_.attention_library;
  args.library.workspace_bytes = item.attention_workspace;
  if (RopeLengthLimit(m, layer) == 0 && HeadRopeOf(item, layer).positions == nullptr) {
    env_.backend->AttentionBackwardTurned(
        args, scratch, RopeRows(item, layer, 0, item.T, 0, d_qkv, nq, /*inverse=*/true));
  } else {
    env_.backend->AttentionBackward(args, scratch);
    Rope(item, layer, d_qkv, nq, true);
  }
  HeadNormsBackward(item, layer, slab, a, d_qkv);

  NormedGroupBackward(item, layer, Group::kQkv, d_qkv, nq, LowRank(item, Group::kQkv, a), w,
                      item.input, slab + env_.layout(layer).input_norm_offset,
                      /*input=*/layer > 0);
}

// grad += the norm's backward of scratch_.d_hidden, at input x.
void DecoderLayer::NormBackward(const PassItemState& item, const std::byte* x,
                                const std::byte* weight, float* rstd) {
  kernels::RmsNormBackwardArgs args;
  args.dy = scratch_.d_hidden;
  args.x = x;
  args.weight = reinterpret_cast<const uint16_t*>(weight);
  args.rstd = nullptr;
  args.rstd_out = rstd;
  args.dx = item.grad;
  args.T = item.T;
  args.H = env_.spec.hidden;
  args.accumulate = true;
  args.weight_offset = static_cast<float>(env_.spec.norm_offset);
  args.eps = static_cast<float>(env_.spec.rms_eps);
  env_.backend->RmsNormBackward(args);
}

void DecoderLayer::OutputNormBackward(const PassItemState& item, const std::byte* x,
                                      const std::byte* weight, std::byte* dx) {
  kernels::RmsNormBackwardArgs args;
  args.dy = item.grad;
  args.x = x;
  args.weight = reinterpret_cast<const uint16_t*>(weight);
  args.rstd = nullptr;
  args.dx = dx;
  args.T = item.T;
  args.H = env_.spec.hidden;
  args.accumulate = false;
  args.weight_offset = static_cast<float>(env_.spec.norm_offset);
  args.eps = static_cast<float>(env_.spec.rms_eps);
  env_.backend->RmsNormBackward(args);
}

}  // namespace soup::engine
