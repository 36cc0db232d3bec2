// Wakes Watch streams. It carries no events: those are read from the job store and the step log by
// cursor, so a slow or late watcher loses nothing and costs nothing. Only the latest Progress of a
// job lies here, one a job that is being prepared.
//
// Threads: any. Wake-up functions are called without a lock held, must be quick (schedule work and
// return), and may be called once more while Unsubscribe runs elsewhere; when Unsubscribe has
// returned, no call is running.
#ifndef SOUP_DAEMON_CONTROL_EVENT_HUB_H_
#define SOUP_DAEMON_CONTROL_EVENT_HUB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "soup/v1/soup.pb.h"

namespace soup::daemon {

class EventHub {
 public:
  explicit EventHub(int max_watchers = 1024) : max_watchers_(max_watchers) {}
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;

  // Something of this job can be read: a state event or a step.
  void Notify(const std::string& job_id);
  // Replaces the job's progress and wakes its watchers.
  void SetProgress(const std::string& job_id, const soup::v1::Progress& progress);
  void ClearProgress(const std::string& job_id);

  struct VersionedProgress {
    uint64_t version = 0;  // grows; equal: the same progress
    soup::v1::Progress progress;
  };
  std::optional<VersionedProgress> LatestProgress(const std::string& job_id) const;

  // ResourceExhausted beyond max_watchers.
  absl::StatusOr<int64_t> Subscribe(const std::string& job_id, std::function<void()> wake);
  void Unsubscribe(int64_t subscription);
  // Wakes everybody (drain).
  void NotifyAll();
  int watchers() const;

 private:
  struct Watcher;
  const int max_watchers_;
  mutable absl::Mutex mutex_;
  int64_t next_subscription_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_version_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int64_t, std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<int64_t, std::shared_ptr<Watcher>>> by_job_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::string, VersionedProgress> progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_EVENT_HUB_H_
