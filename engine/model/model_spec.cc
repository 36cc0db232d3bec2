#include "engine/model/model_spec.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/config_reader.h"
#include "engine/model/family.h"
#include "engine/model/rope_config.h"

namespace soup::engine {
namespace {

constexpr double kPi = 3.14159265358979323846;

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

absl::Status ReadHeads(const ConfigReader& config, ModelSpec& spec) {
  SOUP_ASSIGN_OR_RETURN(spec.kv_heads, config.Int("num_key_value_heads", 1, 4096, spec.heads));
  if (spec.heads % spec.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: num_attention_heads ", spec.heads,
                                                   " is not a multiple of num_key_value_heads ",
                                                   spec.kv_heads));
  }
  if (!config.Has("head_dim") && spec.hidden % spec.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: hidden_size ", spec.hidden,
                                                   " is not a multiple of "
                                                   "num_attention_heads ",
                                                   spec.heads, ", and there is no head_dim"));
  }
  SOUP_ASSIGN_OR_RETURN(spec.head_dim,
                        config.Int("head_dim", 1, kMaxHeadDim, spec.hidden / spec.heads));
  if (spec.head_dim % 2 != 0 || spec.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: head_dim ", spec.head_dim,
                                                   " is not supported (even, up to ", kMaxHeadDim,
                                                   ")"));
  }
  return absl::OkStatus();
}

// What all families share.
absl::Status ReadDecoder(const ConfigReader& config, ModelSpec& spec) {
  for (const SizeKey& size : kRequiredSizes) {
    SOUP_ASSIGN_OR_RETURN(spec.*size.field, config.RequiredInt(size.key, size.least, size.most));
  }
  SOUP_RETURN_IF_ERROR(ReadHeads(config, spec));
  SOUP_ASSIGN_OR_RETURN(spec.max_position,
                        config.Int("max_position_embeddings", 1, kMaxPositions, 2048));
  SOUP_ASSIGN_OR_RETURN(spec.rms_eps, config.Number("rms_norm_eps", 0.0, 1.0, 1e-6));
  SOUP_ASSIGN_OR_RETURN(spec.tied_head, config.Bool("tie_word_embeddings", false));
  SOUP_ASSIGN_OR_RETURN(spec.bos_token_id, config.TokenId("bos_token_id", spec.vocab));
  SOUP_ASSIGN_OR_RETURN(spec.eos_token_id, config.TokenId("eos_token_id", spec.vocab));
  SOUP_ASSIGN_OR_RETURN(spec.rope, ReadRope(config));
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
  SOUP_RETURN_IF_ERROR(ReadDecoder(config, spec));
  return spec;
}

std::vector<float> RopeInverseFrequencies(const ModelSpec& spec) {
  const RopeSpec& rope = spec.rope;
  std::vector<float> out;
  for (int64_t i = 0; i < spec.head_dim / 2; ++i) {
    const double plain =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(spec.head_dim));
    double frequency = plain;
    if (rope.type == RopeType::kLinear) frequency = plain / rope.factor;
    if (rope.type == RopeType::kLlama3) {
      const double wavelength = 2.0 * kPi / plain;
      const double longest_kept = rope.original_max_position / rope.high_freq_factor;
      const double shortest_scaled = rope.original_max_position / rope.low_freq_factor;
      if (wavelength > shortest_scaled) {
        frequency = plain / rope.factor;
      } else if (wavelength >= longest_kept) {
        const double smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) /
                              (rope.high_freq_factor - rope.low_freq_factor);
        frequency = (1.0 - smooth) * plain / rope.factor + smooth * plain;
      }
    }
    out.push_back(static_cast<float>(frequency));
  }
  return out;
}

}  // namespace soup::engine
