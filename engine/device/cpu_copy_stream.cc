#include "engine/device/cpu_copy_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"

namespace soup::engine {
namespace {

// A limited link moves pieces of this size, so that it is even and can be stopped.
constexpr int64_t kLimitedPiece = 256 << 10;

double SecondsSince(int64_t start_ns) {
  return static_cast<double>(RealClock().MonotonicNs() - start_ns) * 1e-9;
}

}  // namespace

CpuCopyStream::CpuCopyStream(const CpuBackendOptions& options)
    : options_(options), thread_([this] { Run(); }) {
  SOUP_CHECK(options.copy_queue_commands > 0);
}

CpuCopyStream::~CpuCopyStream() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

absl::Status CpuCopyStream::Push(Command command) {
  const auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return queue_.size() < static_cast<size_t>(options_.copy_queue_commands);
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&room), options_.wait_limit)) {
    return absl::DeadlineExceededError(
        absl::StrCat("the copy stream's queue of ", options_.copy_queue_commands,
                     " commands stayed full for ", absl::FormatDuration(options_.wait_limit)));
  }
  queue_.push_back(std::move(command));
  return absl::OkStatus();
}

absl::Status CpuCopyStream::Copy(void* dst, const void* src, int64_t bytes,
                                 int64_t BackendCounters::*counter) {
  Command command;
  command.dst = static_cast<std::byte*>(dst);
  command.src = static_cast<const std::byte*>(src);
  command.bytes = bytes;
  command.counter = counter;
  absl::MutexLock lock(&mutex_);
  return Push(std::move(command));
}

absl::Status CpuCopyStream::Record(const std::shared_ptr<CpuEventRep>& event) {
  absl::MutexLock lock(&mutex_);
  Command command;
  command.event = event;
  command.number = event->recorded + 1;
  const absl::Status status = Push(std::move(command));
  // Push may have let go of the mutex, but only this thread records.
  if (status.ok()) ++event->recorded;
  return status;
}

void CpuCopyStream::RecordByCaller(const std::shared_ptr<CpuEventRep>& event) {
  absl::MutexLock lock(&mutex_);
  event->completed = ++event->recorded;
  event->completed_ns = RealClock().MonotonicNs();
}

absl::StatusOr<double> CpuCopyStream::SecondsBetween(
    const std::shared_ptr<CpuEventRep>& begin, const std::shared_ptr<CpuEventRep>& end) const {
  absl::MutexLock lock(&mutex_);
  for (const CpuEventRep* event : {begin.get(), end.get()}) {
    if (event->recorded > 0 && event->completed == event->recorded) continue;
    return absl::FailedPreconditionError("an event that was not reached has no time");
  }
  return static_cast<double>(end->completed_ns - begin->completed_ns) * 1e-9;
}

absl::Status CpuCopyStream::CallerWaits(const std::shared_ptr<CpuEventRep>& event,
                                        absl::Duration timeout, bool stall) {
  absl::MutexLock lock(&mutex_);
  const int64_t number = event->recorded;
  if (event->completed >= number) return absl::OkStatus();
  const auto reached = [&event, number] { return event->completed >= number; };
  const int64_t start_ns = RealClock().MonotonicNs();
  const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(&reached), timeout);
  if (stall) counters_.stall_seconds += SecondsSince(start_ns);
  if (in_time) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("a copy was not done within ",
                                                  absl::FormatDuration(timeout), "; ",
                                                  queue_.size(), " commands wait behind it"));
}

absl::Status CpuCopyStream::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]()
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return queue_.empty() && !busy_; };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout)) {
    return absl::DeadlineExceededError(absl::StrCat("the copy stream was not idle within ",
                                                    absl::FormatDuration(timeout), "; ",
                                                    queue_.size(), " commands wait"));
  }
  return absl::OkStatus();
}

BackendCounters CpuCopyStream::counters() const {
  absl::MutexLock lock(&mutex_);
  return counters_;
}

void CpuCopyStream::Run() {
  const auto work = [this]()
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || !queue_.empty(); };
  for (;;) {
    Command command;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&work));
      if (stop_) return;
      command = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      if (command.event != nullptr) {
        command.event->completed = command.number;
        command.event->completed_ns = RealClock().MonotonicNs();
        busy_ = false;
        continue;
      }
    }
    RunCopy(command);
    absl::MutexLock lock(&mutex_);
    busy_ = false;
  }
}

void CpuCopyStream::RunCopy(const Command& command) {
  const int64_t start_ns = RealClock().MonotonicNs();
  Idle(options_.copy_delay);
  if (options_.copy_bytes_per_second <= 0) {
    std::memcpy(command.dst, command.src, static_cast<size_t>(command.bytes));
  } else {
    const absl::Duration before = absl::Seconds(SecondsSince(start_ns));
    for (int64_t done = 0; done < command.bytes;) {
      const int64_t piece = std::min(kLimitedPiece, command.bytes - done);
      std::memcpy(command.dst + done, command.src + done, static_cast<size_t>(piece));
      done += piece;
      const double due = static_cast<double>(done) / options_.copy_bytes_per_second;
      Idle(before + absl::Seconds(due) - absl::Seconds(SecondsSince(start_ns)));
    }
  }
  absl::MutexLock lock(&mutex_);
  const double seconds = SecondsSince(start_ns);
  counters_.*command.counter += command.bytes;
  const bool slab = command.counter == &BackendCounters::copy_bytes;
  (slab ? counters_.copy_busy_seconds : counters_.offload_busy_seconds) += seconds;
}

void CpuCopyStream::Idle(absl::Duration duration) {
  if (duration <= absl::ZeroDuration()) return;
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&stop_), duration);
}

}  // namespace soup::engine
