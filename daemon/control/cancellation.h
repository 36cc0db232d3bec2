// A request to stop: a flag to look at, and a call that wakes whoever is blocked. Set once, never
// taken back. Thread-safe; share it by shared_ptr.
#ifndef SOUP_DAEMON_CONTROL_CANCELLATION_H_
#define SOUP_DAEMON_CONTROL_CANCELLATION_H_

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace soup::daemon {

class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Runs the waker, if there is one, in this thread and under the lock: it must be quick.
  void Cancel() {
    absl::MutexLock lock(&mu_);
    if (cancelled_) return;
    cancelled_ = true;
    if (waker_) waker_();
  }
  bool cancelled() const {
    absl::MutexLock lock(&mu_);
    return cancelled_;
  }
  // One at a time; null takes it back. Called at once when the request came before. When this
  // returns, the waker before is not running and will not run again.
  void SetWaker(std::function<void()> waker) {
    absl::MutexLock lock(&mu_);
    waker_ = std::move(waker);
    if (cancelled_ && waker_) waker_();
  }

 private:
  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> waker_ ABSL_GUARDED_BY(mu_);
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_CANCELLATION_H_
