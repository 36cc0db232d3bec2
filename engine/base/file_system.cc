#include "engine/base/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status WriteAll(int fd, absl::string_view data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "write", path, static_cast<int64_t>(data.size()));
    }
    data.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status FsyncDirectory(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "open directory", path);
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, "fsync directory", path);
  return absl::OkStatus();
}

std::string Parent(const std::string& path) {
  const std::string p = std::filesystem::path(path).parent_path().string();
  return p.empty() ? "." : p;
}

// What is read to its end has to have one, and must not make its reader wait: a pipe does.
absl::Status CheckRegular(int fd, const std::string& path) {
  struct stat st;
  if (fstat(fd, &st) != 0) return ErrnoStatus(errno, "stat", path);
  if (S_ISREG(st.st_mode)) return absl::OkStatus();
  const char* what = S_ISFIFO(st.st_mode)                         ? "a pipe (FIFO)"
                     : S_ISDIR(st.st_mode)                        ? "a folder"
                     : S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode) ? "a device"
                                                                  : "a socket";
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", what, ", not a regular file: put the file itself there"));
}

class HostFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::string> ReadFile(const std::string& path) const override {
    Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd.get() < 0 && errno == ENXIO) {
      return absl::FailedPreconditionError(
          absl::StrCat(path,
                       " is a socket or a device, not a regular file: put the file itself "
                       "there"));
    }
    if (fd.get() < 0) return ErrnoStatus(errno, "open", path);
    SOUP_RETURN_IF_ERROR(CheckRegular(fd.get(), path));
    // Only the opening was not to wait: a file system in user space may heed the flag in reads.
    if (fcntl(fd.get(), F_SETFL, 0) != 0) return ErrnoStatus(errno, "open", path);
    std::string out;
    char buf[1 << 16];
    for (;;) {
      const ssize_t n = read(fd.get(), buf, sizeof buf);
      if (n < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus(errno, "read", path);
      }
      if (n == 0) return out;
      out.append(buf, static_cast<size_t>(n));
    }
  }

  bool Exists(const std::string& path) const override { return access(path.c_str(), F_OK) == 0; }

  absl::StatusOr<int64_t> FileSize(const std::string& path) const override {
    struct stat st;
    if (stat(path.c_str(), &st) != 0) return ErrnoStatus(errno, "stat", path);
    return static_cast<int64_t>(st.st_size);
  }

  absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) const override {
    std::error_code ec;
    std::vector<std::string> names;
    std::filesystem::directory_iterator it(path, ec), end;
    for (; !ec && it != end; it.increment(ec)) names.push_back(it->path().filename().string());
    if (ec) return ErrnoStatus(ec.value(), "list", path);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<int64_t> FreeBytes(const std::string& path) const override {
    struct statvfs vfs;
    std::string p = path;
    while (statvfs(p.c_str(), &vfs) != 0) {
      if (errno != ENOENT || p == "/" || p == ".") return ErrnoStatus(errno, "statvfs", path);
      p = Parent(p);
    }
    return static_cast<int64_t>(vfs.f_bavail) * static_cast<int64_t>(vfs.f_frsize);
  }

  absl::Status CreateDirectories(const std::string& path, int mode) override {
    if (path.empty())
      return absl::InvalidArgumentError("cannot create a directory with an empty name");
    std::string prefix;
    for (const auto& part : std::filesystem::path(path)) {
      prefix = prefix.empty() ? part.string() : JoinPath(prefix, part.string());
      if (mkdir(prefix.c_str(), static_cast<mode_t>(mode)) != 0 && errno != EEXIST) {
        const int error = errno;
        struct stat st;
        if (stat(prefix.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) continue;
        return ErrnoStatus(error, "mkdir", prefix);
      }
    }
    struct stat st;
    if (stat(path.c_str(), &st) != 0) return ErrnoStatus(errno, "stat", path);
    if (!S_ISDIR(st.st_mode)) return ErrnoStatus(ENOTDIR, "mkdir", path);
    return absl::OkStatus();
  }

  absl::Status WriteFileSynced(const std::string& path, absl::string_view data) override {
    Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (fd.get() < 0) return ErrnoStatus(errno, "create", path, static_cast<int64_t>(data.size()));
    SOUP_RETURN_IF_ERROR(WriteAll(fd.get(), data, path));
    if (fsync(fd.get()) != 0) {
      return ErrnoStatus(errno, "fsync", path, static_cast<int64_t>(data.size()));
    }
    return absl::OkStatus();
  }

  absl::Status AppendFile(const std::string& path, absl::string_view data, bool sync) override {
    Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (fd.get() < 0) return ErrnoStatus(errno, "open", path, static_cast<int64_t>(data.size()));
    SOUP_RETURN_IF_ERROR(WriteAll(fd.get(), data, path));
    if (sync && fsync(fd.get()) != 0) {
      return ErrnoStatus(errno, "fsync", path, static_cast<int64_t>(data.size()));
    }
    return absl::OkStatus();
  }

  absl::Status RenameSynced(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, "rename to", to);
    return FsyncDirectory(Parent(to));
  }

  absl::Status SyncDirectory(const std::string& path) override { return FsyncDirectory(path); }

  absl::Status ReserveFile(const std::string& path, int64_t size) override {
    Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (fd.get() < 0) return ErrnoStatus(errno, "create", path, size);
    int error;
    do {
      error = posix_fallocate(fd.get(), 0, size);
    } while (error == EINTR);
    if (error != 0) return ErrnoStatus(error, "reserve", path, size);
    if (fsync(fd.get()) != 0) return ErrnoStatus(errno, "fsync", path, size);
    return absl::OkStatus();
  }

  absl::Status Truncate(const std::string& path, int64_t size) override {
    if (truncate(path.c_str(), size) != 0) return ErrnoStatus(errno, "truncate", path, size);
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, "remove", path);
    return absl::OkStatus();
  }

  absl::Status RemoveTree(const std::string& path) override {
    std::error_code ec;
    std::filesystem::remove_all(path, ec);
    if (ec && ec.value() != ENOENT) return ErrnoStatus(ec.value(), "remove", path);
    return absl::OkStatus();
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static HostFileSystem* fs = new HostFileSystem;
  return *fs;
}

absl::Status WriteFileAtomically(FileSystem& fs, const std::string& path, absl::string_view data) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  absl::Status status = fs.WriteFileSynced(temporary, data);
  if (status.ok()) status = fs.RenameSynced(temporary, path);
  if (!status.ok()) fs.Remove(temporary).IgnoreError();
  return status;
}

absl::Status ErrnoStatus(int error, absl::string_view operation, const std::string& path,
                         int64_t needed_bytes) {
  std::string message = absl::StrCat(operation, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG: {
      const auto free_bytes = RealFileSystem().FreeBytes(path);
      absl::StrAppend(&message, " (", needed_bytes, " bytes needed, ",
                      free_bytes.ok() ? absl::StrCat(*free_bytes) : "unknown", " bytes free)");
      if (error == EFBIG) {
        absl::StrAppend(&message,
                        "; files may not grow so long: raise the limit of the process "
                        "(ulimit -f, LimitFSIZE=)");
      }
      return absl::ResourceExhaustedError(message);
    }
    case EIO:
      return absl::DataLossError(message);
    case EMFILE:
    case ENFILE:
      return absl::UnavailableError(absl::StrCat(message, "; raise the limit of ",
                                                 error == EMFILE
                                                     ? "the process (ulimit -n, LimitNOFILE=)"
                                                     : "the host (sysctl fs.file-max)"));
    default:
      return absl::UnknownError(message);
  }
}

bool OutOfDescriptors(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), std::strerror(EMFILE));
}

std::string JoinPath(absl::string_view a, absl::string_view b) {
  if (a.empty()) return std::string(b);
  if (b.empty()) return std::string(a);
  if (b.front() == '/') b.remove_prefix(1);
  const char* separator = a.back() == '/' ? "" : "/";
  return absl::StrCat(a, separator, b);
}

}  // namespace soup::engine
