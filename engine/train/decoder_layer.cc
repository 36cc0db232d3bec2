// Shared parts of the decoder layer, and its forward. Backward: decoder_layer_backward.cc.
#include "engine/train/decoder_layer.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/model/rope_table.h"
#include "engine/plan/expert_buffers.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {

namespace {

// As LowRankWidth of the plan: columns of the widest x A^T that is made at once.
int64_t LowRankWidthOf(const LoraOnDevice& lora) {
  int64_t most = 0;
  for (int g = 0; g < kGroups; ++g) {
    most = std::max<int64_t>(most, lora.site(0, static_cast<Group>(g)).linears.count);
  }
  return most * lora.columns();
}

}  // namespace

DecoderLayer::DecoderLayer(const PassEnv& env, std::vector<PassItemState>* items,
                           void* weight_scratch)
    : env_(env),
      items_(*items),
      weight_scratch_(weight_scratch),
      sparse_(env, items, weight_scratch) {
  for (const PassItemState& item : items_) {
    const int64_t r = LowRankWidthOf(*item.lora);
    largest_.tokens = std::max(largest_.tokens, item.T);
    if (!item.lora->turns && env.act_bytes == DTypeBytes(DType::kBF16)) {
      largest_.finish_tokens = std::max(largest_.finish_tokens, item.T);
      if (item.train) largest_.finish_train_tokens = std::max(largest_.finish_train_tokens, item.T);
    }
    if (!item.train) {
      largest_.score_tokens = std::max(largest_.score_tokens, item.T);
      largest_.score_rank = std::max(largest_.score_rank, r);
      continue;
    }
    const int64_t mlp_targets = item.lora->targets - item.lora->attention_targets;
    largest_.mlp_low_rank =
        std::max(largest_.mlp_low_rank, item.T * mlp_targets * item.lora->columns());
    largest_.train_tokens = std::max(largest_.train_tokens, item.T);
    largest_.train_rank = std::max(largest_.train_rank, r);
    largest_.attention_workspace = std::max(largest_.attention_workspace, item.attention_workspace);
    if (item.lora->adapts(Group::kDown)) {
      largest_.down_tokens = std::max(largest_.down_tokens, item.T);
    }
    if (item.lora->dropout == 0) continue;
    for (int g = 0; g < kGroups; ++g) {
      const int64_t in = item.lora->site(0, static_cast<Group>(g)).in;
      largest_.dropped = std::max(largest_.dropped, item.T * in);
    }
  }
}

absl::StatusOr<std::byte*> DecoderLayer::Take(std::vector<ArenaBuffer>& owners,
                                              absl::string_view name, int64_t elements,
                                              int64_t element_bytes) {
  if (elements == 0) return nullptr;
  SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer, env_.arena->Take(name, elements * element_bytes));
  owners.push_back(std::move(buffer));
  return owners.back().data();
}

absl::StatusOr<std::byte*> DecoderLayer::TakeShared(std::vector<ArenaBuffer>& owners,
                                                    absl::string_view name, int64_t elements,
                                                    int64_t element_bytes) {
  return Take(owners, InBand(name, band_index_), elements, element_bytes);
}

absl::StatusOr<std::byte*> DecoderLayer::TakeOwn(const PassItemState& item, absl::string_view name,
                                                 int64_t elements, int64_t element_bytes) {
  return Take(scratch_.owners, ItemBuffer(item.index, InBand(name, band_index_)), elements,
              element_bytes);
}

std::byte* DecoderLayer::LowRank(const PassItemState& item, Group g,
                                 const LayerActivations& a) const {
  std::byte* block = IsMlpGroup(g) ? a.mlp_low_rank : a.low_rank;
  return block == nullptr ? scratch_.low_rank : LowRankOf(env_, item, g, block);
}

absl::Status DecoderLayer::BeginForward(const LayerBand& band, int32_t index) {
  const ModelSpec& m = env_.spec;
  band_ = band;
  band_index_ = index;
  std::vector<ArenaBuffer>& owners = scratch_.owners;
  const int64_t act = env_.act_bytes;
  for (PassItemState& item : items_) {
    const bool kept = item.train && band.attention != Home::kRecompute;
    SOUP_ASSIGN_OR_RETURN(
        item.work, TakeOwn(item, kItemWork, WorkElements(m, item.T, !kept, env_.wt_bytes), act));
    item.middle = nullptr;
    if (kept || !HasMiddleOfItsOwn(m)) continue;
    SOUP_ASSIGN_OR_RETURN(item.middle, TakeOwn(item, kItemMiddle, item.T * m.hidden, act));
  }
  SOUP_ASSIGN_OR_RETURN(scratch_.hidden,
                        TakeShared(owners, kForwardHidden, largest_.tokens * m.hidden, act));
  const bool all_kept = band.attention != Home::kRecompute && band.mlp != Home::kRecompute;
  const int64_t rank =
      all_kept ? largest_.score_rank : std::max(largest_.score_rank, largest_.train_rank);
  const int64_t unkept = std::max(UnkeptTokens(band.attention), UnkeptTokens(band.mlp));
  SOUP_ASSIGN_OR_RETURN(scratch_.low_rank, TakeShared(owners, kForwardLowRank, unkept * rank, act));
  SOUP_ASSIGN_OR_RETURN(scratch_.lora.dropped,
                        TakeShared(owners, kForwardDropped, largest_.dropped, act));
  return sparse_.Begin(/*backward=*/false, index, owners);
}

void DecoderLayer::EndForward() {
  for (PassItemState& item : items_) item.work = item.middle = nullptr;
  scratch_ = Scratch();
}

absl::Status DecoderLayer::Forward(int64_t layer, const std::byte* slab,
                                   const SlabDone& slab_done) {
  SOUP_RETURN_IF_ERROR(ForwardAttention(layer, slab));
  return ForwardMlp(layer, slab, slab_done);
}

absl::Status DecoderLayer::ForwardAttention(int64_t layer, const std::byte* slab) {
  const ModelSpec& m = env_.spec;
  const int64_t unkept = UnkeptTokens(band_.attention);
  // Where an item that does not keep attention has its results for the length of the visit.
  const auto activations = [this, layer](const PassItemState& item) {
    LayerActivations a = item.kept;
    if (a.has_attention()) return a;
    a.attention = item.work;
    a.middle = UnkeptMiddle(item, layer);
    a.attention_out = scratch_.hidden;
    return a;
  };
  {
    std::vector<ArenaBuffer> owners;
    SOUP_ASSIGN_OR_RETURN(std::byte * qkv,
                          TakeShared(owners, kForwardQkvOut, unkept * m.qkv_row(), env_.act_bytes));
    SOUP_ASSIGN_OR_RETURN(std::byte * lse, TakeShared(owners, kForwardLse, unkept * m.heads, 4));
    SOUP_ASSIGN_OR_RETURN(
        std::byte * product,
        TakeShared(owners, kForwardQkvProduct, largest_.finish_tokens * m.qkv_width(), 4));
    scratch_.qkv_product = reinterpret_cast<float*>(product);
    const GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kQkv, weight_scratch_);
    for (const PassItemState& item : items_) {
      LayerActivations a = activations(item);
      if (!a.has_attention()) {
        a.qkv = qkv;
        a.lse = reinterpret_cast<float*>(lse);
      }
      Qkv(item, layer, slab, w, a);
    }
  }
  const GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kO, weight_scratch_);
  for (const PassItemState& item : items_) Output(item, layer, slab, w, activations(item));
  return absl::OkStatus();
}

absl::Status DecoderLayer::ForwardSparse(int64_t layer, const std::byte* slab,
                                         const SlabDone& slab_done) {
  std::vector<ArenaBuffer> owners;
  const int64_t elements = GateUpScratchElements(env_.spec, UnkeptTokens(band_.mlp), env_.wt_bytes);
  SparseMlp::Scratch scratch;
  SOUP_ASSIGN_OR_RETURN(scratch.gate_up,
                        TakeShared(owners, kForwardGateUpOut, elements, env_.act_bytes));
  const auto middle = [](const PassItemState& item) -> const std::byte* {
    return item.kept.has_attention() ? item.kept.middle : item.output;
  };
  SOUP_RETURN_IF_ERROR(sparse_.Forward(layer, slab, middle, scratch));
  return slab_done();
}

absl::Status DecoderLayer::ForwardMlp(int64_t layer, const std::byte* slab,
                                      const SlabDone& slab_done) {
  const ModelSpec& m = env_.spec;
  if (m.kind(layer).sparse) return ForwardSparse(layer, slab, slab_done);
  const auto activations = [this, layer](const PassItemState& item) {
    LayerActivations a = item.kept;
    if (!a.has_attention()) a.middle = UnkeptMiddle(item, layer);
    return a;
  };
  {
    std::vector<ArenaBuffer> owners;
    SOUP_ASSIGN_OR_RETURN(
        std::byte * gate_up,
        TakeShared(owners, kForwardGateUpOut,
                   GateUpScratchElements(m, UnkeptTokens(band_.mlp), env_.wt_bytes),
                   env_.act_bytes));
    const GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kGateUp, weight_scratch_);
    for (const PassItemState& item : items_) {
      LayerActivations a = activations(item);
      const bool kept = a.has_mlp();
      if (!kept) a.gate_up = gate_up;
      GateUp(item, layer, slab, w, a, item.work, /*wanted=*/kept);
    }
  }
  const GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kDown, weight_scratch_);
  // What follows may still read the slab's vectors.
  const bool last_read = w.data == weight_scratch_ && !m.post_norms && !m.mlp_bias;
  if (last_read) SOUP_RETURN_IF_ERROR(slab_done());
  for (const PassItemState& item : items_) Down(item, layer, slab, w, activations(item));
  return last_read ? absl::OkStatus() : slab_done();
}

void DecoderLayer::Norm(const PassItemState& item, const std::byte* x, const std::byte* weight) {
  kernels::RmsNormForwardArgs args;
  args.x = x;
  args.weight = reinterpret_cast<const uint16_t*>(weight);
  args.y = scratch_.hidden;
  args.rstd = nullptr;
  args.T = item.T;
  args.H = env_.spec.hidden;
  args.eps = static_cast<float>(env_.spec.rms_eps);
  args.weight_offset = static_cast<float>(env_.spec.norm_offset);
  env_.backend->RmsNormForward(args);
}

void DecoderLayer::OutputNorm(const PassItemState& item, const std::byte* x,
                              const std::byte* weight, std::byte* y) {
  kernels::RmsNormForwardArgs args;
  args.x = x;
  args.weight = reinterpret_cast<const uint16_t*>(weight);
  args.y = y;
  args.rstd = nullptr;
  args.T = item.T;
  args.H = env_.spec.hidden;
  args.eps = static_cast<float>(env_.spec.rms_eps);
  args.weight_offset = static_cast<float>(env_.spec.norm_offset);
  args.accumulate = true;
  env_.backend->RmsNormForward(args);
}

// Rows of the bucket's tail stay zero: no bias there.
void DecoderLayer::Bias(const PassItemState& item, int64_t layer, const std::byte* slab,
                        Group group, std::byte* y, int64_t ldy) {
  const int64_t offset = env_.layout(layer).bias_offset[static_cast<int>(group)];
  if (offset < 0) return;
  env_.backend->AddBias({y, reinterpret_cast<const uint16_t*>(slab + offset), item.batch.tokens,
                         MakeGroupShape(env_.spec, group).rows, ldy});
}

// The biases as the rows that a product is added to, in y itself. Null where the group has none.
const std::byte* DecoderLayer::BiasRows(const PassItemState& item, int64_t layer,
                                        const std::byte* slab, Group group, std::byte* y,
                                        int64_t ldy) {
  if (env_.layout(layer).bias_offset[static_cast<int>(group)] < 0) return nullptr;
  env_.backend->FillZero(y, item.T * ldy * env_.act_bytes);
  Bias(item, layer, slab, group, y, ldy);
  return y;
}

// Nothing where the table depends on a sequence's length.
kernels::HeadRope DecoderLayer::TableOf(const PassItemState& item, int64_t layer) const {
  kernels::HeadRope rope;
  if (RopeLengthLimit(env_.spec, layer) > 0) return rope;
  const RopeUse use = RopeFor(env_.spec, layer, 0);
  rope.positions = item.positions;
  rope.inv_freq = env_.inverse_frequencies + use.offset;
  rope.rotary = env_.spec.rotary();
  rope.scale = use.scale;
  return rope;
}

// Of families that norm heads: the norms' backward turns them back.
kernels::HeadRope DecoderLayer::HeadRopeOf(const PassItemState& item, int64_t layer) const {
  return env_.spec.qk_norm ? TableOf(item, layer) : kernels::HeadRope();
}

// Of rows [begin, end), in sequences of `length` tokens.
kernels::RopeArgs DecoderLayer::RopeRows(const PassItemState& item, int64_t layer, int64_t begin,
                                         int64_t end, int64_t length, std::byte* x,
                                         int64_t row_stride, bool inverse) const {
  const ModelSpec& m = env_.spec;
  const RopeUse use = RopeFor(m, layer, length);
  return {At(x, begin * row_stride, env_.act_bytes),
          item.positions + begin,
          env_.inverse_frequencies + use.offset,
          end - begin,
          m.heads + m.kv_heads,
          m.head_dim,
          row_stride,
          inverse,
          m.rotary(),
          use.scale};
}

// Where the norms of heads have not turned them already. Query and key heads lie side by side. One
// call, or, where the table depends on a sequence's length, one a run of sequences that share it.
void DecoderLayer::Rope(const PassItemState& item, int64_t layer, std::byte* x, int64_t row_stride,
                        bool inverse) {
  const ModelSpec& m = env_.spec;
  if (HeadRopeOf(item, layer).positions != nullptr) return;
  const auto rope = [&](int64_t begin, int64_t end, int64_t length) {
    env_.backend->Rope(RopeRows(item, layer, begin, end, length, x, row_stride, inverse));
  };
  const int64_t limit = RopeLengthLimit(m, layer);
  if (limit == 0) {
    rope(0, item.T, 0);
    return;
  }
  const std::vector<int32_t>& cu = item.batch.cu_seqlens;
  for (size_t first = 0, s = 0; s + 1 < cu.size(); ++s) {
    const int64_t length = cu[s + 1] - cu[s];
    const bool last = s + 2 == cu.size();
    if (!last && (cu[s + 2] - cu[s + 1] > limit) == (length > limit)) continue;
    rope(cu[first], cu[s + 1], length);
    first = s + 1;
  }
}

// q, k, v from their product alone: with biases, adapters, norms of heads and rope.
void DecoderLayer::FinishQkv(const PassItemState& item, int64_t layer, const std::byte* slab,
                             const LayerActivations& a, const float* product,
                             int64_t product_stride) {
  const ModelSpec& m = env_.spec;
  const LayerLayout& layout = env_.layout(layer);
  const auto vector = [slab](int64_t offset) {
    return reinterpret_cast<const uint16_t*>(slab + offset);
  };
  kernels::QkvFinishArgs args{};
  args.x = product;
  args.x_row_stride = product_stride;
  args.y = a.qkv;
  args.row_stride = m.qkv_row();
  args.T = item.T;
  args.Hq = m.heads;
  args.Hkv = m.kv_heads;
  args.D = m.head_dim;
  args.eps = static_cast<float>(m.rms_eps);
  args.weight_offset = static_cast<float>(m.norm_offset);
  args.rope = TableOf(item, layer);
  const int64_t bias = layout.bias_offset[static_cast<int>(Group::kQkv)];
  if (bias >= 0) args.bias = vector(bias);
  args.biased_rows = item.batch.tokens;  // the bucket's tail stays zero
  const LoraSite& site = item.lora->site(layer, Group::kQkv);
  args.linears = site.linears;
  args.u = LowRank(item, Group::kQkv, a);
  args.b = site.b;
  args.r = item.lora->r;
  args.lora_scale = item.lora->scale;
  if (m.qk_norm) {
    args.q_norm = vector(layout.q_norm_offset);
    args.k_norm = vector(layout.k_norm_offset);
    args.saved = At(a.qkv, m.qkv_width(), env_.act_bytes);
  }
  env_.backend->QkvFinish(args);
  if (args.rope.positions == nullptr) Rope(item, layer, a.qkv, m.qkv_row(), false);
}

// norm, q k v with bias and LoRA, norms of q and k, rope, attention. In bf16 a query or key is
// rounded as seldom as can be: gradients through softmax show it.
void DecoderLayer::Qkv(const PassItemState& item, int64_t layer, const std::byte* slab,
                       const GroupWeight& w, const LayerActivations& a) {
  const ModelSpec& m = env_.spec;
  const int64_t act = env_.act_bytes, row = m.qkv_row();
  Norm(item, item.input, slab + env_.layout(layer).input_norm_offset);
  std::byte* u = LowRank(item, Group::kQkv, a);
  LoraLowRank(env_, item, layer, Group::kQkv, scratch_.hidden, u, scratch_.lora);
  if (item.lora->turns) {
    env_.backend->TurnedProduct(
        {scratch_.hidden, w.data, w.rows, w.cols,
         LoraUpTurned(item, layer, Group::kQkv, u,
                      RopeRows(item, layer, 0, item.T, 0, a.qkv, row, /*inverse=*/false))});
    env_.progress->fetch_add(1, std::memory_order_relaxed);
  } else {
    const bool apart = act == DTypeBytes(DType::kBF16);
    float* product = apart ? scratch_.qkv_product : reinterpret_cast<float*>(a.qkv);
    const int64_t stride = apart ? m.qkv_width() : row;
    LinearForward(env_, scratch_.hidden, item.T, w, product, stride, nullptr,
                  kernels::Operand::kF32);
    FinishQkv(item, layer, slab, a, product, stride);
  }
  kernels::AttentionForwardArgs args;
  args.q = a.qkv;
  args.k = At(a.qkv, m.q_width(), act);
  args.v = At(a.qkv, m.q_width() + m.kv_width(), act);
  args.row_stride = row;
  args.out = a.attention;
  args.lse = a.lse;
  args.cu_seqlens = item.batch.cu_seqlens.data();
  args.S = item.sequences();
  args.T = item.T;
  args.Hq = m.heads;
  args.Hkv = m.kv_heads;
  args.D = m.head_dim;
  args.scale = static_cast<float>(m.attention_scale());
  args.window = m.kind(layer).window;
  args.soft_cap = static_cast<float>(m.attention_soft_cap);
  args.library.least_tokens = item.attention.forward.least;
  args.library.most_tokens = item.attention.forward.most;
  args.library.batched = item.attention.batched;
  env_.backend->AttentionForward(args);
}

// The product of o or down, its bias and adapters, and the residual unless that is null (a norm
// comes before it then). Nothing is added in place but what a kernel of ours adds: cuBLASLt rounds
// the product first there.
void DecoderLayer::IntoResidual(const ResidualProduct& p) {
  const int64_t h = env_.spec.hidden;
  const bool biased = env_.layout(p.layer).bias_offset[static_cast<int>(p.group)] >= 0;
  if (p.residual != nullptr && !biased && AdaptersWithinProduct(p.item, p.layer, p.group, p.w)) {
    const LoraSite& site = p.item.lora->site(p.layer, p.group);
    LoraLowRank(env_, p.item, p.layer, p.group, p.x, p.low_rank, scratch_.lora);
    env_.backend->AdaptedProduct({true, p.x, p.w.data, p.out, p.item.T, h, p.w.cols, p.low_rank,
                                  site.b, p.item.lora->r, p.item.lora->scale, p.residual});
    env_.progress->fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (p.residual != nullptr && LoraTakesResidual(env_, p.item, p.layer, p.group)) {
    LinearForward(env_, p.x, p.item.T, p.w, p.out, h, nullptr);
    Bias(p.item, p.layer, p.slab, p.group, p.out, h);
    LoraForwardOnResidual(env_, p.item, p.layer, p.group, p.x, p.low_rank, p.out, p.residual,
                          scratch_.lora);
    return;
  }
  if (p.residual == nullptr && p.item.lora->adapts(p.group)) {
    LoraForwardAlone(env_, p.item, p.layer, p.group, p.x, p.low_rank, p.free, scratch_.lora);
    LinearForward(env_, p.x, p.item.T, p.w, p.out, h, p.free);
    Bias(p.item, p.layer, p.slab, p.group, p.out, h);
    return;
  }
  LinearForward(env_, p.x, p.item.T, p.w, p.out, h, p.residual);
  Bias(p.item, p.layer, p.slab, p.group, p.out, h);
  LoraForward(env_, p.item, p.layer, p.group, p.x, p.low_rank, p.out, h, scratch_.lora);
}

// Whether the backend makes the product of a group and that of its adapters as one.
bool DecoderLayer::AdaptersWithinProduct(const PassItemState& item, int64_t layer, Group group,
                                         const GroupWeight& w) const {
  if (!item.lora->adapts(group) || env_.act_bytes != DTypeBytes(DType::kBF16)) return false;
  const int64_t rank = item.lora->site(layer, group).linears.count * item.lora->r;
  return item.lora->columns() == item.lora->r &&
         kernels::AdaptedProductTaken(env_.backend->fused_gate_rows(), item.T, w.rows, w.cols,
                                      rank);
}

// middle = x + attention Wo^T, normed first where the family does.
void DecoderLayer::Output(const PassItemState& item, int64_t layer, const std::byte* slab,
                          const GroupWeight& w, const LayerActivations& a) {
  const int64_t h = env_.spec.hidden;
  const bool normed = env_.spec.post_norms;
  std::byte* out = normed ? a.attention_out : a.middle;
  IntoResidual({item, layer, slab, Group::kO, w, a.attention, LowRank(item, Group::kO, a), out,
                normed ? nullptr : item.input, a.middle});
  if (!normed) return;
  env_.backend->CopyOnDevice(a.middle, item.input, item.T * h * env_.act_bytes);
  OutputNorm(item, out, slab + env_.layout(layer).attention_out_norm_offset, a.middle);
}

// norm, gate and up with bias and LoRA, then the gate into `act` unless that is null. `wanted`:
// gate and up are read again.
void DecoderLayer::GateUp(const PassItemState& item, int64_t layer, const std::byte* slab,
                          const GroupWeight& w, const LayerActivations& a, std::byte* act,
                          bool wanted) {
  const int64_t inner = env_.spec.intermediate, width = 2 * inner;
  Norm(item, a.middle, slab + env_.layout(layer).post_attention_norm_offset);
  if (!GatesWithinProduct(item, layer, Group::kGateUp)) {
    LinearForward(env_, scratch_.hidden, item.T, w, a.gate_up, width,
                  BiasRows(item, layer, slab, Group::kGateUp, a.gate_up, width));
    LoraForward(env_, item, layer, Group::kGateUp, scratch_.hidden,
                LowRank(item, Group::kGateUp, a), a.gate_up, width, scratch_.lora);
    if (act == nullptr) return;
    env_.backend->SwigluForward({a.gate_up, act, item.T, inner, GateOf(env_.spec)});
    return;
  }
  env_.backend->GateUp(
      {scratch_.hidden, w.data, a.gate_up, act, item.T, w.cols, inner, GateOf(env_.spec), wanted});
  env_.progress->fetch_add(1, std::memory_order_relaxed);
}

// Whether nothing stands between the product of gate and up, or of the gradient of down's input,
// and the gate.
bool DecoderLayer::GatesWithinProduct(const PassItemState& item, int64_t layer, Group group) const {
  const bool biased =
      group == Group::kGateUp && env_.layout(layer).bias_offset[static_cast<int>(group)] >= 0;
  return !biased && !item.lora->adapts(group);
}

// x' = middle + act Wd^T, act in item.work; normed first where the family does.
void DecoderLayer::Down(const PassItemState& item, int64_t layer, const std::byte* slab,
                        const GroupWeight& w, const LayerActivations& a) {
  const int64_t h = env_.spec.hidden;
  const bool normed = env_.spec.post_norms;
  std::byte* out = normed ? At(item.output, item.T * h, env_.act_bytes) : item.output;
  IntoResidual({item, layer, slab, Group::kDown, w, item.work, LowRank(item, Group::kDown, a), out,
                normed ? nullptr : a.middle, scratch_.hidden});
  if (!normed) return;
  if (a.middle != item.output) {
    env_.backend->CopyOnDevice(item.output, a.middle, item.T * h * env_.act_bytes);
  }
  OutputNorm(item, out, slab + env_.layout(layer).mlp_out_norm_offset, item.output);
}

}  // namespace soup::engine
