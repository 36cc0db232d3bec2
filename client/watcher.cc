#include "client/watcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/exit_codes.h"
#include "client/units.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

using soup::v1::Job;
using soup::v1::WatchReply;
using soup::v1::WatchRequest;

// After an event of an end state soupd closes the stream; when it does not, we do.
constexpr absl::Duration kCloseLimit = absl::Seconds(5);

class Watcher {
 public:
  Watcher(Api* api, const std::string& job_id, const WatchOptions& options, WatchObserver* observer)
      : api_(api), job_id_(job_id), options_(options), observer_(observer) {
    sequence_ = options.after_sequence;
    step_ = options.after_step;
  }

  absl::StatusOr<Job> Run() {
    Backoff backoff(absl::Milliseconds(250), absl::Seconds(5));
    for (;;) {
      absl::Status status = Follow();
      if (status.ok()) {
        // The stream has ended in order: because the job has, or because soupd is stopping.
        absl::StatusOr<Job> job = api_->Get(job_id_);
        if (job.ok() && (IsTerminal(job->state()) || IsStopped(*job))) return job;
        status = job.ok() ? FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                                                  "soupd closed the stream before the job's end"),
                                     Doing())
                          : job.status();
      }
      if (!MayReconnect(status)) return status;
      if (absl::Now() - last_message_ > options_.reconnect_limit) {
        return FromGrpc(
            grpc::Status(
                grpc::StatusCode::UNAVAILABLE,
                absl::StrCat("no answer for ",
                             HumanDuration(absl::ToDoubleSeconds(options_.reconnect_limit)),
                             ", the last error: ", std::string(status.message()))),
            Doing());
      }
      if (absl::Now() >= options_.deadline) return TimedOut();
      const absl::Duration wait = std::min(backoff.Next(), options_.deadline - absl::Now());
      if (received_) backoff.Reset();
      received_ = false;
      disconnected_ = true;
      observer_->OnDisconnected(status, wait);
      if (!SleepUnlessInterrupted(wait)) return Interrupted();
    }
  }

 private:
  bool IsStopped(const Job& job) const {
    return options_.stop_when_paused && IsPausedBySystem(job);
  }
  std::string Doing() const { return absl::StrCat("watch ", job_id_); }

  absl::Status Interrupted() const {
    return InterruptedError(PendingSignal(), absl::StrCat("detached from job ", job_id_));
  }
  absl::Status TimedOut() const {
    return ErrorWithExitCode(ExitCode::kWaitTimeout,
                             absl::StrCat("job ", job_id_,
                                          " has not ended in the time given; it "
                                          "goes on"));
  }

  static bool MayReconnect(const absl::Status& status) {
    if (!IsRemote(status)) return false;
    switch (status.code()) {
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kDeadlineExceeded:
      case absl::StatusCode::kAborted:
      case absl::StatusCode::kCancelled:  // a proxy or a stopping soupd; ours are InterruptedError
        return true;
      default:
        return false;
    }
  }

  // One stream, to its end.
  absl::Status Follow() {
    WatchRequest request;
    request.set_job_id(job_id_);
    request.set_after_sequence(sequence_);
    request.set_after_step(step_);
    ReplyStream<WatchReply> stream(api_->stub(), &Api::Stub::AsyncWatch, request);
    absl::Time heard = absl::Now();
    for (;;) {
      constexpr absl::Duration kTick = absl::Seconds(1);
      const absl::Duration left = options_.deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return TimedOut();
      using Next = ReplyStream<WatchReply>::Next;
      const Next next = stream.Read(std::min(kTick, left));
      if (next == Next::kInterrupted) return Interrupted();
      if (next == Next::kEnd) return api_->Explain(stream.Finish(), Doing());
      if (next == Next::kReply) {
        heard = last_message_ = absl::Now();
        received_ = true;
        if (std::exchange(disconnected_, false)) observer_->OnReconnected();
        Take(stream.reply());
      }
      // A heartbeat or a second without a word: what there was is told. An old pause is history:
      // how the job stands now counts.
      if (pause_told_ && (next != Next::kReply || stream.reply().has_heartbeat())) {
        const absl::StatusOr<Job> job = api_->Get(job_id_);
        if (job.ok() && IsStopped(*job)) return absl::OkStatus();
        pause_told_ = !job.ok();
      }
      const absl::Duration silence = absl::Now() - heard;
      if (ended_ && silence > kCloseLimit) return absl::OkStatus();
      if (silence > options_.silence_limit) {
        return FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                                     absl::StrCat("nothing heard for ",
                                                  HumanDuration(absl::ToDoubleSeconds(silence)))),
                        Doing());
      }
      if (absl::Now() >= next_tick_) {
        observer_->OnTick();
        next_tick_ = absl::Now() + kTick;
      }
    }
  }

  void Take(const WatchReply& reply) {
    switch (reply.item_case()) {
      case WatchReply::kEvent:
        if (reply.event().sequence() <= sequence_) return;
        sequence_ = reply.event().sequence();
        ended_ = IsTerminal(reply.event().state());
        pause_told_ = options_.stop_when_paused && reply.event().state() == soup::v1::PAUSED;
        return observer_->OnEvent(reply.event());
      case WatchReply::kStep:
        if (reply.step().step() <= step_) return;
        step_ = reply.step().step();
        return observer_->OnStep(reply.step());
      case WatchReply::kProgress:
        return observer_->OnProgress(reply.progress());
      case WatchReply::kHeartbeat:
        return observer_->OnHeartbeat(reply.heartbeat());
      case WatchReply::ITEM_NOT_SET:
        return;  // an item of a newer soupd
    }
  }

  Api* const api_;
  const std::string job_id_;
  const WatchOptions options_;
  WatchObserver* const observer_;
  int64_t sequence_, step_;
  bool ended_ = false;         // an event of an end state has come
  bool pause_told_ = false;    // the last event is a pause, not looked into yet
  bool received_ = false;      // something has come since the last reconnect
  bool disconnected_ = false;  // and nothing yet
  absl::Time last_message_ = absl::Now();
  absl::Time next_tick_ = absl::Now();
};

}  // namespace

absl::StatusOr<Job> WatchJob(Api* api, const std::string& job_id, const WatchOptions& options,
                             WatchObserver* observer) {
  return Watcher(api, job_id, options, observer).Run();
}

}  // namespace soup::client
