// What is made of a GGUF file: names, config and spec, weights, tokenizer.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "engine/io/gguf_model.h"
#include "engine/io/gguf_tokenizer.h"
#include "engine/model/model_spec.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr size_t kWeightsRead = 64;
constexpr int64_t kElementsRead = 512;

// One file a process, in memory where there is such a folder.
const std::string& Path() {
  static const std::string path = [] {
    const char* folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    return std::string(folder) + "/soup-gguf-fuzz-" + std::to_string(getpid());
  }();
  static const int registered = std::atexit([] { std::remove(Path().c_str()); });
  static_cast<void>(registered);
  return path;
}

void ReadWeights(const soup::engine::GgufModel& model) {
  std::vector<float> values(static_cast<size_t>(kElementsRead));
  for (size_t i = 0; i < std::min(kWeightsRead, model.weights().size()); ++i) {
    const auto& weight = model.weights()[i];
    int64_t elements = 1;
    for (const int64_t n : weight.shape) elements *= n;
    const int64_t n = std::min(elements, kElementsRead);
    if (!model.Read(weight, elements - n, n, values.data()).ok()) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(Path(), std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto model = soup::engine::GgufModel::Open(Path());
  if (model.ok()) {
    soup::engine::ParseModelSpec((*model)->config_json()).status().IgnoreError();
    ReadWeights(**model);
  }
  const auto file = soup::engine::GgufFile::Open(Path());
  if (file.ok()) soup::engine::ReadGgufTokenizer(**file).status().IgnoreError();
  return 0;
}
