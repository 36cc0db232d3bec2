// Where each tensor of a layer lies in its slab, and of the globals (embedding, final norm, head)
// in theirs.
//
// A base is stored as slabs 0 .. layers-1 (one a layer, all of one size; layers of one kind have
// one layout) and slab `layers` (the globals). Tensors start at multiples of 256 bytes. bf16: q, k,
// v lie row after row without a gap, and gate, up likewise, so that each group is one GEMM in
// place; a checkpoint that holds a group as one matrix is stored as that. nf4: each matrix of the
// checkpoint is quantised on its own, as bitsandbytes does (block 64, nested block 256), and is
// dequantised into its rows of the group's scratch. Norms, biases, router, embedding and head are
// bf16 in every format. Plain values; any thread.
#ifndef SOUP_ENGINE_MODEL_LAYER_LAYOUT_H_
#define SOUP_ENGINE_MODEL_LAYER_LAYOUT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

enum class BaseFormat : uint8_t { kBf16, kNf4, kNf4DoubleQuant };
// "bf16", "nf4", "nf4-dq": as in keys of the shard store and in the worker protocol.
const char* BaseFormatName(BaseFormat format);
absl::StatusOr<BaseFormat> ParseBaseFormat(absl::string_view name);

// The linears that layers have, in slab order; also the possible LoRA targets. kQkv and kGateUp are
// what a checkpoint with fused projections has instead of their parts.
enum class Module : uint8_t { kQ, kK, kV, kO, kQkv, kGate, kUp, kDown, kGateUp };
inline constexpr int kModules = 9;
// "q_proj" ...; and the path inside a layer: "self_attn.q_proj", "mlp.gate_proj".
const char* ModuleName(Module m);
const char* ModulePath(Module m);
absl::StatusOr<Module> ParseModule(absl::string_view name);
// Of the MLP; the others are the attention's, and come first.
inline bool IsMlpModule(Module m) { return m >= Module::kGate; }
// The linears that adapters of this model may have: those of a dense layer, or attention's alone
// where some layers are sparse.
std::vector<Module> AdaptableModules(const ModelSpec& spec);
bool HasModule(const ModelSpec& spec, Module m);  // adaptable
// "q_proj, k_proj, ..."
std::string ModuleNames(const std::vector<Module>& modules);

// Matrices that one GEMM covers.
enum class Group : uint8_t { kQkv, kO, kGateUp, kDown };
inline constexpr int kGroups = 4;
inline bool IsMlpGroup(Group g) { return g >= Group::kGateUp; }
constexpr Group ModuleGroup(Module m) {
  switch (m) {
    case Module::kQ:
    case Module::kK:
    case Module::kV:
    case Module::kQkv:
      return Group::kQkv;
    case Module::kO:
      return Group::kO;
    case Module::kGate:
    case Module::kUp:
    case Module::kGateUp:
      return Group::kGateUp;
    case Module::kDown:
      return Group::kDown;
  }
  return Group::kQkv;
}

inline constexpr int64_t kNf4Block = 64;
inline constexpr int64_t kNf4NestedBlock = 256;

// One matrix [rows, cols] (out, in) in a slab. Offsets are bytes from the slab's start; unused ones
// are -1.
struct MatrixLayout {
  Module module = Module::kQ;
  Group group = Group::kQkv;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t group_row = 0;  // first row in its group's stacked matrix
  // bf16: the weights. nf4: packed codes, (rows*cols+1)/2 bytes, high nibble first.
  int64_t data_offset = -1;
  int64_t data_bytes = 0;
  // nf4: absmax fp32 [blocks]. nf4-dq: absmax u8 [blocks], nested_absmax fp32 [nested blocks],
  // offset fp32 [1].
  int64_t absmax_offset = -1;
  int64_t nested_absmax_offset = -1;
  int64_t offset_offset = -1;
  int64_t blocks() const { return (rows * cols + kNf4Block - 1) / kNf4Block; }
  int64_t nested_blocks() const { return (blocks() + kNf4NestedBlock - 1) / kNf4NestedBlock; }
};

// Experts of a sparse layer: expert e's matrices lie e * stride behind expert 0's.
struct ExpertsLayout {
  int64_t router_offset = -1;  // bf16 [count, hidden]
  int64_t count = 0;
  int64_t stride = 0;
  std::array<MatrixLayout, 3> first;  // gate, up, down of expert 0; group kGateUp, kGateUp, kDown

  MatrixLayout matrix(int64_t expert, int part) const;  // part: index in `first`
};

struct LayerLayout {
  BaseFormat format = BaseFormat::kBf16;
  std::array<MatrixLayout, kModules> matrices;  // index: Module; rows 0: the layer has none
  // bf16 vectors; -1: the family has none.
  int64_t input_norm_offset = -1;           // [hidden]
  int64_t post_attention_norm_offset = -1;  // [hidden]: of the MLP's input
  int64_t attention_out_norm_offset = -1;   // [hidden]: of attention's output, before the residual
  int64_t mlp_out_norm_offset = -1;         // [hidden]: of the MLP's output, before the residual
  int64_t q_norm_offset = -1;               // [head_dim]
  int64_t k_norm_offset = -1;               // [head_dim]
  std::array<int64_t, kGroups> bias_offset = {-1, -1, -1, -1};  // index: Group; [the group's rows]
  ExpertsLayout experts;                                        // of a sparse layer
  int64_t bytes = 0;  // the slab's payload, a multiple of 256; the same for every layer

  const MatrixLayout& matrix(Module m) const { return matrices[static_cast<int>(m)]; }
};

struct GlobalsLayout {
  int64_t embedding_offset = 0;   // bf16 [vocab, hidden]
  int64_t final_norm_offset = 0;  // bf16 [hidden]
  int64_t head_offset = 0;  // bf16 [vocab, hidden]; equal to embedding_offset when the head is tied
  int64_t bytes = 0;        // payload, a multiple of 256
};

LayerLayout MakeLayerLayout(const ModelSpec& spec, BaseFormat format, int64_t layer = 0);
GlobalsLayout MakeGlobalsLayout(const ModelSpec& spec);

// [rows, cols] of a group's stacked matrix; of a dense layer, or of one expert.
struct GroupShape {
  int64_t rows = 0;
  int64_t cols = 0;
};
GroupShape MakeGroupShape(const ModelSpec& spec, Group group);
GroupShape MakeExpertShape(const ModelSpec& spec, Group group);
// Elements of the largest weight operand that some layer makes.
int64_t LargestGroupElements(const ModelSpec& spec);

// Hugging Face names: "model.layers.3.self_attn.q_proj.weight".
std::string WeightName(int64_t layer, Module m);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_LAYER_LAYOUT_H_
