// FaultyFileSystem: a FileSystem that fails where a test says. It does the work on another one, and
// injects errnos by operation and path, as a disk would: a failed write leaves a part of the bytes,
// a failed fsync leaves all of them, a failed rename leaves the old name, a failed directory fsync
// has renamed.
//
//   FaultyFileSystem fs(RealFileSystem());
//   fs.Fail(FileOperation::kWrite, "state.json", ENOSPC);          // every time
//   fs.Fail(FileOperation::kFsync, "", EIO, {.after = 3, .times = 1});  // the fourth fsync
//
// Thread-safe.
#ifndef SOUP_ENGINE_BASE_FAULT_FILE_SYSTEM_H_
#define SOUP_ENGINE_BASE_FAULT_FILE_SYSTEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/file_system.h"

namespace soup::engine {

enum class FileOperation : uint8_t {
  kRead,
  kMkdir,
  kWrite,  // of WriteFileSynced and AppendFile
  kFsync,  // of a file
  kRename,
  kFsyncDirectory,  // of RenameSynced and SyncDirectory
  kReserve,
  kTruncate,
  kRemove,  // of Remove and RemoveTree
  kAny,
};

class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& base) : base_(base) {}

  struct When {
    int64_t after = 0;   // matching operations that still succeed
    int64_t times = -1;  // failures after that; -1: for ever
  };
  // The operation fails with `error` on paths that contain `path_part` ("": every path).
  void Fail(FileOperation operation, std::string path_part, int error, When when);
  void Fail(FileOperation operation, std::string path_part, int error) {
    Fail(operation, std::move(path_part), error, When{});
  }
  // The disk has room again.
  void Heal();
  // Failures injected so far.
  int64_t failures() const;
  // Operations that could have failed so far; a sweep over `after` covers them all.
  int64_t operations() const;

  absl::StatusOr<std::string> ReadFile(const std::string& path) const override;
  bool Exists(const std::string& path) const override { return base_.Exists(path); }
  absl::StatusOr<int64_t> FileSize(const std::string& path) const override;
  absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) const override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) const override;
  absl::Status CreateDirectories(const std::string& path, int mode) override;
  absl::Status WriteFileSynced(const std::string& path, absl::string_view data) override;
  absl::Status AppendFile(const std::string& path, absl::string_view data, bool sync) override;
  absl::Status RenameSynced(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status Truncate(const std::string& path, int64_t size) override;
  absl::Status ReserveFile(const std::string& path, int64_t size) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveTree(const std::string& path) override;

 private:
  struct Rule {
    FileOperation operation;
    std::string path_part;
    int error = 0;
    When when;
  };
  // The error to inject, as a Status.
  absl::Status Check(FileOperation operation, const std::string& path, int64_t bytes) const;

  FileSystem& base_;
  mutable absl::Mutex mutex_;
  mutable std::vector<Rule> rules_ ABSL_GUARDED_BY(mutex_);
  mutable int64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable int64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_FAULT_FILE_SYSTEM_H_
