// A GGUF file as the Hugging Face checkpoint that it was made from: config.json's text from the
// metadata, tensors under their Hugging Face names and in their order (GGUF keeps the rows of a
// llama's q and k by interleaved rotary pairs; Hugging Face wants two halves a head).
//
// Known architectures: llama (Mistral 7B too), qwen2, qwen3. Whatever the metadata or the tensors
// hold beyond what is understood is refused by name. Errors: those of gguf_reader.h;
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

class GgufModel {
 public:
  static absl::StatusOr<std::unique_ptr<GgufModel>> Open(const std::string& path,
                                                         const AllowedRoots& roots = {});

  struct Weight {
    std::string name;            // Hugging Face's
    std::vector<int64_t> shape;  // [rows, columns], or [n]
    const GgufTensor* tensor = nullptr;
    int64_t heads = 0;  // rows lie by interleaved pairs within each of so many heads; 0: in order
  };

  const std::string& path() const { return file_->path(); }
  const std::string& config_json() const { return config_json_; }
  const std::vector<Weight>& weights() const { return weights_; }  // sorted by name
  const Weight* Find(absl::string_view name) const;                // null: not there
  // Elements [first, first + count) in Hugging Face's order.
  absl::Status Read(const Weight& weight, int64_t first, int64_t count, float* dst) const;

 private:
  GgufModel() = default;
  std::unique_ptr<GgufFile> file_;
  std::string config_json_;
  std::vector<Weight> weights_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_MODEL_H_
