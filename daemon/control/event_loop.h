// EventLoop: one thread that runs what it is given, in order, and timers. State that only its tasks
// touch needs no lock.
//
// Post: any thread, never blocks; for what is bounded by nature (requests of users, ends of tasks).
// PostWithRoom: blocks while `max_waiting` tasks wait; for streams of messages. Must not be called
// from the loop itself. Tasks must be quick: they may write to the job store, no more.
#ifndef SOUP_DAEMON_CONTROL_EVENT_LOOP_H_
#define SOUP_DAEMON_CONTROL_EVENT_LOOP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace soup::daemon {

class EventLoop {
 public:
  using Task = std::function<void()>;

  explicit EventLoop(size_t max_waiting = 4096) : max_waiting_(max_waiting) {}
  ~EventLoop() { Stop(); }
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Start();
  // What was posted before runs; later posts and timers are dropped. Joins.
  void Stop();

  void Post(Task task);
  void PostWithRoom(Task task);
  // Loop thread only.
  void After(absl::Duration delay, Task task);

 private:
  void Run();

  const size_t max_waiting_;
  absl::Mutex mu_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::multimap<absl::Time, Task> timers_;  // loop thread
  std::thread thread_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_EVENT_LOOP_H_
