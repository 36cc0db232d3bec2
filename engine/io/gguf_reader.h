// Reader of a GGUF file: its metadata, and its tensors as fp32. Weight data is read with pread,
// never mapped. Immutable after Open: any thread.
//
// Errors: NotFound, PermissionDenied (a path that leads out of the allowed roots), InvalidArgument
// (everything the file may lie about; gguf_header.h), DataLoss (shrunk since it was opened). Each
// message names the path.
#ifndef SOUP_ENGINE_IO_GGUF_READER_H_
#define SOUP_ENGINE_IO_GGUF_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/io/confined_file.h"
#include "engine/io/gguf_header.h"

namespace soup::engine {

// A model at `path` is one file, not a folder: it must be a GGUF then. (By what is there, not by
// the name: a link's target may be called anything.)
bool IsModelFile(const std::string& path);

class GgufFile {
 public:
  // `tokenizer` false: texts and arrays under "tokenizer." are not kept.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path,
                                                        const AllowedRoots& roots = {},
                                                        bool tokenizer = true);

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }
  const std::vector<GgufTensor>& tensors() const { return header_.tensors; }  // sorted by name
  const GgufTensor* Find(absl::string_view name) const;                       // null: not there

  // Elements [first, first + count) of a tensor, in the order of the file.
  absl::Status Read(const GgufTensor& tensor, int64_t first, int64_t count, float* dst) const;

  // Metadata. Errors: InvalidArgument: not there (unless a value is given for that), of another
  // kind. Lists: null when not there.
  std::vector<std::string> Keys() const;  // sorted
  bool Has(const std::string& key) const;
  absl::StatusOr<int64_t> Int(const std::string& key) const;
  absl::StatusOr<int64_t> IntOr(const std::string& key, int64_t otherwise) const;
  absl::StatusOr<double> Real(const std::string& key) const;
  absl::StatusOr<double> RealOr(const std::string& key, double otherwise) const;
  absl::StatusOr<bool> BoolOr(const std::string& key, bool otherwise) const;
  absl::StatusOr<std::string> Text(const std::string& key) const;
  absl::StatusOr<std::string> TextOr(const std::string& key, std::string otherwise) const;
  template <typename T>
  const std::vector<T>* List(const std::string& key) const {
    const GgufValue* value = Value(key);
    return value == nullptr ? nullptr : std::get_if<std::vector<T>>(value);
  }

  // InvalidArgument "<path>: <what>".
  absl::Status Error(absl::string_view what) const;

 private:
  GgufFile(ConfinedFile file, GgufHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  const GgufValue* Value(const std::string& key) const;
  absl::Status Missing(const std::string& key) const;
  template <typename T>
  absl::StatusOr<T> Get(const std::string& key, const char* what) const;

  ConfinedFile file_;
  GgufHeader header_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_READER_H_
