#include "cache/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

namespace soup::cache {

int ThreadsOf(const TaskControl& control) {
  if (control.threads > 0) return control.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

absl::Status ParallelFor(int64_t n, const TaskControl& control,
                         const std::function<absl::Status(int64_t)>& fn) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  absl::Mutex mu;
  int64_t first_failed = n;
  absl::Status status;

  const auto work = [&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const int64_t i = next.fetch_add(1);
      if (i >= n) return;
      absl::Status result = control.CheckCancelled();
      if (result.ok()) result = fn(i);
      if (result.ok()) continue;
      stop = true;
      absl::MutexLock lock(&mu);
      if (i < first_failed) {
        first_failed = i;
        status = std::move(result);
      }
    }
  };
  const int64_t threads = std::min<int64_t>(n, ThreadsOf(control));
  std::vector<std::thread> pool;
  for (int64_t t = 1; t < threads; ++t) pool.emplace_back(work);
  work();
  for (std::thread& t : pool) t.join();
  return status;
}

void ProgressMeter::Add(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  done_ += bytes;
  if (control_.progress) control_.progress(stage_, done_, total_);
}

}  // namespace soup::cache
