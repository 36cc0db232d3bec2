#include "daemon/control/event_loop.h"

#include <utility>

namespace soup::daemon {

void EventLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EventLoop::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void EventLoop::Post(Task task) {
  absl::MutexLock lock(&mu_);
  if (!stopping_) tasks_.push_back(std::move(task));
}

void EventLoop::PostWithRoom(Task task) {
  absl::MutexLock lock(&mu_);
  auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || tasks_.size() < max_waiting_;
  };
  mu_.Await(absl::Condition(&room));
  if (!stopping_) tasks_.push_back(std::move(task));
}

void EventLoop::After(absl::Duration delay, Task task) {
  timers_.emplace(absl::Now() + delay, std::move(task));
}

void EventLoop::Run() {
  for (;;) {
    Task task;
    {
      absl::MutexLock lock(&mu_);
      auto some = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !tasks_.empty(); };
      const absl::Time next = timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first;
      mu_.AwaitWithDeadline(absl::Condition(&some), next);
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      } else if (stopping_) {
        return;
      }
    }
    if (task) task();
    while (!timers_.empty() && timers_.begin()->first <= absl::Now()) {
      const Task due = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      due();
    }
  }
}

}  // namespace soup::daemon
