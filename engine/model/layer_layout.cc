#include "engine/model/layer_layout.h"

#include "absl/strings/str_cat.h"

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
    {"q_proj", "self_attn.q_proj", Group::kQkv},    {"k_proj", "self_attn.k_proj", Group::kQkv},
    {"v_proj", "self_attn.v_proj", Group::kQkv},    {"o_proj", "self_attn.o_proj", Group::kO},
    {"gate_proj", "mlp.gate_proj", Group::kGateUp}, {"up_proj", "mlp.up_proj", Group::kGateUp},
    {"down_proj", "mlp.down_proj", Group::kDown},
};

struct FormatEntry {
  BaseFormat format;
  const char* name;
};
constexpr FormatEntry kFormats[] = {{BaseFormat::kBf16, "bf16"},
                                    {BaseFormat::kNf4, "nf4"},
                                    {BaseFormat::kNf4DoubleQuant, "nf4-dq"}};

// Rows of one module's matrix.
int64_t ModuleRows(const ModelSpec& spec, Module m) {
  switch (m) {
    case Module::kQ:
      return spec.q_width();
    case Module::kK:
    case Module::kV:
      return spec.kv_width();
    case Module::kO:
    case Module::kDown:
      return spec.hidden;
    case Module::kGate:
    case Module::kUp:
      return spec.intermediate;
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

LayerLayout MakeLayerLayout(const ModelSpec& spec, BaseFormat format) {
  LayerLayout layout;
  layout.format = format;
  Cursor cursor;
  layout.input_norm_offset = cursor.TakeAligned(spec.hidden * kBf16Bytes);
  layout.post_attention_norm_offset = cursor.TakeAligned(spec.hidden * kBf16Bytes);
  for (int i = 0; i < kModules; ++i) {
    MatrixLayout& m = layout.matrices[i];
    m.module = static_cast<Module>(i);
    m.group = kModuleTable[i].group;
    m.rows = ModuleRows(spec, m.module);
    m.cols = MakeGroupShape(spec, m.group).cols;
    const bool continues = i > 0 && layout.matrices[i - 1].group == m.group;
    if (continues) m.group_row = layout.matrices[i - 1].group_row + layout.matrices[i - 1].rows;
    if (format != BaseFormat::kBf16) {
      PlaceNf4(format, cursor, m);
      continue;
    }
    m.data_bytes = m.rows * m.cols * kBf16Bytes;
    // Within a group the rows go on without a gap: the group is one matrix.
    m.data_offset = continues ? cursor.Take(m.data_bytes) : cursor.TakeAligned(m.data_bytes);
  }
  layout.bytes = cursor.AlignedEnd();
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
