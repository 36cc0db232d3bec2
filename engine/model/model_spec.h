// ModelSpec: everything that the engine needs to know of a decoder, read from a Hugging Face
// config.json.
//
// A family is data: what its layers do differently from a plain Llama layer stands in these fields,
// and the executor reads the fields, never the family's name. How the fields are filled:
// engine/model/family.h and docs/FAMILIES.md. Both spellings of the rope keys are read:
// `rope_theta` + `rope_scaling` and `rope_parameters`; inside either, `type` is an older name of
// `rope_type`. What is not supported is refused by name (InvalidArgument). Plain values: copy
// freely, any thread.
#ifndef SOUP_ENGINE_MODEL_MODEL_SPEC_H_
#define SOUP_ENGINE_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                  // all but default
  double low_freq_factor = 1.0;         // llama3
  double high_freq_factor = 4.0;        // llama3
  double original_max_position = 8192;  // llama3, yarn, longrope
  double beta_fast = 32.0;              // yarn
  double beta_slow = 1.0;               // yarn
  bool truncate = true;                 // yarn: whole dimensions bound the ramp
  double attention_factor = 1.0;        // yarn, longrope: multiplies cosines and sines
  std::vector<double> short_factor;     // longrope, [rotary / 2]
  std::vector<double> long_factor;      // longrope: sequences longer than original_max_position
};

enum class Activation : uint8_t { kSilu, kGeluTanh };  // of the gate

// What may differ from layer to layer.
struct LayerKind {
  int64_t window = 0;       // keys a query sees, itself included; 0: all before it
  bool local_rope = false;  // rotates by ModelSpec::local_rope
  bool sparse = false;      // its MLP is the experts
};

// Mixture of experts: softmax over the router's logits, the `per_token` largest (of equals the
// lowest index), divided by their sum where `normalise`. The router is bf16 in every format.
struct ExpertSpec {
  int64_t count = 0;  // 0: no layer is sparse
  int64_t per_token = 0;
  int64_t intermediate = 0;
  bool normalise = true;
  // Names in the checkpoint: "model.layers.0.<block>.gate.weight" and
  // "model.layers.0.<block>.experts.3.<gate>.weight".
  const char* block = "mlp";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

struct ModelSpec {
  std::string family;  // config.model_type
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t max_position = 0;
  double rms_eps = 1e-5;
  bool tied_head = false;
  RopeSpec rope;
  int64_t bos_token_id = -1;  // -1: the config names none
  int64_t eos_token_id = -1;  // the first, where the config lists several

  // What families add; the defaults are Llama's.
  Activation activation = Activation::kSilu;
  int64_t rotary_dim = 0;         // leading dimensions of a head that rope turns; 0: all
  bool has_local_rope = false;    // layers with LayerKind::local_rope turn by `local_rope`
  RopeSpec local_rope;            //
  double query_scalar = 0;        // scores are scaled by 1 / sqrt of it; 0: of head_dim
  double attention_soft_cap = 0;  // scores s become cap * tanh(s / cap); 0: none
  double final_soft_cap = 0;      // logits likewise
  double embedding_scale = 1;
  double norm_offset = 0;   // added to every norm's weight
  bool qk_norm = false;     // queries and keys are normed head by head, before rope
  bool post_norms = false;  // attention's and the MLP's outputs are normed before the residual
  bool qkv_bias = false;    // biases on q, k, v
  bool o_bias = false;      //
  bool mlp_bias = false;    // on gate, up, down
  bool fused_projections = false;  // the checkpoint has qkv_proj and gate_up_proj
  ExpertSpec experts;
  std::vector<LayerKind> kinds;  // one a layer; empty: all plain

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  // Elements of a row of the q k v activation: what attention reads and, where heads are normed,
  // q and k as they were before the norm, which its backward reads.
  int64_t qkv_row() const { return qkv_width() + (qk_norm ? q_width() + kv_width() : 0); }
  int64_t rotary() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  double attention_scale() const;
  LayerKind kind(int64_t layer) const {
    return kinds.empty() ? LayerKind() : kinds[static_cast<size_t>(layer)];
  }
  bool has_sparse_layers() const;
  bool has_dense_layers() const;
  // Planes of [T, hidden] that a layer's boundary and its middle hold: the state itself and, where
  // outputs are normed, the output before its norm.
  int64_t state_planes() const { return post_norms ? 2 : 1; }
};

// Parses the text of a config.json. Errors: InvalidArgument, naming the key, its value and what is
// supported.
absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view config_json);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_MODEL_SPEC_H_
