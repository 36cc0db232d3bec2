// Calls over gRPC that can be given up: each wait has a limit and ends when a signal comes.
//
// Built on the asynchronous stubs with a completion queue a call, driven by the calling thread; no
// thread is started. A call object belongs to one thread. Its destructor cancels what is pending
// and drains the queue, so nothing outlives it.
#ifndef SOUP_CLIENT_RPC_H_
#define SOUP_CLIENT_RPC_H_

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/interrupt.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/support/async_stream.h"
#include "grpcpp/support/async_unary_call.h"

namespace soup::client {

enum class WaitResult { kDone, kTimeout, kInterrupted };

// One call's context and queue; at most one operation is pending at a time.
class PendingCall {
 public:
  PendingCall() = default;
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;
  ~PendingCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  grpc::ClientContext& context() { return context_; }
  grpc::CompletionQueue& queue() { return queue_; }

  // Waits for the pending operation; *ok is its result. After kTimeout and kInterrupted it is still
  // pending: wait again, or Cancel and Drain.
  WaitResult Wait(bool* ok, absl::Duration limit) {
    constexpr absl::Duration kSlice = absl::Milliseconds(50);  // how soon a signal is seen
    const absl::Time end = absl::Now() + limit;
    for (;;) {
      const absl::Time until = std::min(end, absl::Now() + kSlice);
      void* tag;
      const auto next = queue_.AsyncNext(&tag, ok, absl::ToChronoTime(until));
      if (next == grpc::CompletionQueue::GOT_EVENT) return WaitResult::kDone;
      if (PendingSignal() != 0) return WaitResult::kInterrupted;
      if (absl::Now() >= end) return WaitResult::kTimeout;
    }
  }
  void Cancel() { context_.TryCancel(); }
  // The pending operation's end, after Cancel: gRPC completes it at once.
  void Drain() {
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }

 private:
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
};

inline grpc::Status GivenUp(WaitResult why) {
  return why == WaitResult::kInterrupted
             ? grpc::Status(grpc::StatusCode::CANCELLED, "interrupted by a signal")
             : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                            "soupd did not answer in time; is it overloaded? see: soupctl doctor");
}

// One request, one reply, with a deadline that soupd sees too.
template <typename Stub, typename Request, typename Reply>
grpc::Status CallUnary(Stub* stub,
                       std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (Stub::*start)(
                           grpc::ClientContext*, const Request&, grpc::CompletionQueue*),
                       const Request& request, absl::Duration deadline, Reply* reply) {
  PendingCall call;
  call.context().set_deadline(absl::ToChronoTime(absl::Now() + deadline));
  auto reader = (stub->*start)(&call.context(), request, &call.queue());
  grpc::Status status;
  reader->Finish(reply, &status, &call);
  bool ok = false;
  // gRPC ends the call itself at the deadline; the slack is only for that answer to arrive.
  const WaitResult result = call.Wait(&ok, deadline + absl::Seconds(5));
  if (result == WaitResult::kDone) return status;
  call.Cancel();
  call.Drain();
  return GivenUp(result);
}

// A stream of replies.
template <typename Reply>
class ReplyStream {
 public:
  enum class Next {
    kReply,
    kEnd,          // see Finish
    kIdle,         // nothing within the limit; the stream goes on
    kInterrupted,  // a signal; the stream is still open
  };

  template <typename Stub, typename Request>
  ReplyStream(Stub* stub,
              std::unique_ptr<grpc::ClientAsyncReader<Reply>> (Stub::*start)(
                  grpc::ClientContext*, const Request&, grpc::CompletionQueue*, void*),
              const Request& request)
      : reader_((stub->*start)(&call_.context(), request, &call_.queue(), this)) {}
  ~ReplyStream() {
    if (!finished_) Finish();
  }

  // Waits for the next reply, at most `limit`. `reply()` is valid until the next call.
  Next Read(absl::Duration limit) {
    if (ended_) return Next::kEnd;
    const absl::Time end = absl::Now() + limit;
    for (;;) {
      // Asked before each reply: a stream that always has one more must not outlast a signal.
      if (PendingSignal() != 0) return Next::kInterrupted;
      if (!pending_) {
        reader_->Read(&reply_, this);
        pending_ = true;
      }
      bool ok = false;
      switch (call_.Wait(&ok, end - absl::Now())) {
        case WaitResult::kTimeout:
          return Next::kIdle;
        case WaitResult::kInterrupted:
          return Next::kInterrupted;
        case WaitResult::kDone:
          break;
      }
      pending_ = false;
      if (!ok) {
        ended_ = true;
        return Next::kEnd;
      }
      if (started_) return Next::kReply;
      started_ = true;
    }
  }
  const Reply& reply() const { return reply_; }

  // The stream's status; ends it when it goes on still. Called once, last.
  grpc::Status Finish() {
    finished_ = true;
    if (!ended_) call_.Cancel();
    if (pending_) call_.Drain();
    pending_ = false;
    grpc::Status status;
    reader_->Finish(&status, this);
    bool ok = false;
    constexpr absl::Duration kLimit = absl::Seconds(10);
    if (call_.Wait(&ok, kLimit) == WaitResult::kDone) return status;
    call_.Cancel();
    call_.Drain();
    return status;
  }

 private:
  PendingCall call_;
  std::unique_ptr<grpc::ClientAsyncReader<Reply>> reader_;
  Reply reply_;
  bool pending_ = true;  // the start of the call
  bool started_ = false;
  bool ended_ = false;
  bool finished_ = false;
};

// A stream of requests with one reply.
template <typename Request, typename Reply>
class RequestStream {
 public:
  template <typename Stub>
  RequestStream(Stub* stub, std::unique_ptr<grpc::ClientAsyncWriter<Request>> (Stub::*start)(
                                grpc::ClientContext*, Reply*, grpc::CompletionQueue*, void*))
      : writer_((stub->*start)(&call_.context(), &reply_, &call_.queue(), this)) {}
  ~RequestStream() {
    if (finished_) return;
    call_.Cancel();
    failed_ = true;
    Reply ignored;
    Finish(absl::Seconds(10), &ignored);
  }

  // False: the call has ended, or did not move for `limit`, or a signal came. Then Finish.
  bool Write(const Request& request, absl::Duration limit) {
    if (!started_) {
      started_ = true;
      if (!Settle(limit)) return false;
    }
    writer_->Write(request, this);
    return Settle(limit);
  }

  // Ends the requests when every Write was true, waits for the reply.
  grpc::Status Finish(absl::Duration limit, Reply* reply) {
    finished_ = true;
    if (!started_) Settle(limit);  // the start of the call; nothing was written
    if (!failed_) {
      writer_->WritesDone(this);
      Settle(limit);
    }
    grpc::Status status;
    writer_->Finish(&status, this);
    bool ok = false;
    const WaitResult result =
        call_.Wait(&ok, gave_up_ == WaitResult::kDone ? limit : absl::Seconds(10));
    if (result != WaitResult::kDone) {
      call_.Cancel();
      call_.Drain();
      if (gave_up_ == WaitResult::kDone) gave_up_ = result;
    }
    if (gave_up_ != WaitResult::kDone) return GivenUp(gave_up_);
    if (status.ok()) *reply = std::move(reply_);
    return status;
  }

 private:
  // Waits for the pending operation; on a timeout or signal cancels the call.
  bool Settle(absl::Duration limit) {
    bool ok = false;
    const WaitResult result = call_.Wait(&ok, limit);
    if (result != WaitResult::kDone) {
      gave_up_ = result;
      call_.Cancel();
      call_.Drain();
      ok = false;
    }
    failed_ = failed_ || !ok;
    return ok;
  }

  PendingCall call_;
  Reply reply_;
  std::unique_ptr<grpc::ClientAsyncWriter<Request>> writer_;
  bool started_ = false;
  bool failed_ = false;
  bool finished_ = false;
  WaitResult gave_up_ = WaitResult::kDone;
};

}  // namespace soup::client

#endif  // SOUP_CLIENT_RPC_H_
