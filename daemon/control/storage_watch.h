// StorageWatch: whether jobs find room for what they write. A worker or a preparing process that
// could not write makes storage unhealthy, until a write goes through again: a job's, or the
// probe's. The job store and the shard cache tell of their own writes themselves.
//
// Thread-safe. Only Probe() writes; call it every few seconds.
#ifndef SOUP_DAEMON_CONTROL_STORAGE_WATCH_H_
#define SOUP_DAEMON_CONTROL_STORAGE_WATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/file_system.h"

namespace soup::daemon {

class StorageWatch {
 public:
  // Borrows `fs`. `folders`: below which jobs write.
  StorageWatch(engine::FileSystem* fs, std::vector<std::string> folders);

  // A write found no room, or the disk failed; `message` names its path.
  void Failed(absl::string_view message);
  // A job's write went through.
  void Wrote();
  // OK, or Unavailable with the message of what failed last.
  absl::Status status() const;

  // Does nothing while writes go through. At first, and after a failure: tries to take a little
  // more room in each folder than was free when the write failed, and so finds out whether
  // somebody has made some.
  void Probe();

 private:
  engine::FileSystem* const fs_;
  const std::vector<std::string> folders_;
  mutable absl::Mutex mu_;
  std::vector<int64_t> probe_bytes_ ABSL_GUARDED_BY(mu_);  // of each folder
  bool proven_ ABSL_GUARDED_BY(mu_) = false;
  std::string message_ ABSL_GUARDED_BY(mu_);  // empty: none failed
  int64_t failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_STORAGE_WATCH_H_
