// WorkerSupervisor: keeps one soup-worker alive.
//
// A thread of its own spawns the worker, waits for its Hello, hands its messages on, and watches
// it: a worker that is silent for `heartbeat_timeout`, or that is busy and whose progress stands
// still for `stall_timeout`, is killed. A dead worker is started again after a pause that doubles
// from `backoff_min` to `backoff_max` while workers keep dying young. Each incarnation has a
// generation; what is meant for one never reaches another.
//
// Listener calls come from the supervisor's thread, one at a time and in order (OnUp, OnMessage…,
// OnDown): they must be quick and must not call Stop(). Everything else: any thread.
#ifndef SOUP_DAEMON_CONTROL_WORKER_SUPERVISOR_H_
#define SOUP_DAEMON_CONTROL_WORKER_SUPERVISOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/common/link.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::daemon {

struct WorkerOptions {
  std::string binary;
  std::vector<std::string> args;  // --link-fd and --parent-pid are added
  // Which process the worker is, for the next soupd (ProcessMark). Written before Hello is awaited.
  std::string mark_path;
  absl::Duration hello_timeout = absl::Seconds(60);
  absl::Duration heartbeat_timeout = absl::Seconds(60);
  absl::Duration stall_timeout = absl::Seconds(120);
  absl::Duration backoff_min = absl::Milliseconds(100);
  absl::Duration backoff_max = absl::Seconds(30);
  absl::Duration healthy_after = absl::Seconds(30);  // a life this long resets the pause
};

class WorkerListener {
 public:
  virtual ~WorkerListener() = default;
  virtual void OnWorkerUp(int64_t generation, const soup::worker::v1::Hello& hello) = 0;
  virtual void OnWorkerMessage(int64_t generation, soup::worker::v1::FromWorker message) = 0;
  // `was_up`: OnWorkerUp was called for it. `clean`: it ended because it was told to.
  virtual void OnWorkerDown(int64_t generation, bool was_up, bool clean,
                            const std::string& cause) = 0;
};

class WorkerSupervisor {
 public:
  WorkerSupervisor(WorkerOptions options, WorkerListener* listener);
  ~WorkerSupervisor();  // Stop(now)
  WorkerSupervisor(const WorkerSupervisor&) = delete;
  WorkerSupervisor& operator=(const WorkerSupervisor&) = delete;

  // Waits until a worker that an earlier soupd left behind is gone (killing it after 5 s).
  absl::Status AwaitPredecessor(absl::Time deadline);

  void Start();
  // Tells the worker to end, waits until `deadline`, kills what is left, and joins. Idempotent.
  void Stop(absl::Time deadline);

  // To the worker of this generation. Errors: Unavailable (another one, or none), and those of
  // Link::Send; a worker whose queue is full is killed.
  absl::Status Send(int64_t generation, const soup::worker::v1::ToWorker& message,
                    absl::Span<const int> fds = absl::Span<const int>());
  // One more argument of every worker that is started from now on.
  void AddArgument(std::string argument);
  // Whether the worker has been given work and must show progress.
  void SetBusy(bool busy);
  // Kills the present worker, if it is of this generation; OnDown follows.
  void Kill(int64_t generation, const std::string& why);

  struct Info {
    pid_t pid = 0;         // 0: none
    std::string state;     // starting | ready | busy | waiting: CAUSE | stopped
    int32_t restarts = 0;  // starts after the first
    std::string device;    // of the last Hello
    int64_t heartbeat_age_ms = 0;
    int64_t device_memory_bytes = 0;
    // Of the last heartbeat; free and arena belong together.
    int64_t device_free_bytes = 0;
    int64_t arena_bytes = 0;
    bool host_memory_pageable = false;
    bool up = false;         // a worker is there and has said Hello
    std::string last_cause;  // why the last one died
  };
  Info info() const;

 private:
  void Run();
  // One life of a worker. Returns why it ended.
  struct Life {
    bool was_up = false;
    bool clean = false;
    std::string cause;
  };
  Life LiveOnce(int64_t generation);
  std::string Serve(int64_t generation, Link* link, Life* life);

  const WorkerOptions options_;
  WorkerListener* const listener_;

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time stop_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mu_);  // null: none that may be sent to
  pid_t pid_ ABSL_GUARDED_BY(mu_) = 0;
  std::string kill_reason_ ABSL_GUARDED_BY(mu_);
  bool up_ ABSL_GUARDED_BY(mu_) = false;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time progress_at_ ABSL_GUARDED_BY(mu_);
  absl::Time heard_at_ ABSL_GUARDED_BY(mu_);
  int64_t progress_ ABSL_GUARDED_BY(mu_) = 0;
  int32_t starts_ ABSL_GUARDED_BY(mu_) = 0;
  soup::worker::v1::Hello hello_ ABSL_GUARDED_BY(mu_);
  soup::worker::v1::WorkerHeartbeat memory_ ABSL_GUARDED_BY(mu_);  // the last one's bytes
  std::vector<std::string> more_args_ ABSL_GUARDED_BY(mu_);
  std::string last_cause_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_WORKER_SUPERVISOR_H_
