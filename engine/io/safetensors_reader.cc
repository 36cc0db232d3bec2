#include "engine/io/safetensors_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/file_system.h"
#include "engine/base/lfs_pointer.h"
#include "engine/base/status_macros.h"
#include "engine/io/safetensors_header.h"

namespace soup::engine {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";
constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr char kIncomplete[] = "the download looks incomplete: fetch the file again";

absl::Status AtPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::Status TooShort(const std::string& path, int64_t needed, int64_t size) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": its header needs ", needed, " bytes and the file has ", size, ": ", kIncomplete));
}

// True for a link that leads nowhere, too: such a file is named in an error, never skipped.
bool IsThere(const std::string& path) {
  struct stat st;
  return lstat(path.c_str(), &st) == 0;
}

uint64_t LittleEndian64(const uint8_t* p) {
  uint64_t v = 0;
  for (int i = 7; i >= 0; --i) v = v << 8 | p[i];
  return v;
}

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;  // cannot overflow: checked when the header was read
  return n;
}

std::string TensorInfo::ShapeText() const {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// SafetensorsFile -------------------------------------------------------------------------------

struct SafetensorsFile::Rep {
  explicit Rep(ConfinedFile f) : file(std::move(f)) {}
  ConfinedFile file;
  SafetensorsHeader header;
};

SafetensorsFile::SafetensorsFile() = default;
SafetensorsFile::~SafetensorsFile() = default;

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path,
                                                                       const AllowedRoots& roots) {
  SOUP_ASSIGN_OR_RETURN(ConfinedFile file, ConfinedFile::Open(path, roots));
  const int64_t size = file.size();
  if (size < kLengthBytes) return TooShort(path, kLengthBytes, size);
  uint8_t length_field[kLengthBytes];
  SOUP_RETURN_IF_ERROR(file.Read(0, kLengthBytes, length_field));
  const uint64_t length = LittleEndian64(length_field);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": its header claims ", length, " bytes (at most ", kMaxHeaderBytes,
        " are accepted; the file has ", size, "): this is not a safetensors file, or it is damaged",
        LfsPointerHint(
            {reinterpret_cast<const char*>(length_field), static_cast<size_t>(kLengthBytes)})));
  }
  const int64_t header_bytes = static_cast<int64_t>(length);
  if (header_bytes > size - kLengthBytes) return TooShort(path, kLengthBytes + header_bytes, size);
  std::string text(static_cast<size_t>(header_bytes), '\0');
  SOUP_RETURN_IF_ERROR(file.Read(kLengthBytes, header_bytes, text.data()));

  auto header = ParseSafetensorsHeader(text);
  if (!header.ok()) return AtPath(path, header.status());
  const int64_t data_start = kLengthBytes + header_bytes;
  int64_t needed;
  if (__builtin_add_overflow(data_start, header->data_bytes, &needed)) needed = INT64_MAX;
  if (size < needed) return TooShort(path, needed, size);
  if (size > needed) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its header accounts for ", needed, " bytes and the file has ", size,
                     ": what follows the last tensor belongs to nothing"));
  }
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile);
  out->rep_ = std::make_unique<Rep>(std::move(file));
  out->rep_->header = *std::move(header);
  for (TensorInfo& t : out->rep_->header.tensors) t.offset += data_start;
  return out;
}

const std::string& SafetensorsFile::path() const { return rep_->file.path(); }
const std::vector<TensorInfo>& SafetensorsFile::tensors() const { return rep_->header.tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return rep_->header.metadata;
}

const TensorInfo* SafetensorsFile::Find(absl::string_view name) const {
  const auto& tensors = rep_->header.tensors;
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const TensorInfo& t, absl::string_view n) { return t.name < n; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

absl::Status SafetensorsFile::Read(const TensorInfo& tensor, int64_t first, int64_t bytes,
                                   void* dst) const {
  if (first < 0 || bytes < 0 || first > tensor.bytes || bytes > tensor.bytes - first) {
    return absl::OutOfRangeError(absl::StrCat(path(), ": bytes ", first, " + ", bytes,
                                              " of tensor ", tensor.name, ", which has ",
                                              tensor.bytes));
  }
  return rep_->file.Read(tensor.offset + first, bytes, dst);
}

absl::StatusOr<std::vector<uint8_t>> SafetensorsFile::ReadBytes(absl::string_view name) const {
  const TensorInfo* t = Find(name);
  if (t == nullptr) return absl::NotFoundError(absl::StrCat(path(), " has no tensor ", name));
  std::vector<uint8_t> bytes(static_cast<size_t>(t->bytes));
  SOUP_RETURN_IF_ERROR(Read(*t, 0, t->bytes, bytes.data()));
  return bytes;
}

namespace {

// dst[i] = convert(i-th element of type T in raw)
template <typename T, typename Dst, typename Convert>
void ConvertAll(const std::vector<uint8_t>& raw, std::vector<Dst>& dst, Convert convert) {
  for (size_t i = 0; i < dst.size(); ++i) {
    T v;
    std::memcpy(&v, raw.data() + i * sizeof(T), sizeof(T));
    dst[i] = convert(v);
  }
}

absl::Status WrongKind(const std::string& path, const TensorInfo& t, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": tensor ", t.name, " is ", DTypeName(t.dtype), ", not ", wanted));
}

}  // namespace

absl::StatusOr<std::vector<float>> SafetensorsFile::ReadF32(absl::string_view name) const {
  SOUP_ASSIGN_OR_RETURN(const std::vector<uint8_t> raw, ReadBytes(name));
  const TensorInfo& t = *Find(name);
  std::vector<float> out(static_cast<size_t>(t.elements()));
  switch (t.dtype) {
    case DType::kF32:
      ConvertAll<float>(raw, out, [](float v) { return v; });
      return out;
    case DType::kF64:
      ConvertAll<double>(raw, out, [](double v) { return static_cast<float>(v); });
      return out;
    case DType::kBF16:
      ConvertAll<uint16_t>(raw, out, Bf16ToF32);
      return out;
    case DType::kF16:
      ConvertAll<uint16_t>(raw, out, F16ToF32);
      return out;
    default:
      return WrongKind(path(), t, "a floating point type");
  }
}

absl::StatusOr<std::vector<int64_t>> SafetensorsFile::ReadI64(absl::string_view name) const {
  SOUP_ASSIGN_OR_RETURN(const std::vector<uint8_t> raw, ReadBytes(name));
  const TensorInfo& t = *Find(name);
  std::vector<int64_t> out(static_cast<size_t>(t.elements()));
  const auto widen = [](auto v) { return static_cast<int64_t>(v); };
  switch (t.dtype) {
    case DType::kI64:
      ConvertAll<int64_t>(raw, out, widen);
      return out;
    case DType::kI32:
      ConvertAll<int32_t>(raw, out, widen);
      return out;
    case DType::kU8:
    case DType::kBool:
      ConvertAll<uint8_t>(raw, out, widen);
      return out;
    default:
      return WrongKind(path(), t, "an integer type");
  }
}

// SafetensorsCheckpoint -------------------------------------------------------------------------

struct SafetensorsCheckpoint::Rep {
  std::string folder;
  std::vector<std::string> shard_names;
  std::vector<std::unique_ptr<SafetensorsFile>> shards;  // parallel to shard_names
  std::map<std::string, Located, std::less<>> tensors;
  int64_t total_bytes = 0;
  std::vector<std::string> warnings;
};

SafetensorsCheckpoint::SafetensorsCheckpoint() = default;
SafetensorsCheckpoint::~SafetensorsCheckpoint() = default;

namespace {

// tensor name -> shard name
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& path, const AllowedRoots& roots) {
  SOUP_ASSIGN_OR_RETURN(const ConfinedFile file, ConfinedFile::Open(path, roots));
  SOUP_ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kMaxIndexBytes));
  // What is nested deeper than the format goes is dropped, so that it costs no memory.
  const auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return depth <= 3;
  };
  const nlohmann::json root = nlohmann::json::parse(text, shallow, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object: ", kIncomplete));
  }
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no weight_map"));
  }
  WeightMap out;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map gives no file name for ", tensor));
    }
    const std::string name = shard.get<std::string>();
    if (name.empty() || name == "." || name == ".." || absl::StrContains(name, "/") ||
        absl::StrContains(name, absl::string_view("\0", 1))) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map sends ", tensor, " to '",
                                                     name, "', which is not a plain file name"));
    }
    out[tensor] = name;
  }
  return out;
}

// Readers differ in which of two tensors of one name they take.
absl::Status CheckUnambiguous(const std::string& folder,
                              const std::vector<std::unique_ptr<SafetensorsFile>>& shards) {
  std::map<absl::string_view, const SafetensorsFile*> owner;
  for (const auto& shard : shards) {
    for (const TensorInfo& t : shard->tensors()) {
      const auto [it, first] = owner.try_emplace(t.name, shard.get());
      if (!first) {
        return absl::InvalidArgumentError(
            absl::StrCat(folder, ": tensor ", t.name, " is in two shards, ", it->second->path(),
                         " and ", shard->path(), ": fetch the model again into an empty folder"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status NoWeights(const std::string& folder) {
  std::string found;
  const auto names = RealFileSystem().ListDirectory(folder);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".bin") ||
        absl::EndsWith(name, ".gguf")) {
      found = absl::StrCat("; it holds ", name, ", which is not read");
      break;
    }
  }
  return absl::NotFoundError(absl::StrCat(folder, " has neither ", kSingleName, " nor ", kIndexName,
                                          found, ": is it a Hugging Face model folder?"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsCheckpoint>> SafetensorsCheckpoint::Open(
    const std::string& folder, const AllowedRoots& roots) {
  SOUP_RETURN_IF_ERROR(ResolveFolder(folder, roots).status());
  std::unique_ptr<SafetensorsCheckpoint> out(new SafetensorsCheckpoint);
  out->rep_ = std::make_unique<Rep>();
  Rep& rep = *out->rep_;
  rep.folder = folder;

  const std::string index_path = JoinPath(folder, kIndexName);
  const bool indexed = IsThere(index_path);
  WeightMap map;
  if (indexed) {
    SOUP_ASSIGN_OR_RETURN(map, ReadIndex(index_path, roots));
    std::set<std::string> names;
    for (const auto& [tensor, shard] : map) names.insert(shard);
    rep.shard_names.assign(names.begin(), names.end());
    if (names.count(kSingleName) == 0 && IsThere(JoinPath(folder, kSingleName))) {
      rep.warnings.push_back(absl::StrCat(JoinPath(folder, kSingleName), " is not named by ",
                                          kIndexName, " and was ignored"));
    }
    std::vector<std::string> missing;
    for (const std::string& name : rep.shard_names) {
      if (!IsThere(JoinPath(folder, name))) missing.push_back(name);
    }
    if (!missing.empty()) {
      return absl::NotFoundError(
          absl::StrCat(folder, ": ", missing.size(), " of ", rep.shard_names.size(), " files that ",
                       kIndexName, " names are not there (",
                       absl::StrJoin(missing, ", ").substr(0, 1000), "): ", kIncomplete));
    }
  } else if (IsThere(JoinPath(folder, kSingleName))) {
    rep.shard_names = {kSingleName};
  } else {
    return NoWeights(folder);
  }

  std::map<std::string, const SafetensorsFile*> by_name;
  for (const std::string& name : rep.shard_names) {
    SOUP_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(JoinPath(folder, name), roots));
    by_name[name] = file.get();
    rep.shards.push_back(std::move(file));
  }
  if (!indexed) {
    for (const TensorInfo& t : rep.shards[0]->tensors()) {
      rep.tensors[t.name] = {rep.shards[0].get(), &t};
      rep.total_bytes += t.bytes;
    }
    return out;
  }
  SOUP_RETURN_IF_ERROR(CheckUnambiguous(folder, rep.shards));
  for (const auto& [tensor, shard] : map) {
    const SafetensorsFile* file = by_name[shard];
    const TensorInfo* info = file->Find(tensor);
    if (info == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, " says that ", tensor, " is in ", shard,
                       ", but that file has no such tensor: fetch the model again"));
    }
    rep.tensors[tensor] = {file, info};
    rep.total_bytes += info->bytes;
  }
  return out;
}

SafetensorsCheckpoint::Located SafetensorsCheckpoint::Find(absl::string_view name) const {
  const auto it = rep_->tensors.find(name);
  return it == rep_->tensors.end() ? Located() : it->second;
}

std::vector<std::string> SafetensorsCheckpoint::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, located] : rep_->tensors) names.push_back(name);
  return names;
}

const std::vector<std::string>& SafetensorsCheckpoint::shard_names() const {
  return rep_->shard_names;
}
const std::string& SafetensorsCheckpoint::folder() const { return rep_->folder; }
int64_t SafetensorsCheckpoint::total_bytes() const { return rep_->total_bytes; }
const std::vector<std::string>& SafetensorsCheckpoint::warnings() const { return rep_->warnings; }

}  // namespace soup::engine
