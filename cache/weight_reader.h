// Weights of a checkpoint as bf16: read, rounded where the file holds more, and checked to be
// finite. Errors: InvalidArgument (type, shape, NaN or infinity: tensor, row and column named),
// those of the reader. Thread-safe.
#ifndef SOUP_CACHE_WEIGHT_READER_H_
#define SOUP_CACHE_WEIGHT_READER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/io/safetensors_reader.h"

namespace soup::cache {

using LocatedTensor = engine::SafetensorsCheckpoint::Located;

absl::Status CheckWeight(const LocatedTensor& at, const std::vector<int64_t>& shape);

// Elements [first, first + count) into dst.
absl::Status ReadWeights(const LocatedTensor& at, int64_t first, int64_t count, uint16_t* dst);

// The refusal of element `index`.
absl::Status NotFinite(const LocatedTensor& at, int64_t index);

}  // namespace soup::cache

#endif  // SOUP_CACHE_WEIGHT_READER_H_
