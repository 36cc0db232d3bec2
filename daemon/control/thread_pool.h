// A fixed number of threads and a bounded queue: where the API's handlers do what may block.
// Thread-safe. The destructor finishes what was taken.
#ifndef SOUP_DAEMON_CONTROL_THREAD_POOL_H_
#define SOUP_DAEMON_CONTROL_THREAD_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace soup::daemon {

class ThreadPool {
 public:
  ThreadPool(int threads, size_t max_queue);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // False when the queue is full or the pool is closing: the caller refuses its work.
  [[nodiscard]] bool TrySubmit(std::function<void()> task);
  // For the next part of work that was taken before (one at a time a stream, so bounded by the
  // number of streams): never refused.
  void SubmitContinuation(std::function<void()> task);

 private:
  void Loop();

  const size_t max_queue_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_THREAD_POOL_H_
