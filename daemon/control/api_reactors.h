// Two shapes that all handlers have: a unary answer made on a pool thread, and a stream whose next
// message is made on a pool thread. gRPC's own threads never wait for a disk, a lock of ours or the
// orchestrator.
#ifndef SOUP_DAEMON_CONTROL_API_REACTORS_H_
#define SOUP_DAEMON_CONTROL_API_REACTORS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/api_context.h"
#include "daemon/control/api_status.h"

namespace soup::daemon {

inline absl::Status BusyError() {
  return absl::ResourceExhaustedError("soupd is busy: too many calls wait; try again");
}

// Authenticates, then runs `answer(principal)` -> absl::Status on `pool`. What `answer` refers to
// must live until it returns; request, reply and call do.
template <typename Answer>
grpc::ServerUnaryReactor* RunUnary(const ApiContext& api, grpc::CallbackServerContext* call,
                                   ThreadPool& pool, Answer answer) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const absl::StatusOr<Principal> who = api.Authenticate(*call);
  if (!who.ok()) {
    reactor->Finish(ToGrpcStatus(who.status()));
    return reactor;
  }
  const bool taken = pool.TrySubmit([reactor, who = *who, answer = std::move(answer)]() mutable {
    reactor->Finish(ToGrpcStatus(answer(who)));
  });
  if (!taken) reactor->Finish(ToGrpcStatus(BusyError()));
  return reactor;
}

// A server stream that pulls: Next() is called on the pool, one call at a time, whenever a message
// can go out. One message is in flight, so memory is one message whatever the client's pace.
template <typename Reply>
class PumpedStream : public grpc::ServerWriteReactor<Reply>,
                     public std::enable_shared_from_this<PumpedStream<Reply>> {
 public:
  explicit PumpedStream(ThreadPool& pool) : pool_(pool) {}

  // Gives `stream` to gRPC; it lives until gRPC is done with it. Finishes at once when the pool is
  // full.
  static grpc::ServerWriteReactor<Reply>* Begin(std::shared_ptr<PumpedStream> stream) {
    PumpedStream* raw = stream.get();
    {
      absl::MutexLock lock(&raw->mutex_);
      raw->self_ = stream;
    }
    if (!raw->pool_.TrySubmit([keep = stream] { keep->Pump(); })) raw->End(BusyError());
    return raw;
  }

  // There may be something to send. Any thread.
  void Wake() {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kWaiting) {
      Schedule();
    } else {
      woken_ = true;
    }
  }
  bool cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 protected:
  enum class Step { kWrite, kWait, kEnd };
  // Fills `reply` and says kWrite, or waits for Wake(), or ends the stream well.
  virtual absl::StatusOr<Step> Next(Reply* reply) = 0;
  // Called once, before the stream is let go; Next() will not be called again.
  virtual void Closed() {}

 private:
  enum class Phase { kScheduled, kWriting, kWaiting, kDone };

  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    phase_ = Phase::kScheduled;
    pool_.SubmitContinuation([keep = self_] { keep->Pump(); });
  }

  // gRPC is never called with the lock held: it may call back in the same thread.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      phase_ = Phase::kDone;
    }
    this->Finish(ToGrpcStatus(status));
  }

  // Decides what follows a kWait: true when it waits, false to look again.
  bool BeginWaiting() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (woken_ || cancelled_) return false;
    phase_ = Phase::kWaiting;
    return true;
  }

  bool StartTurn() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    woken_ = false;
    return !cancelled_;
  }

  void Pump() ABSL_LOCKS_EXCLUDED(mutex_) {
    while (true) {
      if (!StartTurn()) return End(absl::CancelledError("the caller went away"));
      reply_.Clear();
      const absl::StatusOr<Step> step = Next(&reply_);
      if (!step.ok()) return End(step.status());
      if (*step == Step::kEnd) return End(absl::OkStatus());
      if (*step == Step::kWrite) {
        {
          absl::MutexLock lock(&mutex_);
          phase_ = Phase::kWriting;
        }
        return this->StartWrite(&reply_);
      }
      if (BeginWaiting()) return;
    }
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      if (ok && !cancelled_) return Schedule();
    }
    End(absl::CancelledError("the caller went away"));
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      if (phase_ != Phase::kWaiting) return;  // Whoever works on it sees the flag.
      phase_ = Phase::kDone;
    }
    End(absl::CancelledError("the caller went away"));
  }

  void OnDone() override {
    Closed();
    std::shared_ptr<PumpedStream> last;
    {
      absl::MutexLock lock(&mutex_);
      last = std::move(self_);
    }
    // A pool task may still hold a reference for the rest of its last turn; else it dies here.
  }

  ThreadPool& pool_;
  mutable absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kScheduled;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<PumpedStream> self_ ABSL_GUARDED_BY(mutex_);
  Reply reply_;  // pool thread while kScheduled, gRPC while kWriting
};

// A stream that has nothing to say but why not.
template <typename Reply>
grpc::ServerWriteReactor<Reply>* RefuseStream(const absl::Status& status) {
  class Refusal final : public grpc::ServerWriteReactor<Reply> {
   public:
    explicit Refusal(const absl::Status& why) { this->Finish(ToGrpcStatus(why)); }
    void OnDone() override { delete this; }
  };
  return new Refusal(status);
}

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_API_REACTORS_H_
