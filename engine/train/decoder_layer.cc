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

// Columns that adapters of a group write.
int64_t Width(const kernels::LoraLinears& linears) {
  int64_t width = 0;
  for (int32_t i = 0; i < linears.count; ++i) width += linears.width[i];
  return width;
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
  for (PassItemState& item : items_) item.work = nullptr;
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
  const auto activations = [this](const PassItemState& item) {
    LayerActivations a = item.kept;
    if (a.has_attention()) return a;
    a.attention = item.work;
    a.middle = item.output;
    a.attention_out = scratch_.hidden;
    return a;
  };
  {
    std::vector<ArenaBuffer> owners;
    SOUP_ASSIGN_OR_RETURN(std::byte * qkv,
                          TakeShared(owners, kForwardQkvOut, unkept * m.qkv_row(), env_.act_bytes));
    SOUP_ASSIGN_OR_RETURN(std::byte * lse, TakeShared(owners, kForwardLse, unkept * m.heads, 4));
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
  const auto activations = [](const PassItemState& item) {
    LayerActivations a = item.kept;
    if (!a.has_attention()) a.middle = item.output;
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
      if (!a.has_mlp()) a.gate_up = gate_up;
      // What the down projection adds to, where the middle itself stays.
      std::byte* copy = !m.post_norms && a.middle != item.output ? item.output : nullptr;
      GateUp(item, layer, slab, w, a, copy);
      env_.backend->SwigluForward(
          {a.gate_up, item.work, item.T, m.intermediate, GateOf(env_.spec)});
    }
  }
  const GroupWeight w = MakeGroupWeight(env_, layer, slab, Group::kDown, weight_scratch_);
  // What follows may still read the slab's vectors.
  const bool last_read = w.data == weight_scratch_ && !m.post_norms && !m.mlp_bias;
  if (last_read) SOUP_RETURN_IF_ERROR(slab_done());
  for (const PassItemState& item : items_) Down(item, layer, slab, w, activations(item));
  return last_read ? absl::OkStatus() : slab_done();
}

void DecoderLayer::Norm(const PassItemState& item, const std::byte* x, const std::byte* weight,
                        std::byte* copy) {
  kernels::RmsNormForwardArgs args;
  args.x = x;
  args.weight = reinterpret_cast<const uint16_t*>(weight);
  args.y = scratch_.hidden;
  args.copy = copy;
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

void DecoderLayer::HeadNorms(const PassItemState& item, int64_t layer, const std::byte* slab,
                             const LayerActivations& a) {
  const ModelSpec& m = env_.spec;
  if (!m.qk_norm) return;
  const LayerLayout& layout = env_.layout(layer);
  kernels::HeadNormForwardArgs args;
  args.T = item.T;
  args.D = m.head_dim;
  args.row_stride = m.qkv_row();
  args.eps = static_cast<float>(m.rms_eps);
  args.weight_offset = static_cast<float>(m.norm_offset);
  args.rope = HeadRopeOf(item, layer);
  args.x = a.qkv;
  args.saved = At(a.qkv, m.qkv_width(), env_.act_bytes);
  args.weight = reinterpret_cast<const uint16_t*>(slab + layout.q_norm_offset);
  args.heads = m.heads;
  env_.backend->HeadNormForward(args);
  args.x = At(a.qkv, m.q_width(), env_.act_bytes);
  args.saved = At(a.qkv, m.qkv_width() + m.q_width(), env_.act_bytes);
  args.weight = reinterpret_cast<const uint16_t*>(slab + layout.k_norm_offset);
  args.heads = m.kv_heads;
  env_.backend->HeadNormForward(args);
}

// The biases as the rows that a product is added to, in y itself: the sum is rounded once. Null
// where the group has none.
const std::byte* DecoderLayer::BiasRows(const PassItemState& item, int64_t layer,
                                        const std::byte* slab, Group group, std::byte* y,
                                        int64_t ldy) {
  if (env_.layout(layer).bias_offset[static_cast<int>(group)] < 0) return nullptr;
  env_.backend->FillZero(y, item.T * ldy * env_.act_bytes);
  Bias(item, layer, slab, group, y, ldy);
  return y;
}

// Of families that norm heads; nothing where a table depends on a sequence's length.
kernels::HeadRope DecoderLayer::HeadRopeOf(const PassItemState& item, int64_t layer) const {
  kernels::HeadRope rope;
  if (!env_.spec.qk_norm || RopeLengthLimit(env_.spec, layer) > 0) return rope;
  const RopeUse use = RopeFor(env_.spec, layer, 0);
  rope.positions = item.positions;
  rope.inv_freq = env_.inverse_frequencies + use.offset;
  rope.rotary = env_.spec.rotary();
  rope.scale = use.scale;
  return rope;
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

// Whether the adapters of q, k, v are added in rope's pass: not where a norm stands between, nor
// where the table depends on a sequence's length.
bool DecoderLayer::AdaptersTurn(const PassItemState& item, int64_t layer) const {
  return item.lora->adapts(Group::kQkv) && !env_.spec.qk_norm &&
         RopeLengthLimit(env_.spec, layer) == 0;
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

// q, k, v on top of `rows` (the biases, or null) and of the adapters: in bf16 a query or key is
// rounded once at its own size, and gradients through softmax show it.
void DecoderLayer::QkvProducts(const PassItemState& item, int64_t layer, const GroupWeight& w,
                               const LayerActivations& a, const std::byte* rows) {
  const int64_t row = env_.spec.qkv_row();
  const bool added = item.lora->adapts(Group::kQkv);
  // Adapters of q, k and v write every column that the product adds to.
  const bool covered = Width(item.lora->site(layer, Group::kQkv).linears) == env_.spec.qkv_width();
  if (added && rows == nullptr && !covered) {
    env_.backend->FillZero(a.qkv, item.T * row * env_.act_bytes);
  }
  LoraForward(env_, item, layer, Group::kQkv, scratch_.hidden, LowRank(item, Group::kQkv, a), a.qkv,
              row, /*accumulate=*/rows != nullptr || !covered, scratch_.lora);
  LinearForward(env_, scratch_.hidden, item.T, w, a.qkv, row, added ? a.qkv : rows);
}

// norm, q k v with bias and LoRA, norms of q and k, rope, attention.
void DecoderLayer::Qkv(const PassItemState& item, int64_t layer, const std::byte* slab,
                       const GroupWeight& w, const LayerActivations& a) {
  const ModelSpec& m = env_.spec;
  const int64_t act = env_.act_bytes, row = m.qkv_row();
  Norm(item, item.input, slab + env_.layout(layer).input_norm_offset);
  const std::byte* rows = BiasRows(item, layer, slab, Group::kQkv, a.qkv, row);
  if (AdaptersTurn(item, layer)) {
    std::byte* u = LowRank(item, Group::kQkv, a);
    LoraLowRank(env_, item, layer, Group::kQkv, scratch_.hidden, u, scratch_.lora);
    LinearForward(env_, scratch_.hidden, item.T, w, a.qkv, row, rows);
    LoraUpTurned(env_, item, layer, Group::kQkv, u,
                 RopeRows(item, layer, 0, item.T, 0, a.qkv, row, /*inverse=*/false));
  } else {
    QkvProducts(item, layer, w, a, rows);
    HeadNorms(item, layer, slab, a);
    Rope(item, layer, a.qkv, row, false);
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

// middle = x + attention Wo^T, normed first where the family does.
void DecoderLayer::Output(const PassItemState& item, int64_t layer, const std::byte* slab,
                          const GroupWeight& w, const LayerActivations& a) {
  const int64_t h = env_.spec.hidden;
  const bool normed = env_.spec.post_norms;
  std::byte* out = normed ? a.attention_out : a.middle;
  LinearForward(env_, a.attention, item.T, w, out, h, normed ? nullptr : item.input);
  Bias(item, layer, slab, Group::kO, out, h);
  LoraForward(env_, item, layer, Group::kO, a.attention, LowRank(item, Group::kO, a), out, h,
              /*accumulate=*/true, scratch_.lora);
  if (!normed) return;
  env_.backend->CopyOnDevice(a.middle, item.input, item.T * h * env_.act_bytes);
  OutputNorm(item, out, slab + env_.layout(layer).attention_out_norm_offset, a.middle);
}

// norm, gate and up with bias and LoRA. middle_copy, unless null: gets the middle too.
void DecoderLayer::GateUp(const PassItemState& item, int64_t layer, const std::byte* slab,
                          const GroupWeight& w, const LayerActivations& a, std::byte* middle_copy) {
  const int64_t width = 2 * env_.spec.intermediate;
  Norm(item, a.middle, slab + env_.layout(layer).post_attention_norm_offset, middle_copy);
  LinearForward(env_, scratch_.hidden, item.T, w, a.gate_up, width,
                BiasRows(item, layer, slab, Group::kGateUp, a.gate_up, width));
  LoraForward(env_, item, layer, Group::kGateUp, scratch_.hidden, LowRank(item, Group::kGateUp, a),
              a.gate_up, width, /*accumulate=*/true, scratch_.lora);
}

// x' = middle + act Wd^T, act in item.work; normed first where the family does.
void DecoderLayer::Down(const PassItemState& item, int64_t layer, const std::byte* slab,
                        const GroupWeight& w, const LayerActivations& a) {
  const int64_t h = env_.spec.hidden;
  const bool normed = env_.spec.post_norms;
  std::byte* out = normed ? At(item.output, item.T * h, env_.act_bytes) : item.output;
  // The sum is made in place whether the middle is kept (the norm before gate and up has copied it
  // then) or not: cuBLASLt rounds otherwise where the residual lies apart, and the placement must
  // not decide bits.
  LinearForward(env_, item.work, item.T, w, out, h, normed ? nullptr : out);
  Bias(item, layer, slab, Group::kDown, out, h);
  LoraForward(env_, item, layer, Group::kDown, item.work, LowRank(item, Group::kDown, a), out, h,
              /*accumulate=*/true, scratch_.lora);
  if (!normed) return;
  if (a.middle != item.output) {
    env_.backend->CopyOnDevice(item.output, a.middle, item.T * h * env_.act_bytes);
  }
  OutputNorm(item, out, slab + env_.layout(layer).mlp_out_norm_offset, item.output);
}

}  // namespace soup::engine
