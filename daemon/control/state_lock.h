// One soupd a state directory: an flock on <state-dir>/lock, held until the process ends.
#ifndef SOUP_DAEMON_CONTROL_STATE_LOCK_H_
#define SOUP_DAEMON_CONTROL_STATE_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace soup::daemon {

class StateLock {
 public:
  // Makes the directory (0700; closes it to others when it was open) and locks it.
  // FailedPrecondition names the process that holds it.
  static absl::StatusOr<std::unique_ptr<StateLock>> Take(const std::string& state_dir);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_STATE_LOCK_H_
