// Writer of safetensors files.
//
// Deterministic: tensors are laid out widest element first, then by name; the header's keys are
// sorted, metadata is
// {"format": "pt"} and what the caller adds; equal input gives equal bytes. The header is padded
// with spaces so that data starts at a multiple of 8, as the reference implementation does. Format:
// https://github.com/huggingface/safetensors#format Errors: InvalidArgument (two tensors of one
// name, data of another size than the shape says), and those of FileSystem. Thread-safe: no state.
#ifndef SOUP_ENGINE_IO_SAFETENSORS_WRITER_H_
#define SOUP_ENGINE_IO_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/dtype.h"
#include "engine/base/file_system.h"

namespace soup::engine {

// A tensor to write. `data` is borrowed: little-endian, row-major, product(shape) elements.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> data;
};

// For element types: TensorToWrite t{name, DType::kF32, {r, c}, AsBytes(absl::MakeSpan(vec))}.
template <typename T>
absl::Span<const uint8_t> AsBytes(absl::Span<const T> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
absl::Span<const uint8_t> AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

// The file's bytes.
absl::StatusOr<std::string> SerializeSafetensors(
    absl::Span<const TensorToWrite> tensors,
    const std::map<std::string, std::string>& metadata = {});

// Written beside `path`, fsynced, renamed: readers see the old file or the whole new one. On any
// failure the temporary is removed.
absl::Status WriteSafetensors(FileSystem& fs, const std::string& path,
                              absl::Span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_SAFETENSORS_WRITER_H_
