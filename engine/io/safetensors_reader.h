// Reader of safetensors: one file (SafetensorsFile), or a checkpoint of one or several shards
// (SafetensorsCheckpoint).
//
// Nothing that a file says is believed before it is compared with what is there: the header's
// length against the file's size (before anything is allocated), its JSON, every dtype, shape,
// product of a shape and pair of offsets; tensors must cover the data part without gaps or
// overlaps. Weight data is read with pread, never mapped: a file that shrinks while it is read is
// an error, not a SIGBUS.
//
// Errors: NotFound (no such file; a shard that an index names: "the download looks incomplete"),
// PermissionDenied (a path that leads out of the allowed roots), InvalidArgument (everything a file
// may lie about; short files name the size needed and the size there), DataLoss (shrunk since it
// was opened, read error). Each message names the path and the tensor. Both classes are immutable
// after Open: any thread. Format: https://github.com/huggingface/safetensors#format
#ifndef SOUP_ENGINE_IO_SAFETENSORS_READER_H_
#define SOUP_ENGINE_IO_SAFETENSORS_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/dtype.h"
#include "engine/io/confined_file.h"

namespace soup::engine {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // [] is a scalar: one element
  int64_t offset = 0;          // bytes from the file's start
  int64_t bytes = 0;           // elements() * DTypeBytes(dtype)
  int64_t elements() const;
  std::string ShapeText() const;  // "[320, 64]"
};

class SafetensorsFile {
 public:
  // `path` is a regular file, possibly behind links; see confined_file.h for `roots`.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path,
                                                               const AllowedRoots& roots = {});
  ~SafetensorsFile();

  const std::string& path() const;
  const std::vector<TensorInfo>& tensors() const;  // sorted by name
  const std::map<std::string, std::string>& metadata() const;
  const TensorInfo* Find(absl::string_view name) const;  // null: not there

  // Bytes [first, first + bytes) of the tensor into dst.
  absl::Status Read(const TensorInfo& tensor, int64_t first, int64_t bytes, void* dst) const;

  // A whole tensor. Floats of any width come widened (or, F64 to F32, rounded); integers likewise.
  // NotFound when there is no such tensor; InvalidArgument when its dtype is of the other kind.
  absl::StatusOr<std::vector<float>> ReadF32(absl::string_view name) const;
  absl::StatusOr<std::vector<int64_t>> ReadI64(absl::string_view name) const;
  absl::StatusOr<std::vector<uint8_t>> ReadBytes(absl::string_view name) const;

 private:
  SafetensorsFile();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// The weights of a model folder: model.safetensors.index.json and its shards, else
// model.safetensors. With an index, only the shards that it names are read (a stray
// model.safetensors beside it is not), and each tensor must be in the shard that the index gives
// for it.
class SafetensorsCheckpoint {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsCheckpoint>> Open(
      const std::string& folder, const AllowedRoots& roots = {});
  ~SafetensorsCheckpoint();

  struct Located {
    const SafetensorsFile* file = nullptr;  // null: no such tensor
    const TensorInfo* tensor = nullptr;
  };
  Located Find(absl::string_view name) const;
  std::vector<std::string> Names() const;               // sorted
  const std::vector<std::string>& shard_names() const;  // file names in the folder, sorted
  const std::string& folder() const;
  int64_t total_bytes() const;  // of all tensors
  // Things worth telling: "model.safetensors is not named by the index and was ignored".
  const std::vector<std::string>& warnings() const;

 private:
  SafetensorsCheckpoint();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_SAFETENSORS_READER_H_
