#include "cache/weight_reader.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/dtype.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

using engine::DType;

constexpr uint16_t kBf16Exponent = 0x7f80;

// Index of the first NaN or infinity; -1: none.
int64_t FirstNotFinite(const uint16_t* values, int64_t n) {
  uint32_t any = 0;
  for (int64_t i = 0; i < n; ++i) any |= (values[i] & kBf16Exponent) == kBf16Exponent;
  if (any == 0) return -1;
  for (int64_t i = 0; i < n; ++i) {
    if ((values[i] & kBf16Exponent) == kBf16Exponent) return i;
  }
  return -1;
}

}  // namespace

absl::Status CheckWeight(const LocatedTensor& at, const std::vector<int64_t>& shape) {
  const engine::TensorInfo& t = *at.tensor;
  if (t.shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(at.file->path(), ": tensor ", t.name, " has shape ", t.ShapeText(),
                     ", config.json asks for [", absl::StrJoin(shape, ", "), "]"));
  }
  if (t.dtype != DType::kBF16 && t.dtype != DType::kF16 && t.dtype != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(at.file->path(), ": tensor ", t.name, " is ",
                                                   engine::DTypeName(t.dtype),
                                                   "; weights must be BF16, F16 or F32"));
  }
  return absl::OkStatus();
}

absl::Status NotFinite(const LocatedTensor& at, int64_t index) {
  const engine::TensorInfo& t = *at.tensor;
  std::string where = absl::StrCat("index ", index);
  if (t.shape.size() == 2) {
    where =
        absl::StrCat("row ", index / t.shape[1], ", column ", index % t.shape[1], " (", where, ")");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      at.file->path(), ": tensor ", t.name, " holds a NaN or an infinity (as bf16) at ", where,
      ": every run on it would be poisoned; fetch the model again or mend it"));
}

absl::Status ReadWeights(const LocatedTensor& at, int64_t first, int64_t count, uint16_t* dst) {
  const DType dtype = at.tensor->dtype;
  const int64_t width = engine::DTypeBytes(dtype);
  if (dtype == DType::kBF16) {
    SOUP_RETURN_IF_ERROR(at.file->Read(*at.tensor, first * width, count * width, dst));
  } else {
    const auto raw = std::make_unique<uint8_t[]>(static_cast<size_t>(count * width));
    SOUP_RETURN_IF_ERROR(at.file->Read(*at.tensor, first * width, count * width, raw.get()));
    for (int64_t i = 0; i < count; ++i) {
      float value;
      if (dtype == DType::kF32) {
        std::memcpy(&value, raw.get() + i * width, sizeof value);
      } else {
        uint16_t half;
        std::memcpy(&half, raw.get() + i * width, sizeof half);
        value = engine::F16ToF32(half);
      }
      dst[i] = engine::F32ToBf16(value);
    }
  }
  const int64_t bad = FirstNotFinite(dst, count);
  return bad < 0 ? absl::OkStatus() : NotFinite(at, first + bad);
}

}  // namespace soup::cache
