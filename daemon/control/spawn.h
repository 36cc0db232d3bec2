// Spawning and ending child processes, by exec only (posix_spawn), with the descriptors named.
//
// A child gets /dev/null as standard input, soupd's standard error as output and error, the mapped
// descriptors, and nothing else. It leads its own process group, so that Ctrl-C at soupd's terminal
// reaches soupd alone, which then stops its workers in order. Children die with the thread that
// spawned them (PR_SET_PDEATHSIG, set by the child itself): spawn from a thread that outlives the
// child. Thread-safe.
#ifndef SOUP_DAEMON_CONTROL_SPAWN_H_
#define SOUP_DAEMON_CONTROL_SPAWN_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace soup::daemon {

// The descriptor that a child finds its link at.
inline constexpr int kChildLinkFd = 3;

// Runs `binary` with `args` (argv[0] is added) and `link_fd` as descriptor 3. Errors: NotFound or
// PermissionDenied (names the binary), Internal.
absl::StatusOr<pid_t> SpawnChild(const std::string& binary, const std::vector<std::string>& args,
                                 int link_fd);

// Kills (SIGKILL), waits, and says how the child ended, for people: "exit status 3", "signal 11
// (Segmentation fault)". A child that is dead already is only collected.
struct ChildEnd {
  bool clean = false;  // exit status 0
  int exit_status = -1;
  int signal = 0;
  std::string ToString() const;
};
ChildEnd KillAndCollect(pid_t pid);
// Waits until the child has ended by itself, or kills it at the deadline.
ChildEnd CollectChild(pid_t pid, absl::Time deadline);

// A process as it can be recognised after a restart of soupd: pids are used again, start times of
// one boot are not.
struct ProcessMark {
  pid_t pid = 0;
  int64_t start_ticks = 0;
  std::string boot_id;

  std::string ToText() const;
  static std::optional<ProcessMark> FromText(const std::string& text);
  bool operator==(const ProcessMark&) const = default;
};
// nullopt: there is no such process (a zombie counts as gone).
std::optional<ProcessMark> MarkOf(pid_t pid);

// Waits until the marked process is gone; kills it when it is still there after `patience`, and
// waits until `deadline`. OK: gone. DeadlineExceeded: still there (names the pid).
absl::Status AwaitGone(const ProcessMark& mark, absl::Duration patience, absl::Time deadline);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_SPAWN_H_
