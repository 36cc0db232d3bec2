#include "bench/named_base.h"

#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace soup::bench {
namespace {

struct NamedConfig {
  const char* name;
  const char* config;
};
// As published on the Hugging Face hub, cut to what decides shapes.
constexpr NamedConfig kConfigs[] = {
    {"llama-8b", R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
      "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})"},
    {"llama-70b", R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
      "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
      "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
      "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})"},
    {"smollm-135m", R"({"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
      "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
      "vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
      "rope_theta": 100000, "tie_word_embeddings": true})"},
};

}  // namespace

absl::StatusOr<engine::ModelSpec> FindBase(const std::string& name) {
  std::vector<std::string> names;
  for (const NamedConfig& c : kConfigs) {
    if (name == c.name) return engine::ParseModelSpec(c.config);
    names.emplace_back(c.name);
  }
  std::ifstream in(name);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.is_open() || text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("base \"", name, "\" is neither one of ",
                                                   absl::StrJoin(names, ", "),
                                                   " nor a config.json that can be read"));
  }
  return engine::ParseModelSpec(text);
}

}  // namespace soup::bench
