// A golden Hugging Face folder written as the GGUF file that llama.cpp's converter would make of
// it (matrices in BF16, norms and routers in F32), for tests of GGUF bases.
#ifndef SOUP_TESTS_CACHE_GOLDEN_GGUF_H_
#define SOUP_TESTS_CACHE_GOLDEN_GGUF_H_

#include <string>

#include "tests/support/gguf_writer.h"

namespace soup::testing {

struct GoldenGgufOptions {
  bool merged_experts = true;  // false: a tensor an expert, as older files have
  // Experts' matrices in blocks of this type, drawn from a seed by the matrix's name; kBF16: the
  // folder's values.
  GgufWriter::Type experts = GgufWriter::kBF16;
  std::string omit;  // a key of the metadata that is not written
};

// Metadata and tensors of tests/golden/<folder>; the caller may add to them and writes the file.
// Fails the test (and dies) where the folder is not as expected.
GgufWriter GoldenGguf(const std::string& folder, const GoldenGgufOptions& options = {});

}  // namespace soup::testing

#endif  // SOUP_TESTS_CACHE_GOLDEN_GGUF_H_
