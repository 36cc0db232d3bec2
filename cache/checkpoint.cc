#include "cache/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/dtype.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/io/gguf_model.h"
#include "engine/io/safetensors_reader.h"

namespace soup::cache {
namespace {

using engine::DType;

constexpr int64_t kMaxConfigBytes = 4 << 20;
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

class FolderCheckpoint : public Checkpoint {
 public:
  absl::Status Load(const std::string& folder, const engine::AllowedRoots& roots) {
    path_ = folder;
    SOUP_RETURN_IF_ERROR(engine::ResolveFolder(folder, roots).status());
    const std::string config_path = engine::JoinPath(folder, "config.json");
    SOUP_ASSIGN_OR_RETURN(const engine::ConfinedFile config,
                          engine::ConfinedFile::Open(config_path, roots));
    SOUP_ASSIGN_OR_RETURN(config_json_, config.ReadAll(kMaxConfigBytes));
    SOUP_ASSIGN_OR_RETURN(files_in_, engine::SafetensorsCheckpoint::Open(folder, roots));
    warnings_ = files_in_->warnings();
    total_bytes_ = files_in_->total_bytes();
    for (const std::string& name : files_in_->shard_names())
      files_.push_back(engine::JoinPath(folder, name));
    files_.push_back(config_path);
    for (const std::string& name : files_in_->Names()) {
      const engine::SafetensorsCheckpoint::Located at = files_in_->Find(name);
      const DType type = at.tensor->dtype;
      weights_.push_back({name, at.tensor->shape, engine::DTypeName(type),
                          type == DType::kBF16 || type == DType::kF16 || type == DType::kF32,
                          type == DType::kBF16, at.file->path()});
    }
    SortWeights();
    return absl::OkStatus();
  }

 private:
  absl::Status ReadRounded(const Weight& weight, int64_t first, int64_t count,
                           uint16_t* dst) const override {
    const engine::SafetensorsCheckpoint::Located at = files_in_->Find(weight.name);
    const DType dtype = at.tensor->dtype;
    const int64_t width = engine::DTypeBytes(dtype);
    if (dtype == DType::kBF16) return at.file->Read(*at.tensor, first * width, count * width, dst);
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
    return absl::OkStatus();
  }

  std::unique_ptr<engine::SafetensorsCheckpoint> files_in_;
};

class GgufCheckpoint : public Checkpoint {
 public:
  absl::Status Load(const std::string& path, const engine::AllowedRoots& roots) {
    path_ = path;
    files_ = {path};
    SOUP_ASSIGN_OR_RETURN(model_, engine::GgufModel::Open(path, roots));
    config_json_ = model_->config_json();
    for (const engine::GgufModel::Weight& w : model_->weights()) {
      const engine::GgmlTypeInfo& type = engine::TypeInfo(w.tensor->type);
      weights_.push_back({w.name, w.shape, type.name, /*readable=*/true,
                          w.tensor->type == engine::GgmlType::kBF16, path});
      if (w.first == 0) total_bytes_ += w.tensor->bytes;  // once for all of its experts
    }
    SortWeights();
    return absl::OkStatus();
  }

 private:
  absl::Status ReadRounded(const Weight& weight, int64_t first, int64_t count,
                           uint16_t* dst) const override {
    const engine::GgufModel::Weight* at = model_->Find(weight.name);
    const auto values = std::make_unique<float[]>(static_cast<size_t>(count));
    SOUP_RETURN_IF_ERROR(model_->Read(*at, first, count, values.get()));
    for (int64_t i = 0; i < count; ++i) dst[i] = engine::F32ToBf16(values[i]);
    return absl::OkStatus();
  }

  std::unique_ptr<engine::GgufModel> model_;
};

template <typename T>
absl::StatusOr<std::unique_ptr<Checkpoint>> Loaded(const std::string& path,
                                                   const engine::AllowedRoots& roots) {
  auto out = std::make_unique<T>();
  SOUP_RETURN_IF_ERROR(out->Load(path, roots));
  return std::unique_ptr<Checkpoint>(std::move(out));
}

}  // namespace

int64_t Checkpoint::Weight::elements() const {
  int64_t out = 1;
  for (int64_t n : shape) out *= n;
  return out;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path,
                                                             const engine::AllowedRoots& roots) {
  if (engine::IsModelFile(path)) return Loaded<GgufCheckpoint>(path, roots);
  return Loaded<FolderCheckpoint>(path, roots);
}

void Checkpoint::SortWeights() {
  std::sort(weights_.begin(), weights_.end(),
            [](const Weight& a, const Weight& b) { return a.name < b.name; });
}

const Checkpoint::Weight* Checkpoint::Find(absl::string_view name) const {
  const auto it = std::lower_bound(
      weights_.begin(), weights_.end(), name,
      [](const Weight& w, absl::string_view n) { return absl::string_view(w.name) < n; });
  return it != weights_.end() && absl::string_view(it->name) == name ? &*it : nullptr;
}

absl::Status Checkpoint::Read(const Weight& weight, int64_t first, int64_t count,
                              uint16_t* dst) const {
  SOUP_RETURN_IF_ERROR(ReadRounded(weight, first, count, dst));
  const int64_t bad = FirstNotFinite(dst, count);
  return bad < 0 ? absl::OkStatus() : NotFinite(weight, first + bad);
}

absl::Status CheckWeight(const Checkpoint::Weight& weight, const std::vector<int64_t>& shape) {
  if (weight.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        weight.file, ": tensor ", weight.name, " has shape [", absl::StrJoin(weight.shape, ", "),
        "], config.json asks for [", absl::StrJoin(shape, ", "), "]"));
  }
  if (weight.readable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(weight.file, ": tensor ", weight.name, " is ",
                                                 weight.type,
                                                 "; weights must be BF16, F16 or F32"));
}

absl::Status NotFinite(const Checkpoint::Weight& weight, int64_t index) {
  std::string where = absl::StrCat("index ", index);
  if (weight.shape.size() == 2) {
    where = absl::StrCat("row ", index / weight.shape[1], ", column ", index % weight.shape[1],
                         " (", where, ")");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      weight.file, ": tensor ", weight.name, " holds a NaN or an infinity (as bf16) at ", where,
      ": every run on it would be poisoned; fetch the model again or mend it"));
}

}  // namespace soup::cache
