#include "engine/model/slab_contents.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace soup::engine {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kFinalNorm[] = "model.norm.weight";
constexpr char kHead[] = "lm_head.weight";
constexpr int64_t kBf16Bytes = 2;

SlabTensor Plain(std::string name, std::vector<int64_t> shape, int64_t offset) {
  SlabTensor t;
  t.name = std::move(name);
  t.shape = std::move(shape);
  t.offset = offset;
  return t;
}

SlabTensor Linear(std::string name, const MatrixLayout& m) {
  SlabTensor t;
  t.name = std::move(name);
  t.shape = {m.rows, m.cols};
  t.is_linear = true;
  t.matrix = m;
  return t;
}

void AddNorms(const ModelSpec& spec, const std::string& prefix, const LayerLayout& layout,
              std::vector<SlabTensor>& out) {
  const auto add = [&](const char* name, int64_t size, int64_t offset) {
    if (offset >= 0) out.push_back(Plain(absl::StrCat(prefix, name, ".weight"), {size}, offset));
  };
  add("input_layernorm", spec.hidden, layout.input_norm_offset);
  // Families that norm outputs call the norm of the MLP's input otherwise.
  add(spec.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", spec.hidden,
      layout.post_attention_norm_offset);
  add("post_attention_layernorm", spec.hidden, layout.attention_out_norm_offset);
  add("post_feedforward_layernorm", spec.hidden, layout.mlp_out_norm_offset);
  add("self_attn.q_norm", spec.head_dim, layout.q_norm_offset);
  add("self_attn.k_norm", spec.head_dim, layout.k_norm_offset);
}

void AddExperts(const ModelSpec& spec, const std::string& prefix, const ExpertsLayout& experts,
                std::vector<SlabTensor>& out) {
  const ExpertSpec& names = spec.experts;
  out.push_back(Plain(absl::StrCat(prefix, names.block, ".gate.weight"),
                      {experts.count, spec.hidden}, experts.router_offset));
  for (int64_t e = 0; e < experts.count; ++e) {
    for (int part = 0; part < 3; ++part) {
      const char* name = part == 0 ? names.gate : part == 1 ? names.up : names.down;
      out.push_back(Linear(absl::StrCat(prefix, names.block, ".experts.", e, ".", name, ".weight"),
                           experts.matrix(e, part)));
    }
  }
}

std::vector<SlabTensor> LayerContents(const ModelSpec& spec, BaseFormat format, int64_t layer) {
  const LayerLayout layout = MakeLayerLayout(spec, format, layer);
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  std::vector<SlabTensor> out;
  AddNorms(spec, prefix, layout, out);
  for (const MatrixLayout& m : layout.matrices) {
    if (m.rows == 0) continue;
    out.push_back(Linear(WeightName(layer, m.module), m));
    const int64_t bias = layout.bias_offset[static_cast<int>(m.group)];
    if (bias < 0) continue;
    out.push_back(Plain(absl::StrCat(prefix, ModulePath(m.module), ".bias"), {m.rows},
                        bias + m.group_row * kBf16Bytes));
  }
  if (layout.experts.count > 0) AddExperts(spec, prefix, layout.experts, out);
  return out;
}

std::vector<SlabTensor> GlobalsContents(const ModelSpec& spec) {
  const GlobalsLayout layout = MakeGlobalsLayout(spec);
  std::vector<SlabTensor> out;
  out.push_back(Plain(kEmbedding, {spec.vocab, spec.hidden}, layout.embedding_offset));
  out.push_back(Plain(kFinalNorm, {spec.hidden}, layout.final_norm_offset));
  if (!spec.tied_head) out.push_back(Plain(kHead, {spec.vocab, spec.hidden}, layout.head_offset));
  return out;
}

}  // namespace

int64_t SlabCount(const ModelSpec& spec) { return spec.layers + 1; }

int64_t SlabBytes(const ModelSpec& spec, BaseFormat format, int64_t slab) {
  return slab < spec.layers ? MakeLayerLayout(spec, format).bytes : MakeGlobalsLayout(spec).bytes;
}

std::vector<SlabTensor> SlabContents(const ModelSpec& spec, BaseFormat format, int64_t slab) {
  return slab < spec.layers ? LayerContents(spec, format, slab) : GlobalsContents(spec);
}

bool IsDerivedTensor(const ModelSpec& spec, absl::string_view name) {
  if (spec.tied_head && name == kHead) return true;
  return absl::EndsWith(name, ".rotary_emb.inv_freq") ||
         absl::EndsWith(name, ".rotary_emb.cos_cached") ||
         absl::EndsWith(name, ".rotary_emb.sin_cached");
}

}  // namespace soup::engine
