#include "engine/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/config_reader.h"
#include "engine/model/family.h"
#include "engine/model/rope_config.h"

namespace soup::engine {
namespace {

// A number of the decoder and the range in which every product of two of them fits an int64 with
// room to spare.
struct SizeKey {
  const char* key;
  int64_t ModelSpec::*field;
  int64_t least;
  int64_t most;
};
constexpr SizeKey kRequiredSizes[] = {
    {"hidden_size", &ModelSpec::hidden, 1, int64_t{1} << 18},
    {"intermediate_size", &ModelSpec::intermediate, 1, int64_t{1} << 20},
    {"num_hidden_layers", &ModelSpec::layers, 1, 4096},
    {"num_attention_heads", &ModelSpec::heads, 1, 4096},
    {"vocab_size", &ModelSpec::vocab, 1, int64_t{1} << 24},
};
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

absl::Status ReadHeads(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  const FamilyDefaults& defaults = family.defaults;
  // null says "as many as query heads" in every family, silence what the family's class says.
  const bool as_query = config.IsNull("num_key_value_heads") || defaults.kv_heads == 0;
  SOUP_ASSIGN_OR_RETURN(spec.kv_heads, config.Int("num_key_value_heads", 1, 4096,
                                                  as_query ? spec.heads : defaults.kv_heads));
  if (spec.heads % spec.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: num_attention_heads ", spec.heads,
                                                   " is not a multiple of num_key_value_heads ",
                                                   spec.kv_heads));
  }
  const bool derived =
      !config.Has("head_dim") && (config.IsNull("head_dim") || defaults.head_dim == 0);
  if (derived && spec.hidden % spec.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: hidden_size ", spec.hidden,
                                                   " is not a multiple of "
                                                   "num_attention_heads ",
                                                   spec.heads, ", and there is no head_dim"));
  }
  SOUP_ASSIGN_OR_RETURN(spec.head_dim,
                        config.Int("head_dim", 1, kMaxHeadDim,
                                   derived ? spec.hidden / spec.heads : defaults.head_dim));
  if (spec.head_dim % 2 != 0 || spec.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: head_dim ", spec.head_dim,
                                                   " is not supported (even, up to ", kMaxHeadDim,
                                                   ")"));
  }
  return absl::OkStatus();
}

// What all families share.
absl::Status ReadDecoder(const Family& family, const ConfigReader& config, ModelSpec& spec) {
  for (const SizeKey& size : kRequiredSizes) {
    SOUP_ASSIGN_OR_RETURN(spec.*size.field, config.RequiredInt(size.key, size.least, size.most));
  }
  SOUP_RETURN_IF_ERROR(ReadHeads(family, config, spec));
  SOUP_ASSIGN_OR_RETURN(spec.max_position, config.Int("max_position_embeddings", 1, kMaxPositions,
                                                      family.defaults.max_position));
  SOUP_ASSIGN_OR_RETURN(spec.rms_eps,
                        config.Number("rms_norm_eps", 0.0, 1.0, family.defaults.rms_eps));
  SOUP_ASSIGN_OR_RETURN(spec.tied_head,
                        config.Bool("tie_word_embeddings", family.defaults.tied_head));
  SOUP_ASSIGN_OR_RETURN(spec.bos_token_id, config.TokenId("bos_token_id", spec.vocab));
  SOUP_ASSIGN_OR_RETURN(spec.eos_token_id, config.TokenId("eos_token_id", spec.vocab));
  SOUP_RETURN_IF_ERROR(ReadRope(family, config, spec));
  if (config.Has("quantization_config")) {
    return absl::InvalidArgumentError(
        "config.json: quantization_config: the checkpoint is already quantised, which is not "
        "supported; give the original bf16, f16 or f32 checkpoint (soupd quantises it itself)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view config_json) {
  SOUP_ASSIGN_OR_RETURN(const ConfigReader config, ConfigReader::Parse(config_json));
  SOUP_ASSIGN_OR_RETURN(const std::string model_type, config.RequiredString("model_type"));
  SOUP_ASSIGN_OR_RETURN(const Family* family, FindFamily(model_type));
  ModelSpec spec;
  spec.family = family->model_type;
  SOUP_RETURN_IF_ERROR(CheckFamily(*family, config));
  SOUP_RETURN_IF_ERROR(ReadDecoder(*family, config, spec));
  SOUP_RETURN_IF_ERROR(ReadFeatures(*family, config, spec));
  return spec;
}

double ModelSpec::attention_scale() const {
  return 1.0 / std::sqrt(query_scalar > 0 ? query_scalar : static_cast<double>(head_dim));
}

bool ModelSpec::has_sparse_layers() const {
  return std::any_of(kinds.begin(), kinds.end(), [](const LayerKind& k) { return k.sparse; });
}
bool ModelSpec::has_dense_layers() const {
  return kinds.empty() ||
         std::any_of(kinds.begin(), kinds.end(), [](const LayerKind& k) { return !k.sparse; });
}

}  // namespace soup::engine
