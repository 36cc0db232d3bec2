// DatasetWriter of dataset.h. Training and validation records may come in any order, but lie one
// after the other in the file, behind a header that is known last: so tokens and flags go to four
// unlinked spool files first, and Finish puts the file together.
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/dataset_format.h"

namespace soup::engine {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

// A file that is appended to through a small buffer. Owns the descriptor.
class Appender {
 public:
  Appender() = default;
  Appender(const Appender&) = delete;
  Appender& operator=(const Appender&) = delete;
  ~Appender() {
    if (fd_ >= 0) close(fd_);
  }

  // `unlinked`: the name is removed at once, so nothing stays behind whatever happens.
  absl::Status Open(const std::string& path, bool unlinked) {
    path_ = path;
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) return ErrnoStatus(errno, "create", path);
    if (unlinked) unlink(path.c_str());
    return absl::OkStatus();
  }

  absl::Status Append(const void* data, size_t bytes) {
    if (buffer_.size() + bytes > kBufferBytes) {
      SOUP_RETURN_IF_ERROR(Flush());
      if (bytes >= kBufferBytes) return WriteAll(static_cast<const char*>(data), bytes);
    }
    buffer_.append(static_cast<const char*>(data), bytes);
    return absl::OkStatus();
  }

  absl::Status Flush() {
    SOUP_RETURN_IF_ERROR(WriteAll(buffer_.data(), buffer_.size()));
    buffer_.clear();
    return absl::OkStatus();
  }

  absl::Status Sync() {
    SOUP_RETURN_IF_ERROR(Flush());
    if (fsync(fd_) != 0) return ErrnoStatus(errno, "fsync", path_);
    return absl::OkStatus();
  }

  // Feeds everything appended so far to `sink`, a buffer at a time.
  template <typename Sink>
  absl::Status ReadBack(Sink sink) {
    SOUP_RETURN_IF_ERROR(Flush());
    std::string chunk(kBufferBytes, '\0');
    off_t at = 0;
    for (;;) {
      const ssize_t n = pread(fd_, chunk.data(), chunk.size(), at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "read", path_);
      if (n == 0) return absl::OkStatus();
      SOUP_RETURN_IF_ERROR(sink(chunk.data(), static_cast<size_t>(n)));
      at += n;
    }
  }

 private:
  absl::Status WriteAll(const char* p, size_t n) {
    while (n > 0) {
      const ssize_t w = write(fd_, p, n);
      if (w < 0 && errno == EINTR) continue;
      if (w < 0) return ErrnoStatus(errno, "write", path_, static_cast<int64_t>(n));
      p += w;
      n -= static_cast<size_t>(w);
    }
    return absl::OkStatus();
  }

  int fd_ = -1;
  std::string path_;
  std::string buffer_;
};

// One of the two parts of a dataset: what was added to it.
struct Part {
  Appender ids;
  Appender supervised;
  std::vector<uint32_t> lengths;
};

}  // namespace

struct DatasetWriter::Rep {
  std::string path;
  std::string temporary;
  Part train;
  Part validation;
  bool renamed = false;

  absl::Status Add(Part& part, const TokenRecord& record) {
    if (record.ids.empty() || record.ids.size() > kMaxRecordTokens ||
        record.ids.size() != record.supervised.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "record of line ", record.line, " has ", record.ids.size(), " tokens and ",
          record.supervised.size(), " flags; one flag a token and at least one token"));
    }
    SOUP_RETURN_IF_ERROR(part.ids.Append(record.ids.data(), record.ids.size() * sizeof(int32_t)));
    SOUP_RETURN_IF_ERROR(
        part.supervised.Append(record.supervised.data(), record.supervised.size()));
    part.lengths.push_back(static_cast<uint32_t>(record.ids.size()));
    return absl::OkStatus();
  }
};

DatasetWriter::DatasetWriter() : rep_(std::make_unique<Rep>()) {}

DatasetWriter::~DatasetWriter() {
  if (!rep_->renamed) unlink(rep_->temporary.c_str());
}

absl::StatusOr<std::unique_ptr<DatasetWriter>> DatasetWriter::Create(const std::string& path) {
  std::unique_ptr<DatasetWriter> out(new DatasetWriter);
  Rep& rep = *out->rep_;
  rep.path = path;
  rep.temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const auto spool = [&rep](Appender& file, absl::string_view name) {
    const std::string full = absl::StrCat(rep.temporary, ".", name);
    unlink(full.c_str());  // of a process with our number that died between open and unlink
    return file.Open(full, /*unlinked=*/true);
  };
  SOUP_RETURN_IF_ERROR(spool(rep.train.ids, "train_ids"));
  SOUP_RETURN_IF_ERROR(spool(rep.train.supervised, "train_supervised"));
  SOUP_RETURN_IF_ERROR(spool(rep.validation.ids, "validation_ids"));
  SOUP_RETURN_IF_ERROR(spool(rep.validation.supervised, "validation_supervised"));
  return out;
}

absl::Status DatasetWriter::AddTrain(const TokenRecord& record) {
  return rep_->Add(rep_->train, record);
}
absl::Status DatasetWriter::AddValidation(const TokenRecord& record) {
  return rep_->Add(rep_->validation, record);
}

absl::Status DatasetWriter::Finish(const std::string& report_json) {
  Rep& rep = *rep_;
  if (rep.renamed)
    return absl::FailedPreconditionError(absl::StrCat(rep.path, ": already finished"));
  unlink(rep.temporary.c_str());
  Appender file;
  SOUP_RETURN_IF_ERROR(file.Open(rep.temporary, /*unlinked=*/false));
  XXH3_state_t* hash = XXH3_createState();
  if (hash == nullptr) return absl::ResourceExhaustedError("no memory for a checksum");
  XXH3_64bits_reset(hash);
  const auto put = [&](const void* data, size_t bytes) {
    XXH3_64bits_update(hash, data, bytes);
    return file.Append(data, bytes);
  };
  const auto put_u64 = [&](uint64_t v) { return put(&v, sizeof v); };

  const auto body = [&]() -> absl::Status {
    std::string header = report_json;
    header.resize((header.size() + 7) / 8 * 8, ' ');
    SOUP_RETURN_IF_ERROR(put(kDatasetMagic, sizeof kDatasetMagic));
    SOUP_RETURN_IF_ERROR(put_u64(header.size()));
    SOUP_RETURN_IF_ERROR(put(header.data(), header.size()));
    uint64_t tokens = 0;
    for (const Part* part : {&rep.train, &rep.validation})
      for (uint32_t n : part->lengths) tokens += n;
    SOUP_RETURN_IF_ERROR(put_u64(rep.train.lengths.size()));
    SOUP_RETURN_IF_ERROR(put_u64(rep.validation.lengths.size()));
    SOUP_RETURN_IF_ERROR(put_u64(tokens));
    uint64_t offset = 0;
    SOUP_RETURN_IF_ERROR(put_u64(offset));
    for (const Part* part : {&rep.train, &rep.validation}) {
      for (uint32_t n : part->lengths) SOUP_RETURN_IF_ERROR(put_u64(offset += n));
    }
    for (Part* part : {&rep.train, &rep.validation}) SOUP_RETURN_IF_ERROR(part->ids.ReadBack(put));
    for (Part* part : {&rep.train, &rep.validation})
      SOUP_RETURN_IF_ERROR(part->supervised.ReadBack(put));
    const uint64_t sum = XXH3_64bits_digest(hash);
    SOUP_RETURN_IF_ERROR(file.Append(&sum, sizeof sum));
    return file.Sync();
  };
  const absl::Status written = body();
  XXH3_freeState(hash);
  SOUP_RETURN_IF_ERROR(written);
  SOUP_RETURN_IF_ERROR(RealFileSystem().RenameSynced(rep.temporary, rep.path));
  rep.renamed = true;
  return absl::OkStatus();
}

}  // namespace soup::engine
