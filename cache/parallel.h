// ParallelFor: fn(0) .. fn(n - 1), each once, on up to `threads` threads (0: every core), the
// caller's included. Stops handing out work at the first error or when cancelled; returns the error
// of the lowest index that failed, so that the same input gives the same message. Joins before it
// returns.
#ifndef SOUP_CACHE_PARALLEL_H_
#define SOUP_CACHE_PARALLEL_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cache/task_control.h"

namespace soup::cache {

absl::Status ParallelFor(int64_t n, const TaskControl& control,
                         const std::function<absl::Status(int64_t)>& fn);

int ThreadsOf(const TaskControl& control);

// Adds up the bytes of a stage from several threads and reports them in order. Thread-safe.
class ProgressMeter {
 public:
  ProgressMeter(const TaskControl& control, const char* stage, int64_t total)
      : control_(control), stage_(stage), total_(total) {}
  void Add(int64_t bytes);

 private:
  const TaskControl& control_;
  const char* const stage_;
  const int64_t total_;
  absl::Mutex mu_;
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_PARALLEL_H_
