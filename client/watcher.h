// Follows a job to its end over soupd's Watch stream, across lost connections and restarts of
// soupd, without a gap or a repeat: the two cursors (event sequence and step) say where to go on.
//
// Errors: InterruptedError after a signal (the job goes on); exit code 6 when `deadline` passes;
// Unavailable when soupd stayed away for `reconnect_limit`; soupd's refusals pass through.
// Used by one thread.
#ifndef SOUP_CLIENT_WATCHER_H_
#define SOUP_CLIENT_WATCHER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/api.h"

namespace soup::client {

class WatchObserver {
 public:
  virtual ~WatchObserver() = default;
  virtual void OnEvent(const soup::v1::JobEvent& event) {}
  virtual void OnStep(const soup::v1::StepRecord& step) {}
  virtual void OnProgress(const soup::v1::Progress& progress) {}
  virtual void OnHeartbeat(const soup::v1::Heartbeat& heartbeat) {}
  // The connection is lost; tried again after `wait`.
  virtual void OnDisconnected(const absl::Status& why, absl::Duration wait) {}
  // The first message after that.
  virtual void OnReconnected() {}
  // About once a second, whatever comes.
  virtual void OnTick() {}
};

struct WatchOptions {
  int64_t after_sequence = 0;
  int64_t after_step = 0;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Duration reconnect_limit = absl::Minutes(5);
  // soupd's heartbeats come every few seconds; a stream this long silent is dead.
  absl::Duration silence_limit = absl::Seconds(45);
  // A job that soupd has paused (a full disk, a lost device) stands still until somebody acts: it
  // is given back as it is. One that a user has paused is waited for.
  bool stop_when_paused = false;
};

// The job in its end state, or paused (stop_when_paused).
absl::StatusOr<soup::v1::Job> WatchJob(Api* api, const std::string& job_id,
                                       const WatchOptions& options, WatchObserver* observer);

}  // namespace soup::client

#endif  // SOUP_CLIENT_WATCHER_H_
