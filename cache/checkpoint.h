// A checkpoint as the importer reads it: a Hugging Face folder (config.json and safetensors), or
// one .gguf file. Weights go by their Hugging Face names and come as bf16: rounded where the file
// holds more, dequantised where it holds less, checked to be finite.
//
// Errors: those of the readers; InvalidArgument (type, shape, NaN or infinity: tensor, row and
// column named). Immutable after Open: any thread.
#ifndef SOUP_CACHE_CHECKPOINT_H_
#define SOUP_CACHE_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/io/confined_file.h"

namespace soup::cache {

class Checkpoint {
 public:
  struct Weight {
    std::string name;
    std::vector<int64_t> shape;
    std::string type;      // as in the file: "F32", "Q4_K"
    bool readable = true;  // of a type that weights may have
    bool exact = true;     // bf16 in the file
    std::string file;      // for messages
    int64_t elements() const;
  };

  // `path`: a folder, or a regular file, which must be a GGUF.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path,
                                                          const engine::AllowedRoots& roots);
  virtual ~Checkpoint() = default;

  const std::string& path() const { return path_; }
  const std::string& config_json() const { return config_json_; }
  // The files that the checkpoint is made of, in an order that a copy has too; the config last.
  const std::vector<std::string>& files() const { return files_; }
  int64_t total_bytes() const { return total_bytes_; }  // of all tensors, in the files
  // Things worth telling.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<Weight>& weights() const { return weights_; }  // sorted by name
  const Weight* Find(absl::string_view name) const;                // null: not there

  // Elements [first, first + count) of a weight of this checkpoint into dst.
  absl::Status Read(const Weight& weight, int64_t first, int64_t count, uint16_t* dst) const;

 protected:
  Checkpoint() = default;
  // Rounded to bf16, not checked.
  virtual absl::Status ReadRounded(const Weight& weight, int64_t first, int64_t count,
                                   uint16_t* dst) const = 0;
  void SortWeights();

  std::string path_;
  std::string config_json_;
  std::vector<std::string> files_;
  int64_t total_bytes_ = 0;
  std::vector<std::string> warnings_;
  std::vector<Weight> weights_;
};

// The refusals of a weight of another shape or of a type that weights have not, and of element
// `index`, a NaN or an infinity.
absl::Status CheckWeight(const Checkpoint::Weight& weight, const std::vector<int64_t>& shape);
absl::Status NotFinite(const Checkpoint::Weight& weight, int64_t index);

}  // namespace soup::cache

#endif  // SOUP_CACHE_CHECKPOINT_H_
