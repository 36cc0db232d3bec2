#include "engine/model/layer_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace soup::engine {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kBf16Bytes = 2;

int64_t AlignUp(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

struct ModuleEntry {
  const char* name;
  const char* path;
  Group group;
};
constexpr ModuleEntry kModuleTable[kModules] = {
    {"q_proj", "self_attn.q_proj", Group::kQkv},
    {"k_proj", "self_attn.k_proj", Group::kQkv},
    {"v_proj", "self_attn.v_proj", Group::kQkv},
    {"o_proj", "self_attn.o_proj", Group::kO},
    {"qkv_proj", "self_attn.qkv_proj", Group::kQkv},
    {"gate_proj", "mlp.gate_proj", Group::kGateUp},
    {"up_proj", "mlp.up_proj", Group::kGateUp},
    {"down_proj", "mlp.down_proj", Group::kDown},
    {"gate_up_proj", "mlp.gate_up_proj", Group::kGateUp},
};

struct FormatEntry {
  BaseFormat format;
  const char* name;
};
constexpr FormatEntry kFormats[] = {{BaseFormat::kBf16, "bf16"},
                                    {BaseFormat::kNf4, "nf4"},
                                    {BaseFormat::kNf4DoubleQuant, "nf4-dq"}};

// Whether a dense layer has the matrix.
bool HasMatrix(const ModelSpec& spec, Module m) {
  if (m == Module::kO || m == Module::kDown) return true;
  return (m == Module::kQkv || m == Module::kGateUp) == spec.fused_projections;
}

// Rows of one module's matrix.
int64_t ModuleRows(const ModelSpec& spec, Module m) {
  switch (m) {
    case Module::kQ:
      return spec.q_width();
    case Module::kK:
    case Module::kV:
      return spec.kv_width();
    case Module::kQkv:
      return spec.qkv_width();
    case Module::kO:
    case Module::kDown:
      return spec.hidden;
    case Module::kGate:
    case Module::kUp:
      return spec.intermediate;
    case Module::kGateUp:
      return 2 * spec.intermediate;
  }
  return 0;
}

// Gives out ranges of a slab one after another.
class Cursor {
 public:
  int64_t TakeAligned(int64_t bytes) {
    end_ = AlignUp(end_);
    return Take(bytes);
  }
  int64_t Take(int64_t bytes) {
    const int64_t at = end_;
    end_ += bytes;
    return at;
  }
  int64_t End() const { return end_; }
  int64_t AlignedEnd() const { return AlignUp(end_); }

 private:
  int64_t end_ = 0;
};

void PlaceNf4(BaseFormat format, Cursor& cursor, MatrixLayout& m) {
  m.data_bytes = (m.rows * m.cols + 1) / 2;
  m.data_offset = cursor.TakeAligned(m.data_bytes);
  if (format == BaseFormat::kNf4) {
    m.absmax_offset = cursor.TakeAligned(m.blocks() * 4);
    return;
  }
  m.absmax_offset = cursor.TakeAligned(m.blocks());
  m.nested_absmax_offset = cursor.TakeAligned(m.nested_blocks() * 4);
  m.offset_offset = cursor.TakeAligned(4);
}

// Places a matrix; `before`: the one that lies before it in its group, or null.
void PlaceMatrix(BaseFormat format, Cursor& cursor, const MatrixLayout* before, MatrixLayout& m) {
  if (before != nullptr) m.group_row = before->group_row + before->rows;
  if (format != BaseFormat::kBf16) {
    PlaceNf4(format, cursor, m);
    return;
  }
  m.data_bytes = m.rows * m.cols * kBf16Bytes;
  // Within a group the rows go on without a gap: the group is one matrix.
  m.data_offset = before != nullptr ? cursor.Take(m.data_bytes) : cursor.TakeAligned(m.data_bytes);
}

void PlaceNorms(const ModelSpec& spec, Cursor& cursor, LayerLayout& layout) {
  const int64_t bytes = spec.hidden * kBf16Bytes;
  layout.input_norm_offset = cursor.TakeAligned(bytes);
  layout.post_attention_norm_offset = cursor.TakeAligned(bytes);
  if (spec.post_norms) {
    layout.attention_out_norm_offset = cursor.TakeAligned(bytes);
    layout.mlp_out_norm_offset = cursor.TakeAligned(bytes);
  }
  if (spec.qk_norm) {
    layout.q_norm_offset = cursor.TakeAligned(spec.head_dim * kBf16Bytes);
    layout.k_norm_offset = cursor.TakeAligned(spec.head_dim * kBf16Bytes);
  }
}

void PlaceBiases(const ModelSpec& spec, bool sparse, Cursor& cursor, LayerLayout& layout) {
  const auto place = [&](Group group, bool has) {
    if (!has) return;
    layout.bias_offset[static_cast<int>(group)] =
        cursor.TakeAligned(MakeGroupShape(spec, group).rows * kBf16Bytes);
  };
  place(Group::kQkv, spec.qkv_bias);
  place(Group::kO, spec.o_bias);
  place(Group::kGateUp, spec.mlp_bias && !sparse);
  place(Group::kDown, spec.mlp_bias && !sparse);
}

void PlaceExperts(const ModelSpec& spec, BaseFormat format, Cursor& cursor,
                  ExpertsLayout& experts) {
  experts.count = spec.experts.count;
  experts.router_offset = cursor.TakeAligned(experts.count * spec.hidden * kBf16Bytes);
  const int64_t begin = cursor.AlignedEnd();
  for (int part = 0; part < 3; ++part) {
    MatrixLayout& m = experts.first[part];
    m.module = part == 0 ? Module::kGate : part == 1 ? Module::kUp : Module::kDown;
    m.group = part == 2 ? Group::kDown : Group::kGateUp;
    m.rows = part == 2 ? spec.hidden : spec.experts.intermediate;
    m.cols = part == 2 ? spec.experts.intermediate : spec.hidden;
    PlaceMatrix(format, cursor, part == 1 ? &experts.first[0] : nullptr, m);
  }
  experts.stride = cursor.AlignedEnd() - begin;
  cursor.Take((experts.count - 1) * experts.stride + experts.stride - (cursor.End() - begin));
}

LayerLayout MakeLayout(const ModelSpec& spec, BaseFormat format, bool sparse) {
  LayerLayout layout;
  layout.format = format;
  Cursor cursor;
  PlaceNorms(spec, cursor, layout);
  const MatrixLayout* last[kGroups] = {};
  for (int i = 0; i < kModules; ++i) {
    MatrixLayout& m = layout.matrices[i];
    m.module = static_cast<Module>(i);
    m.group = kModuleTable[i].group;
    if (!HasMatrix(spec, m.module) || (sparse && IsMlpModule(m.module))) continue;
    m.rows = ModuleRows(spec, m.module);
    m.cols = MakeGroupShape(spec, m.group).cols;
    const MatrixLayout*& before = last[static_cast<int>(m.group)];
    PlaceMatrix(format, cursor, before, m);
    before = &m;
  }
  PlaceBiases(spec, sparse, cursor, layout);
  if (sparse) PlaceExperts(spec, format, cursor, layout.experts);
  layout.bytes = cursor.AlignedEnd();
  return layout;
}

}  // namespace

const char* BaseFormatName(BaseFormat format) {
  for (const FormatEntry& entry : kFormats) {
    if (entry.format == format) return entry.name;
  }
  return "?";
}

absl::StatusOr<BaseFormat> ParseBaseFormat(absl::string_view name) {
  for (const FormatEntry& entry : kFormats) {
    if (name == entry.name) return entry.format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("base format '", name, "' is not supported (bf16, nf4, nf4-dq)"));
}

const char* ModuleName(Module m) { return kModuleTable[static_cast<int>(m)].name; }
const char* ModulePath(Module m) { return kModuleTable[static_cast<int>(m)].path; }

absl::StatusOr<Module> ParseModule(absl::string_view name) {
  std::string known;
  for (int i = 0; i < kModules; ++i) {
    if (name == kModuleTable[i].name) return static_cast<Module>(i);
    absl::StrAppend(&known, i == 0 ? "" : ", ", kModuleTable[i].name);
  }
  return absl::InvalidArgumentError(absl::StrCat("module '", name, "' is not one of ", known));
}

std::vector<Module> AdaptableModules(const ModelSpec& spec) {
  std::vector<Module> out;
  for (int i = 0; i < kModules; ++i) {
    if (HasModule(spec, static_cast<Module>(i))) out.push_back(static_cast<Module>(i));
  }
  return out;
}

bool HasModule(const ModelSpec& spec, Module m) {
  return HasMatrix(spec, m) && !(spec.has_sparse_layers() && IsMlpModule(m));
}

std::string ModuleNames(const std::vector<Module>& modules) {
  return absl::StrJoin(modules, ", ",
                       [](std::string* out, Module m) { absl::StrAppend(out, ModuleName(m)); });
}

GroupShape MakeGroupShape(const ModelSpec& spec, Group group) {
  switch (group) {
    case Group::kQkv:
      return {spec.qkv_width(), spec.hidden};
    case Group::kO:
      return {spec.hidden, spec.q_width()};
    case Group::kGateUp:
      return {2 * spec.intermediate, spec.hidden};
    case Group::kDown:
      return {spec.hidden, spec.intermediate};
  }
  return {};
}

GroupShape MakeExpertShape(const ModelSpec& spec, Group group) {
  const int64_t inner = spec.experts.intermediate;
  return group == Group::kDown ? GroupShape{spec.hidden, inner}
                               : GroupShape{2 * inner, spec.hidden};
}

int64_t LargestGroupElements(const ModelSpec& spec) {
  int64_t most = 0;
  const auto look = [&](const GroupShape& s) { most = std::max(most, s.rows * s.cols); };
  look(MakeGroupShape(spec, Group::kQkv));
  look(MakeGroupShape(spec, Group::kO));
  for (const Group group : {Group::kGateUp, Group::kDown}) {
    if (spec.has_dense_layers()) look(MakeGroupShape(spec, group));
    if (spec.has_sparse_layers()) look(MakeExpertShape(spec, group));
  }
  if (spec.has_sparse_layers()) look({spec.experts.count, spec.hidden});  // the router
  return most;
}

MatrixLayout ExpertsLayout::matrix(int64_t expert, int part) const {
  MatrixLayout m = first[part];
  for (int64_t* offset :
       {&m.data_offset, &m.absmax_offset, &m.nested_absmax_offset, &m.offset_offset}) {
    if (*offset >= 0) *offset += expert * stride;
  }
  return m;
}

LayerLayout MakeLayerLayout(const ModelSpec& spec, BaseFormat format, int64_t layer) {
  LayerLayout layout = MakeLayout(spec, format, spec.kind(layer).sparse);
  // One size for all, so that any layer fits any slot.
  if (spec.has_sparse_layers() && spec.has_dense_layers()) {
    layout.bytes = std::max(layout.bytes, MakeLayout(spec, format, !spec.kind(layer).sparse).bytes);
  }
  return layout;
}

GlobalsLayout MakeGlobalsLayout(const ModelSpec& spec) {
  GlobalsLayout layout;
  Cursor cursor;
  const int64_t table_bytes = spec.vocab * spec.hidden * kBf16Bytes;
  layout.embedding_offset = cursor.TakeAligned(table_bytes);
  layout.final_norm_offset = cursor.TakeAligned(spec.hidden * kBf16Bytes);
  layout.head_offset = spec.tied_head ? layout.embedding_offset : cursor.TakeAligned(table_bytes);
  layout.bytes = cursor.AlignedEnd();
  return layout;
}

std::string WeightName(int64_t layer, Module m) {
  return absl::StrCat("model.layers.", layer, ".", ModulePath(m), ".weight");
}

}  // namespace soup::engine
