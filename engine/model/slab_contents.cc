#include "engine/model/slab_contents.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace soup::engine {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kFinalNorm[] = "model.norm.weight";
constexpr char kHead[] = "lm_head.weight";

SlabTensor Plain(std::string name, std::vector<int64_t> shape, int64_t offset) {
  SlabTensor t;
  t.name = std::move(name);
  t.shape = std::move(shape);
  t.offset = offset;
  return t;
}

std::vector<SlabTensor> LayerContents(const ModelSpec& spec, BaseFormat format, int64_t layer) {
  const LayerLayout layout = MakeLayerLayout(spec, format);
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  std::vector<SlabTensor> out;
  out.push_back(Plain(absl::StrCat(prefix, "input_layernorm.weight"), {spec.hidden},
                      layout.input_norm_offset));
  out.push_back(Plain(absl::StrCat(prefix, "post_attention_layernorm.weight"), {spec.hidden},
                      layout.post_attention_norm_offset));
  for (const MatrixLayout& m : layout.matrices) {
    SlabTensor t;
    t.name = WeightName(layer, m.module);
    t.shape = {m.rows, m.cols};
    t.is_linear = true;
    t.matrix = m;
    out.push_back(std::move(t));
  }
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
