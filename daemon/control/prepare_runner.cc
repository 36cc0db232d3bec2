#include "daemon/control/prepare_runner.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/common/link.h"
#include "daemon/control/spawn.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {

using soup::worker::v1::FromPrepare;
using soup::worker::v1::PrepareReply;
using soup::worker::v1::PrepareRequest;

PrepareRunner::PrepareRunner(PrepareRunnerOptions options) : options_(std::move(options)) {}

absl::Status PrepareRunner::AwaitTurn(Cancellation* cancel, absl::Time deadline) {
  bool cancelled = false;
  cancel->SetWaker([this, &cancelled] {
    absl::MutexLock lock(&mu_);
    cancelled = true;
  });
  absl::Cleanup unhook = [cancel] { cancel->SetWaker(nullptr); };
  absl::MutexLock lock(&mu_);
  auto ready = [this, &cancelled]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return cancelled || running_ < options_.max_at_once;
  };
  if (!mu_.AwaitWithDeadline(absl::Condition(&ready), deadline))
    return absl::DeadlineExceededError("the preparation of the data did not get its turn in time");
  if (cancelled) return absl::CancelledError("cancelled");
  ++running_;
  return absl::OkStatus();
}

namespace {

constexpr absl::Duration kWaits[] = {absl::Seconds(1), absl::Seconds(5)};

// Sleeps; false: cancelled, or the deadline comes first.
bool Wait(absl::Duration wait, Cancellation* cancel, absl::Time deadline) {
  if (absl::Now() + wait >= deadline) return false;
  absl::Notification woken;
  cancel->SetWaker([&woken] { woken.Notify(); });  // called once at most
  const bool cancelled = woken.WaitForNotificationWithTimeout(wait);
  cancel->SetWaker(nullptr);
  return !cancelled;
}

PrepareReply ReplyOfSilence(const PrepareRunnerOptions& options) {
  PrepareReply reply;
  reply.set_ok(false);
  reply.set_reason(soup::v1::INVALID_INPUT);
  reply.set_error(absl::StrCat(
      "the process that prepares the data gave no sign of life for ",
      absl::FormatDuration(options.silence_limit),
      " and was ended: the disk or network that holds the base or the data does not answer; see "
      "that their files can be read, then submit the job anew"));
  return reply;
}

// A child that ended without a reply, told as one.
PrepareReply ReplyOfDeath(const ChildEnd& end, const PrepareRunnerOptions& options) {
  PrepareReply reply;
  reply.set_ok(false);
  if (end.signal == SIGXCPU) {
    reply.set_reason(soup::v1::DATA);
    reply.set_error(absl::StrCat("preparing the data took more than ", options.cpu_limit_seconds,
                                 " CPU seconds; use a smaller file, or raise --prepare-cpu-seconds "
                                 "of soupd"));
  } else {
    reply.set_reason(soup::v1::INTERNAL);
    reply.set_error(
        absl::StrCat("the process that prepares the data died (", end.ToString(), "), ",
                     end.signal == SIGKILL
                         ? "each time it was tried; the kernel kills so where memory is short; "
                         : "",
                     "its memory is limited to ", options.memory_limit_bytes,
                     " bytes (--prepare-memory of soupd)"));
  }
  return reply;
}

}  // namespace

absl::StatusOr<PrepareReply> PrepareRunner::Run(
    PrepareRequest request, Cancellation* cancel, absl::Time deadline,
    const std::function<void(const soup::v1::Progress&)>& progress) {
  SOUP_RETURN_IF_ERROR(AwaitTurn(cancel, deadline));
  absl::Cleanup done = [this] {
    absl::MutexLock lock(&mu_);
    --running_;
  };
  request.set_memory_limit_bytes(options_.memory_limit_bytes);
  request.set_cpu_limit_seconds(options_.cpu_limit_seconds);
  bool killed = false;
  auto reply = RunOnce(request, cancel, deadline, progress, &killed);
  for (const absl::Duration wait : kWaits) {
    if (!killed) break;
    SOUP_LOG(kWarn, "prepare") << "the process that prepares data was killed; again in " << wait;
    if (!Wait(wait, cancel, deadline)) break;
    reply = RunOnce(request, cancel, deadline, progress, &killed);
  }
  if (cancel->cancelled()) return absl::CancelledError("cancelled");
  return reply;
}

absl::StatusOr<PrepareReply> PrepareRunner::RunOnce(
    const PrepareRequest& request, Cancellation* cancel, absl::Time deadline,
    const std::function<void(const soup::v1::Progress&)>& progress, bool* killed) {
  *killed = false;
  SOUP_ASSIGN_OR_RETURN(auto pair, Link::MakePair());
  SOUP_ASSIGN_OR_RETURN(const pid_t pid,
                        SpawnChild(options_.binary,
                                   {"--prepare", absl::StrCat("--link-fd=", kChildLinkFd),
                                    absl::StrCat("--parent-pid=", ::getpid())},
                                   pair.second.get()));
  pair.second.Reset();
  Link link(std::move(pair.first));
  cancel->SetWaker([&link] { link.Close(); });
  absl::Cleanup unhook = [cancel] { cancel->SetWaker(nullptr); };

  absl::Status status = link.Send(request);
  bool silent = false;
  while (status.ok()) {
    const absl::Time patience = absl::Now() + options_.silence_limit;
    absl::StatusOr<Frame> frame = link.Receive(std::min(deadline, patience));
    if (!frame.ok()) {
      silent = absl::IsDeadlineExceeded(frame.status()) && patience < deadline;
      status = frame.status();
      break;
    }
    FromPrepare message;
    if (!message.ParseFromString(frame->bytes)) {
      status = absl::DataLossError("the preparing process sent what is no message");
      break;
    }
    if (message.item_case() == FromPrepare::kReply) {
      CollectChild(pid, absl::Now() + absl::Seconds(1));
      if (cancel->cancelled()) return absl::CancelledError("cancelled");
      return std::move(*message.mutable_reply());
    }
    if (progress && message.item_case() == FromPrepare::kProgress) progress(message.progress());
  }
  // Its own end, if it is ending, tells more than our kill would.
  const bool cancelled = cancel->cancelled();
  const bool late = absl::IsDeadlineExceeded(status) && !silent;
  const ChildEnd end =
      CollectChild(pid, cancelled || late || silent ? absl::Now() : absl::Now() + absl::Seconds(1));
  if (cancelled) return absl::CancelledError("cancelled");
  if (silent) return ReplyOfSilence(options_);
  if (late) return absl::DeadlineExceededError("the preparation of the data took too long");
  *killed = end.signal == SIGKILL;
  return ReplyOfDeath(end, options_);
}

}  // namespace soup::daemon
