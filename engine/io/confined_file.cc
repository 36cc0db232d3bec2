#include "engine/io/confined_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

int64_t Nanoseconds(const struct timespec& t) {
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

FileStamp StampOf(const struct stat& st) {
  FileStamp stamp;
  stamp.device = static_cast<uint64_t>(st.st_dev);
  stamp.inode = static_cast<uint64_t>(st.st_ino);
  stamp.size = static_cast<int64_t>(st.st_size);
  stamp.mtime_ns = Nanoseconds(st.st_mtim);
  stamp.ctime_ns = Nanoseconds(st.st_ctim);
  return stamp;
}

absl::StatusOr<std::string> RealPathOfDescriptor(int fd, const std::string& path) {
  char buf[PATH_MAX];
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  const ssize_t n = readlink(link.c_str(), buf, sizeof buf);
  if (n < 0) return ErrnoStatus(errno, "resolve", path);
  if (n == static_cast<ssize_t>(sizeof buf)) return ErrnoStatus(ENAMETOOLONG, "resolve", path);
  return std::string(buf, static_cast<size_t>(n));
}

bool IsInside(const std::string& path, const std::string& folder) {
  if (folder == "/") return true;
  return path == folder || (path.size() > folder.size() && path[folder.size()] == '/' &&
                            path.compare(0, folder.size(), folder) == 0);
}

absl::Status CheckInsideRoots(const std::string& path, const std::string& real_path,
                              const AllowedRoots& roots) {
  if (roots.empty()) return absl::OkStatus();
  for (const std::string& root : roots) {
    char buf[PATH_MAX];
    if (realpath(root.c_str(), buf) != nullptr && IsInside(real_path, buf)) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(path, " really lies at ", real_path, ", outside the allowed model roots (",
                   absl::StrJoin(roots, ", "),
                   "): move the file under one of them, or have the administrator add a root"));
}

absl::Status PreadAll(int fd, int64_t offset, int64_t bytes, void* dst, const std::string& path) {
  char* p = static_cast<char*>(dst);
  while (bytes > 0) {
    const ssize_t n = pread(fd, p, static_cast<size_t>(bytes), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "read", path);
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat("read ", path, ": the file ends at byte ", offset,
                                              ", ", bytes,
                                              " bytes early: it has changed while in use"));
    }
    p += n;
    offset += n;
    bytes -= n;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ConfinedFile> ConfinedFile::Open(const std::string& path,
                                                const AllowedRoots& roots) {
  ConfinedFile file;
  // O_NONBLOCK: a pipe put where a file is expected must not block us; no effect on regular files.
  file.fd_ = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.fd_.valid()) return ErrnoStatus(errno, "open", path);
  SOUP_ASSIGN_OR_RETURN(file.real_path_, RealPathOfDescriptor(file.fd_.get(), path));
  SOUP_RETURN_IF_ERROR(CheckInsideRoots(path, file.real_path_, roots));
  struct stat st;
  if (fstat(file.fd_.get(), &st) != 0) return ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(st.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  file.path_ = path;
  file.stamp_ = StampOf(st);
  return file;
}

absl::StatusOr<FileStamp> ConfinedFile::StampNow() const {
  struct stat st;
  if (fstat(fd_.get(), &st) != 0) return ErrnoStatus(errno, "stat", path_);
  return StampOf(st);
}

absl::Status ConfinedFile::Read(int64_t offset, int64_t bytes, void* dst) const {
  return PreadAll(fd_.get(), offset, bytes, dst, path_);
}

absl::StatusOr<std::string> ConfinedFile::ReadAll(int64_t limit_bytes) const {
  if (size() > limit_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " has ", size(), " bytes; at most ", limit_bytes, " are accepted"));
  }
  std::string text(static_cast<size_t>(size()), '\0');
  SOUP_RETURN_IF_ERROR(Read(0, size(), text.data()));
  return text;
}

absl::StatusOr<std::string> ResolveFolder(const std::string& path, const AllowedRoots& roots) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return ErrnoStatus(errno, "open", path);
  SOUP_ASSIGN_OR_RETURN(std::string real, RealPathOfDescriptor(fd.get(), path));
  SOUP_RETURN_IF_ERROR(CheckInsideRoots(path, real, roots));
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return ErrnoStatus(errno, "stat", path);
  if (!S_ISDIR(st.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a folder"));
  }
  return real;
}

}  // namespace soup::engine
