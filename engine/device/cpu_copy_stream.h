// The CPU backend's copy stream: a thread that runs copies and records in the order they were
// given, from a bounded queue. It never waits for the compute stream: that stream is the caller, so
// what the caller has recorded is done by the time the caller queues a copy.
//
// Synchronisation: one mutex guards the queue, the counters and the numbers of every event of the
// stream. A copied byte is published by the event recorded behind it: the thread completes the
// event under the mutex, the reader sees it complete under the mutex. A slot is free for the next
// copy in the same way, the other way round. Nothing else is shared.
//
// Calls come from one thread (the one that drives the backend); counters() from any.
#ifndef SOUP_ENGINE_DEVICE_CPU_COPY_STREAM_H_
#define SOUP_ENGINE_DEVICE_CPU_COPY_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/device/backend.h"
#include "engine/device/cpu_backend.h"

namespace soup::engine {

// Guarded by the mutex of its CpuCopyStream. Records are numbered; an event is complete when the
// last one has been reached.
struct CpuEventRep final : public EventRep {
  int64_t recorded = 0;
  int64_t completed = 0;
  int64_t completed_ns = 0;  // when it was last reached
};

class CpuCopyStream {
 public:
  explicit CpuCopyStream(const CpuBackendOptions& options);
  // Drops what has not begun, waits for the copy that has.
  ~CpuCopyStream();
  CpuCopyStream(const CpuCopyStream&) = delete;
  CpuCopyStream& operator=(const CpuCopyStream&) = delete;

  // Queue a command. `counter`: of its bytes; one of an offload adds to the offload's seconds.
  // Errors: DeadlineExceeded (the queue stays full).
  absl::Status Copy(void* dst, const void* src, int64_t bytes, int64_t BackendCounters::*counter);
  absl::Status Record(const std::shared_ptr<CpuEventRep>& event);

  // A record of the caller's own (compute) stream: complete at once.
  void RecordByCaller(const std::shared_ptr<CpuEventRep>& event);
  // Errors: FailedPrecondition (one of them was not reached).
  absl::StatusOr<double> SecondsBetween(const std::shared_ptr<CpuEventRep>& begin,
                                        const std::shared_ptr<CpuEventRep>& end) const;
  // The caller waits for the event's last record; `stall`: count the time. Errors:
  // DeadlineExceeded.
  absl::Status CallerWaits(const std::shared_ptr<CpuEventRep>& event, absl::Duration timeout,
                           bool stall);
  // Waits until the queue is empty and the thread idle. Errors: DeadlineExceeded.
  absl::Status Drain(absl::Duration timeout);
  BackendCounters counters() const;

 private:
  // A copy, or (event not null) the record of that number.
  struct Command {
    std::byte* dst = nullptr;
    const std::byte* src = nullptr;
    int64_t bytes = 0;
    int64_t BackendCounters::*counter = &BackendCounters::copy_bytes;
    std::shared_ptr<CpuEventRep> event;
    int64_t number = 0;
  };

  absl::Status Push(Command command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void RunCopy(const Command& command) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits `duration` of the limited link's time, or until the stream is told to stop.
  void Idle(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mutex_);

  const CpuBackendOptions options_;
  mutable absl::Mutex mutex_;
  std::deque<Command> queue_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  BackendCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CPU_COPY_STREAM_H_
