// Model folders for tests: random decoders of any size, written as a Hugging Face folder.
#ifndef SOUP_TESTS_CACHE_TINY_MODEL_H_
#define SOUP_TESTS_CACHE_TINY_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/base/dtype.h"

namespace soup::testing {

struct TinyModel {
  int64_t hidden = 64;
  int64_t intermediate = 96;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t vocab = 100;
  bool tied = false;
  engine::DType dtype = engine::DType::kBF16;
  uint64_t seed = 1;
  int shards = 1;
  // Changes what is written: name -> values (fp32), shapes kept. May add and remove.
  std::function<void(std::map<std::string, std::vector<float>>&)> edit;

  std::string ConfigJson() const;
  // Writes config.json and weights into `folder` (made).
  void Write(const std::string& folder) const;
};

// Golden folders and cases of the repository.
std::string GoldenFolder(const std::string& name);
std::string CaseFolder(const std::string& name);

}  // namespace soup::testing

#endif  // SOUP_TESTS_CACHE_TINY_MODEL_H_
