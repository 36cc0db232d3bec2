#include "engine/base/fault_file_system.h"

#include <utility>

#include "absl/strings/match.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

absl::string_view Name(FileOperation operation) {
  switch (operation) {
    case FileOperation::kRead:
      return "read";
    case FileOperation::kMkdir:
      return "mkdir";
    case FileOperation::kWrite:
      return "write";
    case FileOperation::kFsync:
      return "fsync";
    case FileOperation::kRename:
      return "rename to";
    case FileOperation::kFsyncDirectory:
      return "fsync directory";
    case FileOperation::kReserve:
      return "reserve";
    case FileOperation::kTruncate:
      return "truncate";
    case FileOperation::kRemove:
      return "remove";
    case FileOperation::kAny:
      break;
  }
  return "?";
}

}  // namespace

void FaultyFileSystem::Fail(FileOperation operation, std::string path_part, int error, When when) {
  absl::MutexLock lock(&mutex_);
  rules_.push_back({operation, std::move(path_part), error, when});
}

void FaultyFileSystem::Heal() {
  absl::MutexLock lock(&mutex_);
  rules_.clear();
}

int64_t FaultyFileSystem::failures() const {
  absl::MutexLock lock(&mutex_);
  return failures_;
}

int64_t FaultyFileSystem::operations() const {
  absl::MutexLock lock(&mutex_);
  return operations_;
}

absl::Status FaultyFileSystem::Check(FileOperation operation, const std::string& path,
                                     int64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  ++operations_;
  for (Rule& rule : rules_) {
    if (rule.operation != operation && rule.operation != FileOperation::kAny) continue;
    if (!absl::StrContains(path, rule.path_part)) continue;
    if (rule.when.after > 0) {
      --rule.when.after;
      continue;
    }
    if (rule.when.times == 0) continue;
    if (rule.when.times > 0) --rule.when.times;
    ++failures_;
    return ErrnoStatus(rule.error, Name(operation), path, bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FaultyFileSystem::ReadFile(const std::string& path) const {
  SOUP_RETURN_IF_ERROR(Check(FileOperation::kRead, path, 0));
  return base_.ReadFile(path);
}

absl::StatusOr<int64_t> FaultyFileSystem::FileSize(const std::string& path) const {
  return base_.FileSize(path);
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::ListDirectory(
    const std::string& path) const {
  return base_.ListDirectory(path);
}

absl::StatusOr<int64_t> FaultyFileSystem::FreeBytes(const std::string& path) const {
  return base_.FreeBytes(path);
}

absl::Status FaultyFileSystem::CreateDirectories(const std::string& path, int mode) {
  SOUP_RETURN_IF_ERROR(Check(FileOperation::kMkdir, path, 0));
  return base_.CreateDirectories(path, mode);
}

absl::Status FaultyFileSystem::WriteFileSynced(const std::string& path, absl::string_view data) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (absl::Status status = Check(FileOperation::kWrite, path, bytes); !status.ok()) {
    SOUP_RETURN_IF_ERROR(base_.WriteFileSynced(path, data.substr(0, data.size() / 2)));
    return status;
  }
  SOUP_RETURN_IF_ERROR(base_.WriteFileSynced(path, data));
  return Check(FileOperation::kFsync, path, bytes);
}

absl::Status FaultyFileSystem::AppendFile(const std::string& path, absl::string_view data,
                                          bool sync) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (absl::Status status = Check(FileOperation::kWrite, path, bytes); !status.ok()) {
    SOUP_RETURN_IF_ERROR(base_.AppendFile(path, data.substr(0, data.size() / 2), false));
    return status;
  }
  SOUP_RETURN_IF_ERROR(base_.AppendFile(path, data, sync));
  return sync ? Check(FileOperation::kFsync, path, bytes) : absl::OkStatus();
}

absl::Status FaultyFileSystem::RenameSynced(const std::string& from, const std::string& to) {
  SOUP_RETURN_IF_ERROR(Check(FileOperation::kRename, to, 0));
  SOUP_RETURN_IF_ERROR(base_.RenameSynced(from, to));
  return Check(FileOperation::kFsyncDirectory, to, 0);
}

absl::Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  SOUP_RETURN_IF_ERROR(Check(FileOperation::kFsyncDirectory, path, 0));
  return base_.SyncDirectory(path);
}

absl::Status FaultyFileSystem::Truncate(const std::string& path, int64_t size) {
  SOUP_RETURN_IF_ERROR(Check(FileOperation::kTruncate, path, size));
  return base_.Truncate(path, size);
}

absl::Status FaultyFileSystem::ReserveFile(const std::string& path, int64_t size) {
  if (absl::Status status = Check(FileOperation::kReserve, path, size); !status.ok()) {
    SOUP_RETURN_IF_ERROR(base_.ReserveFile(path, size / 2 + 1));
    return status;
  }
  return base_.ReserveFile(path, size);
}

absl::Status FaultyFileSystem::Remove(const std::string& path) {
  SOUP_RETURN_IF_ERROR(Check(FileOperation::kRemove, path, 0));
  return base_.Remove(path);
}

absl::Status FaultyFileSystem::RemoveTree(const std::string& path) {
  SOUP_RETURN_IF_ERROR(Check(FileOperation::kRemove, path, 0));
  return base_.RemoveTree(path);
}

}  // namespace soup::engine
