// Parser of a GGUF header: key-values and tensor descriptions, versions 2 and 3, little-endian.
//
// Nothing that it says is believed before it is compared with what is there: counts and lengths
// against the bytes left (before anything is allocated), types, products of dimensions, offsets,
// alignment; tensors must lie within the file, apart from each other. Memory stays within a small
// multiple of the header, and the header within kMaxGgufHeaderBytes. Errors: InvalidArgument,
// naming the key or tensor, without the path (the caller's to add). Any thread. Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef SOUP_ENGINE_IO_GGUF_HEADER_H_
#define SOUP_ENGINE_IO_GGUF_HEADER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/io/gguf_quant.h"

namespace soup::engine {

inline constexpr int64_t kMaxGgufHeaderBytes = int64_t{256} << 20;

// Integers of every width are int64, floats double; booleans in arrays are integers.
using GgufValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;  // outermost first: [rows, columns], as Hugging Face tells it
  int64_t offset = 0;          // bytes from the file's start
  int64_t bytes = 0;
  int64_t elements() const;
};

struct GgufHeader {
  std::map<std::string, GgufValue> values;
  std::vector<GgufTensor> tensors;  // sorted by name
};

// Exactly `bytes` bytes at `offset`.
using GgufSource = std::function<absl::Status(int64_t offset, int64_t bytes, void* dst)>;

// `size`: of the whole file. With `tokenizer` false, the texts and arrays under "tokenizer." are
// walked over and not kept.
absl::StatusOr<GgufHeader> ParseGgufHeader(const GgufSource& source, int64_t size, bool tokenizer);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_HEADER_H_
