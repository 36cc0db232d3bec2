#include "daemon/control/thread_pool.h"

#include <utility>

namespace soup::daemon {

ThreadPool::ThreadPool(int threads, size_t max_queue) : max_queue_(max_queue) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadPool::TrySubmit(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (closing_ || queue_.size() >= max_queue_) return false;
  queue_.push_back(std::move(task));
  return true;
}

void ThreadPool::SubmitContinuation(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::move(task));
}

void ThreadPool::Loop() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return closing_ || !queue_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace soup::daemon
