#include "daemon/control/storage_watch.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/base/log.h"

namespace soup::daemon {
namespace {

constexpr int64_t kLeastBytes = 64 << 10;
constexpr int64_t kMoreBytes = int64_t{1} << 20;
// What a quota or a limit refuses shows in no number of free bytes.
constexpr int64_t kMostBytes = int64_t{16} << 20;

}  // namespace

StorageWatch::StorageWatch(engine::FileSystem* fs, std::vector<std::string> folders)
    : fs_(fs), folders_(std::move(folders)), probe_bytes_(folders_.size(), kLeastBytes) {}

void StorageWatch::Failed(absl::string_view message) {
  std::vector<int64_t> probe_bytes;
  for (const std::string& path : folders_) {
    const auto free_bytes = fs_->FreeBytes(path);
    probe_bytes.push_back(
        std::min(free_bytes.ok() ? *free_bytes + kMoreBytes : kMoreBytes, kMostBytes));
  }
  absl::MutexLock lock(&mu_);
  if (message_.empty()) {
    SOUP_LOG(kWarn, "storage") << "not healthy: " << message;
  }
  proven_ = false;
  message_ = std::string(message);
  probe_bytes_ = std::move(probe_bytes);
  ++failures_;
}

void StorageWatch::Wrote() {
  absl::MutexLock lock(&mu_);
  if (!message_.empty()) {
    SOUP_LOG(kInfo, "storage") << "healthy again";
  }
  proven_ = true;
  message_.clear();
}

absl::Status StorageWatch::status() const {
  absl::MutexLock lock(&mu_);
  return message_.empty() ? absl::OkStatus() : absl::UnavailableError(message_);
}

void StorageWatch::Probe() {
  std::vector<int64_t> bytes;
  int64_t failures = 0;
  {
    absl::MutexLock lock(&mu_);
    if (proven_) return;
    bytes = probe_bytes_;
    failures = failures_;
  }
  absl::Status tried;
  for (size_t i = 0; i < folders_.size(); ++i) {
    const std::string path = engine::JoinPath(folders_[i], ".room-probe");
    // Twice as much has to be free: the probe must not take the last room from a job.
    const auto free_bytes = fs_->FreeBytes(folders_[i]);
    tried.Update(free_bytes.ok() && *free_bytes < 2 * bytes[i]
                     ? engine::ErrnoStatus(ENOSPC, "write to", folders_[i], 2 * bytes[i])
                     : fs_->ReserveFile(path, bytes[i]));
    fs_->Remove(path).IgnoreError();
  }
  {
    absl::MutexLock lock(&mu_);
    if (failures != failures_) return;  // another write failed meanwhile
    if (!tried.ok() && !message_.empty()) return;
  }
  if (tried.ok()) {
    Wrote();
  } else {
    Failed(tried.message());
  }
}

}  // namespace soup::daemon
