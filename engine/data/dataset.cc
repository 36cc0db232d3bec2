#include "engine/data/dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/dataset_format.h"

namespace soup::engine {
namespace {

// A read-only mapping of a whole file.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }

  absl::Status Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, "open", path);
    struct stat st;
    if (fstat(fd, &st) != 0) {
      const int error = errno;
      close(fd);
      return ErrnoStatus(error, "stat", path);
    }
    if (!S_ISREG(st.st_mode)) {
      close(fd);
      return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
    }
    size_ = static_cast<size_t>(st.st_size);
    if (size_ > 0) {
      void* p = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
      const int error = errno;
      close(fd);
      if (p == MAP_FAILED) return ErrnoStatus(error, "map", path);
      data_ = static_cast<const char*>(p);
    } else {
      close(fd);
    }
    return absl::OkStatus();
  }

  const char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

uint64_t LoadU64(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

struct PreparedDataset::Rep {
  Mapping mapping;                      // either this
  std::vector<uint64_t> owned_offsets;  // or these three
  std::vector<int32_t> owned_ids;
  std::vector<uint8_t> owned_supervised;

  int64_t train_records = 0;
  int64_t validation_records = 0;
  const uint64_t* offsets = nullptr;  // [records + 1]
  const int32_t* ids = nullptr;       // [tokens]
  const uint8_t* supervised = nullptr;

  RecordView View(int64_t i) const {
    const size_t begin = offsets[i], count = offsets[i + 1] - begin;
    return {absl::MakeConstSpan(ids + begin, count),
            absl::MakeConstSpan(supervised + begin, count)};
  }
  std::vector<int32_t> Lengths(int64_t first, int64_t count) const {
    std::vector<int32_t> out(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      out[i] = static_cast<int32_t>(offsets[first + i + 1] - offsets[first + i]);
    return out;
  }
  absl::Status Parse(const std::string& path);
};

absl::Status PreparedDataset::Rep::Parse(const std::string& path) {
  const auto bad = [&path](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", what, "; the prepared dataset has to be made again"));
  };
  const char* p = mapping.data();
  const uint64_t size = mapping.size();
  if (size < kDatasetFixedBytes) return bad(absl::StrCat("only ", size, " bytes long"));
  if (std::memcmp(p, kDatasetMagic, sizeof kDatasetMagic) != 0)
    return bad("not a prepared dataset");
  if (LoadU64(p + size - 8) != XXH3_64bits(p, size - 8)) return bad("checksum differs");
  const uint64_t header = LoadU64(p + 8);
  if (header % 8 != 0 || header > size - kDatasetFixedBytes) return bad("header size is wrong");
  const char* counts = p + 16 + header;
  const uint64_t train = LoadU64(counts), validation = LoadU64(counts + 8);
  const uint64_t tokens = LoadU64(counts + 16);
  // Bounded by the file's size before they are multiplied.
  if (train > size || validation > size || tokens > size) return bad("counts are wrong");
  const uint64_t records = train + validation;
  if (kDatasetFixedBytes + header + (records + 1) * 8 + tokens * 5 != size)
    return bad("size does not fit the counts");
  offsets = reinterpret_cast<const uint64_t*>(counts + 24);
  ids = reinterpret_cast<const int32_t*>(offsets + records + 1);
  supervised = reinterpret_cast<const uint8_t*>(ids + tokens);
  if (offsets[0] != 0 || offsets[records] != tokens) return bad("offsets are wrong");
  for (uint64_t i = 0; i < records; ++i) {
    if (offsets[i + 1] <= offsets[i] || offsets[i + 1] - offsets[i] > kMaxRecordTokens)
      return bad(absl::StrCat("offsets of record ", i, " are wrong"));
  }
  train_records = static_cast<int64_t>(train);
  validation_records = static_cast<int64_t>(validation);
  return absl::OkStatus();
}

PreparedDataset::PreparedDataset() : rep_(std::make_unique<Rep>()) {}
PreparedDataset::~PreparedDataset() = default;

absl::StatusOr<std::unique_ptr<PreparedDataset>> PreparedDataset::Open(const std::string& path) {
  std::unique_ptr<PreparedDataset> out(new PreparedDataset);
  SOUP_RETURN_IF_ERROR(out->rep_->mapping.Open(path));
  SOUP_RETURN_IF_ERROR(out->rep_->Parse(path));
  return out;
}

std::unique_ptr<PreparedDataset> PreparedDataset::FromRecords(std::vector<TokenRecord> train,
                                                              std::vector<TokenRecord> validation) {
  std::unique_ptr<PreparedDataset> out(new PreparedDataset);
  Rep& rep = *out->rep_;
  rep.train_records = static_cast<int64_t>(train.size());
  rep.validation_records = static_cast<int64_t>(validation.size());
  rep.owned_offsets.push_back(0);
  for (const auto* part : {&train, &validation}) {
    for (const TokenRecord& r : *part) {
      rep.owned_ids.insert(rep.owned_ids.end(), r.ids.begin(), r.ids.end());
      rep.owned_supervised.insert(rep.owned_supervised.end(), r.supervised.begin(),
                                  r.supervised.end());
      rep.owned_supervised.resize(rep.owned_ids.size());  // missing flags: not supervised
      rep.owned_offsets.push_back(rep.owned_ids.size());
    }
  }
  rep.offsets = rep.owned_offsets.data();
  rep.ids = rep.owned_ids.data();
  rep.supervised = rep.owned_supervised.data();
  return out;
}

int64_t PreparedDataset::train_records() const { return rep_->train_records; }
int64_t PreparedDataset::validation_records() const { return rep_->validation_records; }
RecordView PreparedDataset::train(int64_t i) const { return rep_->View(i); }
RecordView PreparedDataset::validation(int64_t i) const {
  return rep_->View(rep_->train_records + i);
}
std::vector<int32_t> PreparedDataset::TrainLengths() const {
  return rep_->Lengths(0, rep_->train_records);
}
std::vector<int32_t> PreparedDataset::ValidationLengths() const {
  return rep_->Lengths(rep_->train_records, rep_->validation_records);
}

}  // namespace soup::engine
