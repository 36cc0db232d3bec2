#include "daemon/control/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/base/unique_fd.h"

extern char** environ;

namespace soup::daemon {
namespace {

using engine::UniqueFd;

std::string ReadSmallFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

std::string BootId() {
  std::string id = ReadSmallFile("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id.empty() ? "unknown" : id;
}

ChildEnd EndOf(int wait_status) {
  ChildEnd end;
  if (WIFEXITED(wait_status)) {
    end.exit_status = WEXITSTATUS(wait_status);
    end.clean = end.exit_status == 0;
  } else if (WIFSIGNALED(wait_status)) {
    end.signal = WTERMSIG(wait_status);
  }
  return end;
}

// Blocks until a pidfd's process has ended (true), or the deadline (false).
bool PollPidFd(int pidfd, absl::Time deadline) {
  for (;;) {
    const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
    pollfd p{pidfd, POLLIN, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp<int64_t>(ms, 0, 1'000'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;
    if (absl::Now() >= deadline) return false;
  }
}

UniqueFd PidFd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

struct SpawnSettings {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

absl::StatusOr<pid_t> SpawnChild(const std::string& binary, const std::vector<std::string>& args,
                                 int link_fd) {
  SpawnSettings s;
  ::posix_spawn_file_actions_addopen(&s.actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&s.actions, 2, 1);
  ::posix_spawn_file_actions_adddup2(&s.actions, link_fd, kChildLinkFd);
  ::posix_spawn_file_actions_addclosefrom_np(&s.actions, kChildLinkFd + 1);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&s.attributes, &none);
  ::posix_spawnattr_setsigdefault(&s.attributes, &all);
  ::posix_spawnattr_setpgroup(&s.attributes, 0);
  ::posix_spawnattr_setflags(
      &s.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(binary.c_str()));
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, binary.c_str(), &s.actions, &s.attributes, argv.data(), environ);
  if (error != 0) return engine::ErrnoStatus(error, "start", binary);
  return pid;
}

std::string ChildEnd::ToString() const {
  if (signal != 0) return absl::StrCat("signal ", signal, " (", ::strsignal(signal), ")");
  return absl::StrCat("exit status ", exit_status);
}

ChildEnd KillAndCollect(pid_t pid) {
  ::kill(pid, SIGKILL);  // our own child, not collected yet: the pid cannot be another's
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return ChildEnd{};
  }
  return EndOf(status);
}

ChildEnd CollectChild(pid_t pid, absl::Time deadline) {
  const UniqueFd pidfd = PidFd(pid);
  if (pidfd.valid()) PollPidFd(pidfd.get(), deadline);
  return KillAndCollect(pid);
}

std::string ProcessMark::ToText() const {
  return absl::StrCat(pid, " ", start_ticks, " ", boot_id, "\n");
}

std::optional<ProcessMark> ProcessMark::FromText(const std::string& text) {
  ProcessMark mark;
  std::istringstream in(text);
  if (!(in >> mark.pid >> mark.start_ticks >> mark.boot_id) || mark.pid <= 1) return std::nullopt;
  return mark;
}

std::optional<ProcessMark> MarkOf(pid_t pid) {
  const std::string stat = ReadSmallFile(absl::StrCat("/proc/", pid, "/stat"));
  // The name in parentheses may hold anything; fields are counted from the last one.
  const size_t close = stat.rfind(')');
  if (close == std::string::npos) return std::nullopt;
  std::istringstream in(stat.substr(close + 1));
  std::string state, skip;
  in >> state;
  for (int field = 4; field < 22; ++field) in >> skip;
  ProcessMark mark;
  mark.pid = pid;
  mark.boot_id = BootId();
  if (!(in >> mark.start_ticks) || state == "Z" || state == "X") return std::nullopt;
  return mark;
}

absl::Status AwaitGone(const ProcessMark& mark, absl::Duration patience, absl::Time deadline) {
  const UniqueFd pidfd = PidFd(mark.pid);
  // Compared after the pidfd is held: from here on the pid cannot change its meaning unseen.
  const std::optional<ProcessMark> now = MarkOf(mark.pid);
  if (!now.has_value() || *now != mark || !pidfd.valid()) return absl::OkStatus();
  if (PollPidFd(pidfd.get(), std::min(deadline, absl::Now() + patience))) return absl::OkStatus();
  ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  if (PollPidFd(pidfd.get(), deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("a worker of an earlier soupd (pid ", mark.pid,
                   ") does not end; it may hold the device: stop it, then start soupd again"));
}

}  // namespace soup::daemon
