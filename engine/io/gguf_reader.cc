#include "engine/io/gguf_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr int64_t kReadBlocks = 4096;  // dequantised at a time

}  // namespace

bool IsModelFile(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path,
                                                         const AllowedRoots& roots,
                                                         bool tokenizer) {
  SOUP_ASSIGN_OR_RETURN(ConfinedFile file, ConfinedFile::Open(path, roots));
  auto header = ParseGgufHeader(
      [&file](int64_t offset, int64_t bytes, void* dst) { return file.Read(offset, bytes, dst); },
      file.size(), tokenizer);
  if (!header.ok()) {
    if (!absl::IsInvalidArgument(header.status())) return header.status();
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", header.status().message()));
  }
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(file), *std::move(header)));
}

absl::Status GgufFile::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path(), ": ", what));
}

const GgufTensor* GgufFile::Find(absl::string_view name) const {
  const auto it = std::lower_bound(
      header_.tensors.begin(), header_.tensors.end(), name,
      [](const GgufTensor& t, absl::string_view n) { return absl::string_view(t.name) < n; });
  return it != header_.tensors.end() && absl::string_view(it->name) == name ? &*it : nullptr;
}

absl::Status GgufFile::Read(const GgufTensor& tensor, int64_t first, int64_t count,
                            float* dst) const {
  if (first < 0 || count < 0 || first > tensor.elements() - count)
    return Error(absl::StrCat("a read outside of tensor '", tensor.name, "'"));
  const GgmlTypeInfo& info = TypeInfo(tensor.type);
  std::vector<uint8_t> raw;
  std::vector<float> values;
  while (count > 0) {
    const int64_t block = first / info.block, within = first % info.block;
    const int64_t wanted = (within + count + info.block - 1) / info.block;
    const int64_t blocks = std::min(wanted, kReadBlocks);
    raw.resize(static_cast<size_t>(blocks * info.bytes));
    SOUP_RETURN_IF_ERROR(
        file_.Read(tensor.offset + block * info.bytes, blocks * info.bytes, raw.data()));
    const int64_t n = std::min(count, blocks * info.block - within);
    if (within == 0 && n == blocks * info.block) {
      DequantizeBlocks(tensor.type, raw.data(), blocks, dst);
    } else {
      values.resize(static_cast<size_t>(blocks * info.block));
      DequantizeBlocks(tensor.type, raw.data(), blocks, values.data());
      std::copy_n(values.begin() + within, n, dst);
    }
    first += n;
    count -= n;
    dst += n;
  }
  return absl::OkStatus();
}

const GgufValue* GgufFile::Value(const std::string& key) const {
  const auto it = header_.values.find(key);
  return it == header_.values.end() ? nullptr : &it->second;
}

std::vector<std::string> GgufFile::Keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : header_.values) out.push_back(key);
  return out;
}

bool GgufFile::Has(const std::string& key) const { return Value(key) != nullptr; }

absl::Status GgufFile::Missing(const std::string& key) const {
  return Error(absl::StrCat("the metadata lacks ", key));
}

template <typename T>
absl::StatusOr<T> GgufFile::Get(const std::string& key, const char* what) const {
  const GgufValue* value = Value(key);
  if (value == nullptr) return Missing(key);
  if (const T* held = std::get_if<T>(value)) return *held;
  return Error(absl::StrCat(key, " is no ", what));
}

absl::StatusOr<int64_t> GgufFile::Int(const std::string& key) const {
  return Get<int64_t>(key, "integer");
}
absl::StatusOr<int64_t> GgufFile::IntOr(const std::string& key, int64_t otherwise) const {
  return Has(key) ? Int(key) : otherwise;
}
absl::StatusOr<double> GgufFile::Real(const std::string& key) const {
  return Get<double>(key, "floating-point number");
}
absl::StatusOr<double> GgufFile::RealOr(const std::string& key, double otherwise) const {
  return Has(key) ? Real(key) : otherwise;
}
absl::StatusOr<bool> GgufFile::BoolOr(const std::string& key, bool otherwise) const {
  return Has(key) ? Get<bool>(key, "boolean") : otherwise;
}
absl::StatusOr<std::string> GgufFile::Text(const std::string& key) const {
  return Get<std::string>(key, "text");
}
absl::StatusOr<std::string> GgufFile::TextOr(const std::string& key, std::string otherwise) const {
  return Has(key) ? Text(key) : otherwise;
}

}  // namespace soup::engine
