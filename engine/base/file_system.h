// File system port: the few whole-file and durability operations that the product's state rests on.
// RealFileSystem() uses the host; FaultyFileSystem (fault_file_system.h) injects failures in tests.
//
// Errors: NotFound (ENOENT), PermissionDenied (EACCES, EPERM, EROFS), ResourceExhausted (ENOSPC,
// EDQUOT, EFBIG, with the path, the bytes needed and the bytes free), DataLoss (EIO), Unavailable
// (EMFILE, ENFILE), FailedPrecondition (read of what is no regular file), otherwise Unknown. Each
// message names the path. Thread-safe.
#ifndef SOUP_ENGINE_BASE_FILE_SYSTEM_H_
#define SOUP_ENGINE_BASE_FILE_SYSTEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The whole of a regular file. A pipe, device or folder is refused, without waiting for it.
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) const = 0;
  virtual bool Exists(const std::string& path) const = 0;
  virtual absl::StatusOr<int64_t> FileSize(const std::string& path) const = 0;
  // Names in a directory, sorted, without . and ..
  virtual absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) const = 0;
  // Bytes that an unprivileged writer may still take on the file system that holds `path`.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) const = 0;

  virtual absl::Status CreateDirectories(const std::string& path, int mode = 0700) = 0;
  // Writes all of `data` (created or truncated) and fsyncs the file.
  virtual absl::Status WriteFileSynced(const std::string& path, absl::string_view data) = 0;
  // Appends all of `data`; `sync` fsyncs after.
  virtual absl::Status AppendFile(const std::string& path, absl::string_view data, bool sync) = 0;
  // rename(2), then fsync of the directory that holds `to`.
  virtual absl::Status RenameSynced(const std::string& from, const std::string& to) = 0;
  // fsync of a directory: the names in it are durable after.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  virtual absl::Status Truncate(const std::string& path, int64_t size) = 0;
  // Makes `path` (created when absent, mode 0600) a file of at least `size` bytes whose blocks are
  // reserved, new ones reading as zero (posix_fallocate), and fsyncs it: a later write into a
  // mapping cannot meet a full disk.
  virtual absl::Status ReserveFile(const std::string& path, int64_t size) = 0;
  // Removes a file; absent is OK.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Removes a tree; absent is OK.
  virtual absl::Status RemoveTree(const std::string& path) = 0;
};

FileSystem& RealFileSystem();

// temp file beside `path`, fsync, rename, fsync of the directory: readers see the old or the new
// whole. On any failure the temporary is removed and the old file stands.
absl::Status WriteFileAtomically(FileSystem& fs, const std::string& path, absl::string_view data);

// Status for an errno of an operation on a path; ENOSPC, EDQUOT and EFBIG become ResourceExhausted
// with `needed_bytes` and the bytes free there.
absl::Status ErrnoStatus(int error, absl::string_view operation, const std::string& path,
                         int64_t needed_bytes = 0);

// Descriptors ran out, here or in a library: it passes when others have closed theirs.
bool OutOfDescriptors(const absl::Status& status);

std::string JoinPath(absl::string_view a, absl::string_view b);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_FILE_SYSTEM_H_
