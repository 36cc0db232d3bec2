#include "engine/io/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr size_t kAppendBytes = 4 << 20;

struct Prepared {
  std::string prefix;  // length field and header
  std::vector<const TensorToWrite*> order;
};

absl::Status CheckSize(const TensorToWrite& t) {
  int64_t bytes = DTypeBytes(t.dtype);
  for (int64_t d : t.shape) {
    if (d < 0 || __builtin_mul_overflow(bytes, d, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", t.name, ": impossible shape"));
    }
  }
  if (bytes != static_cast<int64_t>(t.data.size())) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", t.name, ": its shape needs ", bytes,
                                                   " bytes, ", t.data.size(), " were given"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Prepared> Prepare(absl::Span<const TensorToWrite> tensors,
                                 const std::map<std::string, std::string>& metadata) {
  Prepared out;
  for (const TensorToWrite& t : tensors) {
    SOUP_RETURN_IF_ERROR(CheckSize(t));
    out.order.push_back(&t);
  }
  // Widest elements first, so that every tensor is aligned to its element; then by name.
  std::sort(out.order.begin(), out.order.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    const int64_t widths[] = {DTypeBytes(a->dtype), DTypeBytes(b->dtype)};
    return widths[0] != widths[1] ? widths[0] > widths[1] : a->name < b->name;
  });
  nlohmann::json header;  // keys sorted
  header["__metadata__"] = metadata;
  header["__metadata__"].emplace("format", "pt");
  int64_t offset = 0;
  for (const TensorToWrite* t : out.order) {
    if (header.contains(t->name)) {
      return absl::InvalidArgumentError(absl::StrCat("two tensors have the name ", t->name));
    }
    const int64_t end = offset + static_cast<int64_t>(t->data.size());
    header[t->name] = {
        {"dtype", DTypeName(t->dtype)}, {"shape", t->shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor's name is not UTF-8: ", e.what()));
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  for (int i = 0; i < 8; ++i) {
    out.prefix.push_back(static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i) & 0xff));
  }
  out.prefix += text;
  return out;
}

absl::string_view View(absl::Span<const uint8_t> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// Small tensors are gathered, so that an adapter of hundreds of them costs a few writes.
absl::Status WriteParts(FileSystem& fs, const std::string& path, const Prepared& prepared) {
  std::string buffer = prepared.prefix;
  SOUP_RETURN_IF_ERROR(fs.WriteFileSynced(path, ""));
  for (const TensorToWrite* t : prepared.order) {
    if (buffer.size() + t->data.size() > kAppendBytes) {
      SOUP_RETURN_IF_ERROR(fs.AppendFile(path, buffer, /*sync=*/false));
      buffer.clear();
    }
    if (t->data.size() > kAppendBytes) {
      SOUP_RETURN_IF_ERROR(fs.AppendFile(path, View(t->data), /*sync=*/false));
    } else {
      buffer.append(View(t->data).data(), t->data.size());
    }
  }
  return fs.AppendFile(path, buffer, /*sync=*/true);
}

}  // namespace

absl::StatusOr<std::string> SerializeSafetensors(
    absl::Span<const TensorToWrite> tensors, const std::map<std::string, std::string>& metadata) {
  SOUP_ASSIGN_OR_RETURN(Prepared prepared, Prepare(tensors, metadata));
  std::string out = std::move(prepared.prefix);
  for (const TensorToWrite* t : prepared.order) out.append(View(t->data).data(), t->data.size());
  return out;
}

absl::Status WriteSafetensors(FileSystem& fs, const std::string& path,
                              absl::Span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata) {
  SOUP_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(tensors, metadata));
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  absl::Status status = WriteParts(fs, temporary, prepared);
  if (status.ok()) status = fs.RenameSynced(temporary, path);
  if (!status.ok()) fs.Remove(temporary).IgnoreError();
  return status;
}

}  // namespace soup::engine
