// A GGUF file as the Hugging Face checkpoint that it was made from: config.json's text from the
// metadata, tensors under their Hugging Face names and in their order. What differs is undone: GGUF
// keeps the rows of a llama's q and k by interleaved rotary pairs where Hugging Face wants two
// halves a head; gemma's norms have 1 added to their weights; experts lie in one tensor a layer.
//
// Known architectures: gguf_architecture.h. Whatever the metadata or the tensors hold beyond what
// is understood is refused by name. (1 + w is kept in fp32: of norm weights nearer to 0 than 2^-16
// the last bits are lost in the file.) Errors: those of gguf_reader.h;
// InvalidArgument. Immutable after Open: any thread.
#ifndef SOUP_ENGINE_IO_GGUF_MODEL_H_
#define SOUP_ENGINE_IO_GGUF_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/io/gguf_reader.h"

namespace soup::engine {

struct GgufShape;

class GgufModel {
 public:
  static absl::StatusOr<std::unique_ptr<GgufModel>> Open(const std::string& path,
                                                         const AllowedRoots& roots = {});

  struct Weight {
    std::string name;            // Hugging Face's
    std::vector<int64_t> shape;  // [rows, columns], or [n]
    const GgufTensor* tensor = nullptr;
    int64_t heads = 0;  // rows lie by interleaved pairs within each of so many heads; 0: in order
    int64_t first = 0;  // element of the tensor where it begins: an expert's of several
    float minus = 0;    // what the file's values have too much
  };

  const std::string& path() const { return file_->path(); }
  const std::string& config_json() const { return config_json_; }
  const std::vector<Weight>& weights() const { return weights_; }  // sorted by name
  const Weight* Find(absl::string_view name) const;                // null: not there
  // Elements [first, first + count) in Hugging Face's order.
  absl::Status Read(const Weight& weight, int64_t first, int64_t count, float* dst) const;

 private:
  GgufModel() = default;
  absl::Status AddWeights(const GgufShape& shape, const GgufTensor& tensor, bool* known);
  std::unique_ptr<GgufFile> file_;
  std::string config_json_;
  std::vector<Weight> weights_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_MODEL_H_
