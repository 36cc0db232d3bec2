// A regular file opened for reading, confined by its real path.
//
// Model folders may hold links (a Hugging Face cache is made of them). What counts is where the
// opened file really lies: with allowed roots given, a path whose real location is outside every
// one of them is refused (PermissionDenied), naming the path and where it leads. The check is made
// on the descriptor, so that a link changed in between cannot slip past. Pipes, devices and folders
// are refused (InvalidArgument). Reads are pread: any thread. Move-only owner of the descriptor.
#ifndef SOUP_ENGINE_IO_CONFINED_FILE_H_
#define SOUP_ENGINE_IO_CONFINED_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/unique_fd.h"

namespace soup::engine {

// Folders that files may really lie in. Empty: anywhere.
using AllowedRoots = std::vector<std::string>;

// What identifies a file's content without reading it: equal stamps, equal bytes (a change of
// content moves mtime or ctime; a copy has another inode).
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

class ConfinedFile {
 public:
  static absl::StatusOr<ConfinedFile> Open(const std::string& path, const AllowedRoots& roots = {});

  const std::string& path() const { return path_; }            // as given
  const std::string& real_path() const { return real_path_; }  // where it lies
  int64_t size() const { return stamp_.size; }                 // when it was opened
  const FileStamp& stamp() const { return stamp_; }            // when it was opened
  absl::StatusOr<FileStamp> StampNow() const;                  // of the open file

  // Exactly `bytes` bytes at `offset`. DataLoss when the file ends before (it has shrunk).
  absl::Status Read(int64_t offset, int64_t bytes, void* dst) const;
  // The whole file, refused above `limit_bytes`.
  absl::StatusOr<std::string> ReadAll(int64_t limit_bytes) const;

 private:
  ConfinedFile() = default;
  UniqueFd fd_;
  std::string path_;
  std::string real_path_;
  FileStamp stamp_;
};

// The real path of a folder, checked against the roots in the same way. NotFound,
// PermissionDenied, InvalidArgument (not a folder).
absl::StatusOr<std::string> ResolveFolder(const std::string& path, const AllowedRoots& roots = {});

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_CONFINED_FILE_H_
