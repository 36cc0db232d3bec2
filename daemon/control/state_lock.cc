#include "daemon/control/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Take(const std::string& state_dir) {
  engine::FileSystem& fs = engine::RealFileSystem();
  SOUP_RETURN_IF_ERROR(fs.CreateDirectories(state_dir, 0700));
  struct stat st {};
  if (stat(state_dir.c_str(), &st) != 0) return engine::ErrnoStatus(errno, "stat", state_dir);
  if (st.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the state directory ", state_dir, " belongs to uid ", st.st_uid,
                     ", soupd runs as ", geteuid(), "; give --state-dir of its own"));
  }
  if ((st.st_mode & 077) != 0 && chmod(state_dir.c_str(), 0700) != 0) {
    return engine::ErrnoStatus(errno, "chmod", state_dir);
  }
  const std::string path = state_dir + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return engine::ErrnoStatus(errno, "open", path);
  std::unique_ptr<StateLock> lock(new StateLock(fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return engine::ErrnoStatus(errno, "lock", path);
    const absl::StatusOr<std::string> holder = fs.ReadFile(path);
    return absl::FailedPreconditionError(
        absl::StrCat("another soupd (pid ",
                     holder.ok() ? std::string(absl::StripAsciiWhitespace(*holder)) : "unknown",
                     ") uses ", state_dir, "; stop it or give another --state-dir"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  // Only told to who comes second: the lock holds without it, and a full disk is no reason not to
  // start.
  if (pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()) ||
      ftruncate(fd, static_cast<off_t>(pid.size())) != 0) {
    SOUP_LOG(kWarn, "main")
        << engine::ErrnoStatus(errno, "write", path, static_cast<int64_t>(pid.size())).message();
  }
  return lock;
}

StateLock::~StateLock() { close(fd_); }

}  // namespace soup::daemon
