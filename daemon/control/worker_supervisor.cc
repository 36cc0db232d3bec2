#include "daemon/control/worker_supervisor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/spawn.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"

namespace soup::daemon {

using soup::worker::v1::FromWorker;
using soup::worker::v1::ToWorker;

WorkerSupervisor::WorkerSupervisor(WorkerOptions options, WorkerListener* listener)
    : options_(std::move(options)), listener_(listener) {}

WorkerSupervisor::~WorkerSupervisor() { Stop(absl::Now()); }

absl::Status WorkerSupervisor::AwaitPredecessor(absl::Time deadline) {
  auto text = engine::RealFileSystem().ReadFile(options_.mark_path);
  if (!text.ok()) return absl::OkStatus();
  const std::optional<ProcessMark> mark = ProcessMark::FromText(*text);
  if (!mark.has_value()) return absl::OkStatus();
  return AwaitGone(*mark, absl::Seconds(5), deadline);
}

void WorkerSupervisor::Start() {
  SOUP_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void WorkerSupervisor::Stop(absl::Time deadline) {
  {
    absl::MutexLock lock(&mu_);
    stop_deadline_ = std::min(stop_deadline_, deadline);
    stopping_ = true;
    if (link_ != nullptr) {
      ToWorker shutdown;
      shutdown.mutable_shutdown();
      if (!link_->Send(shutdown).ok()) link_->Close();
    }
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status WorkerSupervisor::Send(int64_t generation, const ToWorker& message,
                                    absl::Span<const int> fds) {
  absl::MutexLock lock(&mu_);
  if (generation != generation_ || link_ == nullptr)
    return absl::UnavailableError("that worker is gone");
  const absl::Status status = link_->Send(message, fds);
  if (absl::IsResourceExhausted(status)) {
    kill_reason_ = absl::StrCat("it does not read its orders (", status.message(), ")");
    link_->Close();
  }
  return status;
}

void WorkerSupervisor::AddArgument(std::string argument) {
  absl::MutexLock lock(&mu_);
  more_args_.push_back(std::move(argument));
}

void WorkerSupervisor::SetBusy(bool busy) {
  absl::MutexLock lock(&mu_);
  if (busy && !busy_) progress_at_ = absl::Now();
  busy_ = busy;
}

void WorkerSupervisor::Kill(int64_t generation, const std::string& why) {
  absl::MutexLock lock(&mu_);
  if (generation != generation_ || link_ == nullptr) return;
  kill_reason_ = why;
  link_->Close();
}

WorkerSupervisor::Info WorkerSupervisor::info() const {
  absl::MutexLock lock(&mu_);
  Info info;
  info.pid = pid_;
  info.state = "ready";
  if (stopping_) {
    info.state = "stopped";
  } else if (pid_ == 0) {
    info.state = last_cause_.empty() ? "waiting" : absl::StrCat("waiting: ", last_cause_);
  } else if (!up_) {
    info.state = "starting";
  } else if (busy_) {
    info.state = "busy";
  }
  info.restarts = std::max(0, starts_ - 1);
  info.device = hello_.device_name();
  info.device_memory_bytes = hello_.device_memory_bytes();
  info.device_free_bytes = memory_.device_free_bytes();
  info.arena_bytes = memory_.arena_bytes();
  info.host_memory_pageable = memory_.host_memory_pageable();
  info.up = up_;
  if (pid_ != 0) info.heartbeat_age_ms = absl::ToInt64Milliseconds(absl::Now() - heard_at_);
  info.last_cause = last_cause_;
  return info;
}

void WorkerSupervisor::Run() {
  absl::Duration pause = options_.backoff_min;
  for (int64_t generation = 1;; ++generation) {
    const absl::Time born = absl::Now();
    const Life life = LiveOnce(generation);
    listener_->OnWorkerDown(generation, life.was_up, life.clean, life.cause);
    if (absl::Now() - born >= options_.healthy_after) pause = options_.backoff_min;
    absl::MutexLock lock(&mu_);
    if (!life.clean && !stopping_) {
      last_cause_ = life.cause;
      SOUP_LOG(kWarn, "worker") << "worker " << generation << " ended: " << life.cause
                                << "; the next starts in " << absl::FormatDuration(pause);
    }
    if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause)) return;
    pause = std::min(2 * pause, options_.backoff_max);
  }
}

WorkerSupervisor::Life WorkerSupervisor::LiveOnce(int64_t generation) {
  Life life;
  auto pair = Link::MakePair();
  if (!pair.ok()) {
    life.cause = std::string(pair.status().message());
    return life;
  }
  std::vector<std::string> args = options_.args;
  {
    absl::MutexLock lock(&mu_);
    args.insert(args.end(), more_args_.begin(), more_args_.end());
  }
  args.push_back(absl::StrCat("--link-fd=", kChildLinkFd));
  args.push_back(absl::StrCat("--parent-pid=", ::getpid()));
  absl::StatusOr<pid_t> pid = SpawnChild(options_.binary, args, pair->second.get());
  pair->second.Reset();
  if (!pid.ok()) {
    life.cause = std::string(pid.status().message());
    return life;
  }
  if (const std::optional<ProcessMark> mark = MarkOf(*pid); mark.has_value()) {
    const absl::Status written =
        engine::WriteFileAtomically(engine::RealFileSystem(), options_.mark_path, mark->ToText());
    // A full disk must not stop the work: the parent-death signal is the rule, the mark its guard.
    if (!written.ok()) {
      SOUP_LOG(kWarn, "worker") << written.message();
    }
  }
  auto link = std::make_shared<Link>(std::move(pair->first));
  bool stop = false;
  {
    absl::MutexLock lock(&mu_);
    generation_ = generation;
    link_ = link;
    pid_ = *pid;
    kill_reason_.clear();
    busy_ = false;
    up_ = false;
    heard_at_ = progress_at_ = absl::Now();
    progress_ = -1;
    ++starts_;
    stop = stopping_;
  }
  if (stop) link->Close();  // Stop() came between the spawn and the link
  life.cause = Serve(generation, link.get(), &life);
  absl::Time patience;
  {
    absl::MutexLock lock(&mu_);
    link_.reset();
    life.clean = stopping_ && life.cause.empty();
    patience =
        life.cause.empty() ? std::min(stop_deadline_, absl::Now() + absl::Seconds(5)) : absl::Now();
  }
  link->Close();
  const ChildEnd end = CollectChild(*pid, patience);
  if (life.cause.empty()) {
    life.cause = end.ToString();
    life.clean = life.clean && end.clean;
  }
  absl::MutexLock lock(&mu_);
  pid_ = 0;
  up_ = false;
  busy_ = false;
  return life;
}

// Reads until the link ends. Empty: the worker closed it; else why it has to be killed.
std::string WorkerSupervisor::Serve(int64_t generation, Link* link, Life* life) {
  const absl::Time hello_deadline = absl::Now() + options_.hello_timeout;
  for (;;) {
    absl::Time deadline;
    std::string overdue;
    {
      absl::MutexLock lock(&mu_);
      deadline = life->was_up ? heard_at_ + options_.heartbeat_timeout : hello_deadline;
      overdue = life->was_up ? absl::StrCat("no heartbeat for ",
                                            absl::FormatDuration(options_.heartbeat_timeout))
                             : absl::StrCat("it did not come up within ",
                                            absl::FormatDuration(options_.hello_timeout));
      if (life->was_up && busy_ && progress_at_ + options_.stall_timeout < deadline) {
        deadline = progress_at_ + options_.stall_timeout;
        overdue = absl::StrCat("no progress for ", absl::FormatDuration(options_.stall_timeout));
      }
      if (stop_deadline_ < deadline) {
        deadline = stop_deadline_;
        overdue = "it did not stop in time";
      }
    }
    // Looked at anew at least this often: SetBusy and Stop move the deadline.
    const absl::Time look = std::min(deadline, absl::Now() + absl::Milliseconds(250));
    absl::StatusOr<Frame> frame = link->Receive(look);
    if (absl::IsDeadlineExceeded(frame.status())) {
      if (absl::Now() >= deadline) return overdue;
      continue;
    }
    if (absl::IsOutOfRange(frame.status())) return "";
    if (!frame.ok()) {
      absl::MutexLock lock(&mu_);
      if (!kill_reason_.empty()) return kill_reason_;
      return std::string(frame.status().message());
    }
    FromWorker message;
    if (!message.ParseFromString(frame->bytes)) return "it sent what is no message";
    if (message.item_case() == FromWorker::kCannotStart) return message.cannot_start().message();
    const bool first = !life->was_up;
    if (first != (message.item_case() == FromWorker::kHello))
      return "it did not begin with one Hello";
    {
      absl::MutexLock lock(&mu_);
      heard_at_ = absl::Now();
      if (first) {
        up_ = true;
        hello_ = message.hello();
        memory_.Clear();
        memory_.set_device_free_bytes(hello_.device_free_bytes());
      }
      if (message.item_case() == FromWorker::kHeartbeat) {
        if (message.heartbeat().progress() != progress_) progress_at_ = heard_at_;
        progress_ = message.heartbeat().progress();
        memory_ = message.heartbeat();
      } else {
        progress_at_ = heard_at_;
      }
    }
    life->was_up = true;
    if (first) {
      listener_->OnWorkerUp(generation, message.hello());
    } else {
      listener_->OnWorkerMessage(generation, std::move(message));
    }
  }
}

}  // namespace soup::daemon
