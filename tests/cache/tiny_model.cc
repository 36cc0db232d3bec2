#include "tests/cache/tiny_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/io/safetensors_writer.h"
#include "engine/model/model_spec.h"
#include "engine/model/slab_contents.h"
#include "tests/support/whole_file.h"

namespace soup::testing {
namespace {

using Values = std::map<std::string, std::vector<float>>;

// Cheap, and the same everywhere: values in (-0.1, 0.1) with enough bits to be rounded by bf16.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 2 + 1) {}
  float Next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return (static_cast<float>(state_ >> 40) / static_cast<float>(1 << 24) - 0.5f) * 0.2f;
  }

 private:
  uint64_t state_;
};

std::vector<uint8_t> Encode(const std::vector<float>& values, engine::DType dtype) {
  std::vector<uint8_t> out(values.size() * static_cast<size_t>(engine::DTypeBytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == engine::DType::kF32) {
      std::memcpy(out.data() + i * 4, &values[i], 4);
    } else {
      const uint16_t bits = engine::F32ToBf16(values[i]);
      std::memcpy(out.data() + i * 2, &bits, 2);
    }
  }
  return out;
}

}  // namespace

std::string TinyModel::ConfigJson() const {
  return nlohmann::json{{"architectures", {"LlamaForCausalLM"}},
                        {"model_type", "llama"},
                        {"hidden_act", "silu"},
                        {"hidden_size", hidden},
                        {"intermediate_size", intermediate},
                        {"num_hidden_layers", layers},
                        {"num_attention_heads", heads},
                        {"num_key_value_heads", kv_heads},
                        {"vocab_size", vocab},
                        {"max_position_embeddings", 512},
                        {"rms_norm_eps", 1e-5},
                        {"rope_theta", 10000.0},
                        {"tie_word_embeddings", tied}}
      .dump(1);
}

void TinyModel::Write(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  WriteWhole(folder + "/config.json", ConfigJson());
  const auto spec = engine::ParseModelSpec(ConfigJson());
  ASSERT_TRUE(spec.ok()) << spec.status();
  Values values;
  std::map<std::string, std::vector<int64_t>> shapes;
  Noise noise(seed);
  for (int64_t slab = 0; slab < engine::SlabCount(*spec); ++slab) {
    for (const auto& t : engine::SlabContents(*spec, engine::BaseFormat::kBf16, slab)) {
      int64_t n = 1;
      for (int64_t d : t.shape) n *= d;
      std::vector<float>& v = values[t.name];
      v.resize(static_cast<size_t>(n));
      for (float& x : v) x = noise.Next();
      shapes[t.name] = t.shape;
    }
  }
  if (edit) edit(values);

  std::vector<std::vector<engine::TensorToWrite>> parts(static_cast<size_t>(shards));
  std::vector<std::vector<uint8_t>> storage;
  storage.reserve(values.size());
  nlohmann::json weight_map;
  size_t next = 0;
  for (const auto& [name, v] : values) {
    storage.push_back(Encode(v, dtype));
    const auto shape = shapes.count(name) > 0
                           ? shapes[name]
                           : std::vector<int64_t>{static_cast<int64_t>(v.size())};
    const size_t part = next++ % parts.size();
    parts[part].push_back({name, dtype, shape, storage.back()});
    weight_map[name] = "part-" + std::to_string(part) + ".safetensors";
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name =
        shards == 1 ? "model.safetensors" : "part-" + std::to_string(i) + ".safetensors";
    const absl::Status written =
        engine::WriteSafetensors(engine::RealFileSystem(), folder + "/" + name, parts[i]);
    ASSERT_TRUE(written.ok()) << written;
  }
  if (shards > 1) {
    WriteWhole(folder + "/model.safetensors.index.json",
               nlohmann::json{{"weight_map", weight_map}}.dump());
  }
}

std::string GoldenFolder(const std::string& name) {
  return std::string(SOUP_TEST_DATA_DIR) + "/golden/" + name;
}
std::string CaseFolder(const std::string& name) {
  return std::string(SOUP_TEST_DATA_DIR) + "/cases/" + name;
}

}  // namespace soup::testing
