#include "daemon/control/step_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::StepRecord;

constexpr size_t kHeaderBytes = 16;
constexpr size_t kRecordBytes = 160;
constexpr size_t kChecksumAt = kRecordBytes - 8;
constexpr size_t kMaxHeldBack = 10'000;
constexpr int64_t kReserveBytes = 64 << 10;
constexpr uint32_t kSkippedFlag = 1;
constexpr uint32_t kValidationFlag = 2;

using Raw = std::array<char, kRecordBytes>;

std::array<char, kHeaderBytes> Header() {
  std::array<char, kHeaderBytes> h{};
  std::memcpy(h.data(), "SOUPSTEP", 8);
  const uint32_t version = 1;
  const uint32_t bytes = kRecordBytes;
  std::memcpy(h.data() + 8, &version, 4);
  std::memcpy(h.data() + 12, &bytes, 4);
  return h;
}

int64_t OffsetOf(int64_t step) {
  return static_cast<int64_t>(kHeaderBytes) + (step - 1) * static_cast<int64_t>(kRecordBytes);
}

// Walks the fields in file order: 8 bytes each.
template <typename Visit>
void ForEachField(StepRecord& s, Visit visit) {
  const auto i64 = [&](int64_t v, auto set) { visit(v, set); };
  const auto f64 = [&](double v, auto set) { visit(v, set); };
  i64(s.step(), [&](int64_t v) { s.set_step(v); });
  f64(s.loss(), [&](double v) { s.set_loss(v); });
  f64(s.grad_norm(), [&](double v) { s.set_grad_norm(v); });
  f64(s.learning_rate(), [&](double v) { s.set_learning_rate(v); });
  i64(s.tokens(), [&](int64_t v) { s.set_tokens(v); });
  i64(s.supervised_tokens(), [&](int64_t v) { s.set_supervised_tokens(v); });
  f64(s.step_seconds(), [&](double v) { s.set_step_seconds(v); });
  f64(s.stall_seconds(), [&](double v) { s.set_stall_seconds(v); });
  i64(s.unix_ms(), [&](int64_t v) { s.set_unix_ms(v); });
  f64(s.validation_loss(), [&](double v) { s.set_validation_loss(v); });
  i64(s.copy_bytes(), [&](int64_t v) { s.set_copy_bytes(v); });
  f64(s.copy_seconds(), [&](double v) { s.set_copy_seconds(v); });
  i64(s.bucket_tail_tokens(), [&](int64_t v) { s.set_bucket_tail_tokens(v); });
  const int64_t flags =
      (s.skipped() ? kSkippedFlag : 0) | (s.has_validation_loss() ? kValidationFlag : 0);
  i64(flags, [&](int64_t v) {
    s.set_skipped((v & kSkippedFlag) != 0);
    s.set_has_validation_loss((v & kValidationFlag) != 0);
  });
  i64(s.padding_tokens(), [&](int64_t v) { s.set_padding_tokens(v); });  // 0 in older records
}

Raw Encode(StepRecord step) {
  Raw raw{};
  size_t at = 0;
  ForEachField(step, [&](auto value, auto) {
    static_assert(sizeof value == 8);
    std::memcpy(raw.data() + at, &value, 8);
    at += 8;
  });
  const uint64_t sum = XXH3_64bits(raw.data(), kChecksumAt);
  std::memcpy(raw.data() + kChecksumAt, &sum, 8);
  return raw;
}

enum class Slot { kRecord, kHole, kDamaged };

Slot Decode(const char* raw, int64_t expected_step, StepRecord* out) {
  uint64_t sum = 0;
  std::memcpy(&sum, raw + kChecksumAt, 8);
  int64_t step = 0;
  std::memcpy(&step, raw, 8);
  if (sum == 0 && step == 0) {
    return std::all_of(raw, raw + kRecordBytes, [](char c) { return c == 0; }) ? Slot::kHole
                                                                               : Slot::kDamaged;
  }
  if (sum != XXH3_64bits(raw, kChecksumAt) || step != expected_step) return Slot::kDamaged;
  out->Clear();
  size_t at = 0;
  ForEachField(*out, [&](auto value, auto set) {
    std::memcpy(&value, raw + at, 8);
    set(value);
    at += 8;
  });
  return Slot::kRecord;
}

absl::StatusOr<size_t> ReadAt(int fd, const std::string& path, char* data, size_t n,
                              int64_t offset) {
  size_t done = 0;
  while (done < n) {
    const ssize_t r = pread(fd, data + done, n - done, offset + static_cast<int64_t>(done));
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return engine::ErrnoStatus(errno, "read", path);
    if (r == 0) break;
    done += static_cast<size_t>(r);
  }
  return done;
}

absl::Status WriteAt(int fd, const std::string& path, const char* data, size_t n, int64_t offset) {
  size_t done = 0;
  while (done < n) {
    const ssize_t w = pwrite(fd, data + done, n - done, offset + static_cast<int64_t>(done));
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) return engine::ErrnoStatus(errno, "write", path, static_cast<int64_t>(n));
    done += static_cast<size_t>(w);
  }
  return absl::OkStatus();
}

// Closes what it holds.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Tail {
  int64_t last_step = 0;
  double last_loss = std::numeric_limits<double>::quiet_NaN();
};

// The last whole record. Damaged or empty records behind it are what a power cut left: not counted.
absl::StatusOr<Tail> FindTail(int fd, const std::string& path) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return engine::ErrnoStatus(errno, "stat", path);
  std::array<char, kHeaderBytes> header{};
  SOUP_ASSIGN_OR_RETURN(const size_t got, ReadAt(fd, path, header.data(), kHeaderBytes, 0));
  if (got < kHeaderBytes) return Tail{};
  if (header != Header()) {
    return absl::DataLossError(absl::StrCat(path, " is not a step log of this version"));
  }
  Tail tail;
  Raw raw;
  StepRecord step;
  for (int64_t n =
           (st.st_size - static_cast<int64_t>(kHeaderBytes)) / static_cast<int64_t>(kRecordBytes);
       n > 0; --n) {
    SOUP_ASSIGN_OR_RETURN(const size_t bytes,
                          ReadAt(fd, path, raw.data(), kRecordBytes, OffsetOf(n)));
    if (bytes == kRecordBytes && Decode(raw.data(), n, &step) == Slot::kRecord) {
      tail.last_step = n;
      tail.last_loss = step.loss();
      break;
    }
  }
  return tail;
}

absl::Status ReadRecords(int fd, const std::string& path, int64_t after_step, int64_t last_step,
                         size_t limit, std::vector<StepRecord>* out) {
  constexpr int64_t kBatch = 256;
  std::vector<char> buffer(kBatch * kRecordBytes);
  for (int64_t next = after_step + 1; next <= last_step && out->size() < limit;) {
    const int64_t count = std::min<int64_t>(
        {kBatch, last_step - next + 1, static_cast<int64_t>(limit - out->size())});
    SOUP_ASSIGN_OR_RETURN(
        const size_t bytes,
        ReadAt(fd, path, buffer.data(), static_cast<size_t>(count) * kRecordBytes, OffsetOf(next)));
    if (bytes < static_cast<size_t>(count) * kRecordBytes) {
      return absl::DataLossError(absl::StrCat(path, " is shorter than its ", last_step, " steps"));
    }
    for (int64_t i = 0; i < count; ++i) {
      StepRecord step;
      switch (Decode(buffer.data() + static_cast<size_t>(i) * kRecordBytes, next + i, &step)) {
        case Slot::kRecord:
          out->push_back(std::move(step));
          break;
        case Slot::kHole:
          break;
        case Slot::kDamaged:
          return absl::DataLossError(
              absl::StrCat(path, ": the record of step ", next + i, " is damaged"));
      }
    }
    next += count;
  }
  return absl::OkStatus();
}

}  // namespace

// A log that is being written. Logs that are only read have no entry.
struct StepLogs::Log {
  explicit Log(std::string p) : path(std::move(p)) {}

  const std::string path;
  absl::Mutex mutex;
  bool loaded ABSL_GUARDED_BY(mutex) = false;
  Fd fd ABSL_GUARDED_BY(mutex);
  Tail tail ABSL_GUARDED_BY(mutex);                    // of the file
  std::deque<StepRecord> held ABSL_GUARDED_BY(mutex);  // a full disk keeps these out of the file
  int64_t reserved_bytes ABSL_GUARDED_BY(mutex) = 0;

  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (loaded) return absl::OkStatus();
    SOUP_RETURN_IF_ERROR(
        engine::RealFileSystem().CreateDirectories(path.substr(0, path.rfind('/'))));
    Fd opened(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (opened.get() < 0) return engine::ErrnoStatus(errno, "open", path);
    SOUP_ASSIGN_OR_RETURN(tail, FindTail(opened.get(), path));
    if (tail.last_step == 0) {
      const auto header = Header();
      SOUP_RETURN_IF_ERROR(WriteAt(opened.get(), path, header.data(), header.size(), 0));
    }
    if (ftruncate(opened.get(), OffsetOf(tail.last_step + 1)) != 0) {
      return engine::ErrnoStatus(errno, "truncate", path);
    }
    fd = std::move(opened);
    loaded = true;
    return absl::OkStatus();
  }

  int64_t LastStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return held.empty() ? tail.last_step : held.back().step();
  }

  absl::Status WriteOne(const StepRecord& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const int64_t offset = OffsetOf(step.step());
    const int64_t end = offset + static_cast<int64_t>(kRecordBytes);
    if (end > reserved_bytes &&
        fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, offset, kReserveBytes) == 0) {
      reserved_bytes = offset + kReserveBytes;  // Best effort: fewer surprises on a full disk.
    }
    const Raw raw = Encode(step);
    const absl::Status written = WriteAt(fd.get(), path, raw.data(), raw.size(), offset);
    if (!written.ok()) {
      // No half record stays; when even this fails, the next open cuts it.
      if (ftruncate(fd.get(), OffsetOf(tail.last_step + 1)) != 0) {
        SOUP_LOG(kWarn, "steps") << "cannot cut " << path << " after a failed write";
      }
      return written;
    }
    tail.last_step = step.step();
    tail.last_loss = step.loss();
    return absl::OkStatus();
  }

  absl::Status WriteHeld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    SOUP_RETURN_IF_ERROR(Load());
    while (!held.empty()) {
      SOUP_RETURN_IF_ERROR(WriteOne(held.front()));
      held.pop_front();
    }
    return absl::OkStatus();
  }
};

StepLogs::StepLogs(std::string jobs_dir) : jobs_dir_(std::move(jobs_dir)) {}
StepLogs::~StepLogs() = default;

std::string StepLogs::PathOf(const std::string& job_id) const {
  return absl::StrCat(jobs_dir_, "/", job_id, "/steps.bin");
}

std::shared_ptr<StepLogs::Log> StepLogs::FindOrMake(const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Log>& log = logs_[job_id];
  if (log == nullptr) log = std::make_shared<Log>(PathOf(job_id));
  return log;
}

std::shared_ptr<StepLogs::Log> StepLogs::Find(const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  const auto it = logs_.find(job_id);
  return it == logs_.end() ? nullptr : it->second;
}

absl::Status StepLogs::Append(const std::string& job_id, const StepRecord& step) {
  const std::shared_ptr<Log> log = FindOrMake(job_id);
  absl::MutexLock lock(&log->mutex);
  const absl::Status loaded = log->Load();
  if (!loaded.ok() && !absl::IsResourceExhausted(loaded)) return loaded;
  if (step.step() <= log->LastStep()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", job_id, ": step ", step.step(),
                                                   " comes after step ", log->LastStep(),
                                                   "; cut the log first"));
  }
  if (log->held.size() >= kMaxHeldBack) {
    return absl::ResourceExhaustedError(absl::StrCat(log->path, ": ", log->held.size(),
                                                     " steps wait for room on the disk; step ",
                                                     step.step(), " is not kept"));
  }
  log->held.push_back(step);
  return log->WriteHeld();
}

absl::Status StepLogs::CutAfter(const std::string& job_id, int64_t step) {
  const std::shared_ptr<Log> log = FindOrMake(job_id);
  absl::MutexLock lock(&log->mutex);
  while (!log->held.empty() && log->held.back().step() > step) log->held.pop_back();
  SOUP_RETURN_IF_ERROR(log->Load());
  if (log->tail.last_step <= step) return absl::OkStatus();
  if (ftruncate(log->fd.get(), OffsetOf(std::max<int64_t>(step, 0) + 1)) != 0) {
    return engine::ErrnoStatus(errno, "truncate", log->path);
  }
  log->reserved_bytes = 0;
  SOUP_ASSIGN_OR_RETURN(log->tail, FindTail(log->fd.get(), log->path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StepRecord>> StepLogs::Read(const std::string& job_id,
                                                       int64_t after_step, int limit) {
  std::vector<StepRecord> steps;
  const size_t most = static_cast<size_t>(std::max(limit, 0));
  after_step = std::max<int64_t>(after_step, 0);
  if (const std::shared_ptr<Log> log = Find(job_id); log != nullptr) {
    absl::MutexLock lock(&log->mutex);
    if (log->loaded) {
      SOUP_RETURN_IF_ERROR(
          ReadRecords(log->fd.get(), log->path, after_step, log->tail.last_step, most, &steps));
    }
    for (const StepRecord& step : log->held) {
      if (steps.size() >= most) break;
      if (step.step() > after_step) steps.push_back(step);
    }
    return steps;
  }
  const std::string path = PathOf(job_id);
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT) return steps;
    return engine::ErrnoStatus(errno, "open", path);
  }
  SOUP_ASSIGN_OR_RETURN(const Tail tail, FindTail(fd.get(), path));
  SOUP_RETURN_IF_ERROR(ReadRecords(fd.get(), path, after_step, tail.last_step, most, &steps));
  return steps;
}

absl::StatusOr<StepSummary> StepLogs::Summary(const std::string& job_id) {
  if (const std::shared_ptr<Log> log = Find(job_id); log != nullptr) {
    absl::MutexLock lock(&log->mutex);
    if (!log->held.empty()) return StepSummary{log->held.back().step(), log->held.back().loss()};
    if (log->loaded) return StepSummary{log->tail.last_step, log->tail.last_loss};
  }
  const std::string path = PathOf(job_id);
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT) return StepSummary{0, std::numeric_limits<double>::quiet_NaN()};
    return engine::ErrnoStatus(errno, "open", path);
  }
  SOUP_ASSIGN_OR_RETURN(const Tail tail, FindTail(fd.get(), path));
  return StepSummary{tail.last_step, tail.last_loss};
}

absl::Status StepLogs::Flush(const std::string& job_id) {
  const std::shared_ptr<Log> log = Find(job_id);
  if (log == nullptr) return absl::OkStatus();
  absl::MutexLock lock(&log->mutex);
  return log->held.empty() ? absl::OkStatus() : log->WriteHeld();
}

void StepLogs::Release(const std::string& job_id) {
  const absl::Status flushed = Flush(job_id);
  if (!flushed.ok()) {
    SOUP_LOG(kError, "steps") << "last steps of " << job_id << " are lost: " << flushed.message();
  }
  absl::MutexLock lock(&mutex_);
  logs_.erase(job_id);
}

}  // namespace soup::daemon
