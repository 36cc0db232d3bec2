// Parser of a safetensors header: the JSON text between the length field and the data.
//
// Reads without building a tree, so that memory stays within a small multiple of the text whatever
// it holds. Accepts exactly the format: an object of tensors, each with dtype, shape and
// data_offsets once; and __metadata__, an object of strings. Errors: InvalidArgument, naming the
// tensor and the field, without the path (the caller's to add). Thread-safe: no state.
#ifndef SOUP_ENGINE_IO_SAFETENSORS_HEADER_H_
#define SOUP_ENGINE_IO_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/io/safetensors_reader.h"

namespace soup::engine {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // sorted by name; offsets count from the data part's start
  std::map<std::string, std::string> metadata;
  int64_t data_bytes = 0;  // what the tensors need, end to end without gaps
};

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_SAFETENSORS_HEADER_H_
