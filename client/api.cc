#include "client/api.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/exit_codes.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

using namespace soup::v1;  // NOLINT: every line here speaks of its messages

constexpr int kAttempts = 4;
constexpr absl::Duration kFirstWait = absl::Milliseconds(250);
constexpr absl::Duration kLastWait = absl::Seconds(2);
constexpr absl::Duration kWorkDeadline = absl::Minutes(10);
constexpr int kPageSize = 500;

// Why the unix socket of a connection cannot be reached; 0: it can, or it is another kind.
int SocketError(const Connection& connection) {
  absl::string_view path = connection.grpc_target;
  if (!absl::ConsumePrefix(&path, "unix:")) return 0;
  return access(std::string(path).c_str(), F_OK) == 0 ? 0 : errno;
}

}  // namespace

absl::Duration Backoff::Next() {
  thread_local std::minstd_rand rng{std::random_device()()};
  const double factor = std::uniform_real_distribution<double>(0.75, 1.25)(rng);
  const absl::Duration wait = next_ * factor;
  next_ = std::min(next_ * 2, last_);
  return wait;
}

std::string NewRequestId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", random());
  return id;
}

absl::StatusOr<std::unique_ptr<Api>> Api::Create(const ConnectionFlags& flags,
                                                 absl::Duration unary_deadline) {
  SOUP_ASSIGN_OR_RETURN(Connection connection, ResolveConnection(flags));
  SOUP_ASSIGN_OR_RETURN(auto channel, MakeChannel(connection));
  return std::unique_ptr<Api>(new Api(std::move(connection), std::move(channel), unary_deadline));
}

Api::Api(Connection connection, std::shared_ptr<grpc::Channel> channel,
         absl::Duration unary_deadline)
    : connection_(std::move(connection)),
      channel_(std::move(channel)),
      stub_(Soup::NewStub(channel_)),
      unary_deadline_(unary_deadline) {}

absl::Status Api::Explain(const grpc::Status& status, const std::string& doing) const {
  if (status.ok()) return absl::OkStatus();
  if (PendingSignal() != 0 && status.error_code() == grpc::StatusCode::CANCELLED) {
    return InterruptedError(PendingSignal(), absl::StrCat(doing, ": interrupted"));
  }
  const std::string at =
      absl::StrCat(connection_.endpoint, " (from ", connection_.endpoint_from, ")");
  std::string message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    switch (SocketError(connection_)) {
      case ENOENT:
        message = absl::StrCat("soupd is not running: there is no socket at ", at,
                               "; start soupd, or name another endpoint with --endpoint");
        break;
      case EACCES:
        message = absl::StrCat("you may not reach the socket at ", at,
                               ", a folder above it is closed to you; ask soupd's admin for an "
                               "endpoint that all may reach, such as unix:/run/soupd/soupd.sock");
        break;
      default:
        message = absl::StrCat("soupd at ", at, " cannot be reached or is stopping: ", message,
                               "; see: soupctl doctor");
    }
  } else if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    absl::StrAppend(&message, " (endpoint ", at,
                    connection_.token_from.empty()
                        ? ", no token was given; use --token-file, SOUP_TOKEN or a context)"
                        : absl::StrCat(", token from ", connection_.token_from, ")"));
  }
  return FromGrpc(grpc::Status(status.error_code(), message), doing);
}

template <typename Request, typename Reply>
absl::StatusOr<Reply> Api::Call(std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (
                                    Stub::*start)(grpc::ClientContext*, const Request&,
                                                  grpc::CompletionQueue*),
                                const Request& request, const std::string& doing,
                                absl::Duration deadline) {
  Backoff backoff(kFirstWait, kLastWait);
  for (int attempt = 1;; ++attempt) {
    Reply reply;
    const grpc::Status status = CallUnary(stub_.get(), start, request, deadline, &reply);
    if (status.ok()) return reply;
    absl::Status error = Explain(status, doing);
    // A unix socket that is not there is no passing trouble; say so at once.
    const bool absent = SocketError(connection_) != 0;
    if (!IsRetriable(error) || absent || attempt == kAttempts) return error;
    if (!SleepUnlessInterrupted(backoff.Next())) {
      return InterruptedError(PendingSignal(), absl::StrCat(doing, ": interrupted"));
    }
  }
}

absl::StatusOr<Job> Api::Submit(const JobSpec& spec, const std::string& request_id) {
  SubmitRequest request;
  request.set_request_id(request_id);
  *request.mutable_spec() = spec;
  return Call(&Stub::AsyncSubmit, request, "submit", unary_deadline_);
}

absl::StatusOr<PlanReply> Api::Plan(const JobSpec& spec) {
  PlanRequest request;
  *request.mutable_spec() = spec;
  return Call(&Stub::AsyncPlan, request, "plan", std::max(unary_deadline_, kWorkDeadline));
}

absl::StatusOr<Job> Api::Get(const std::string& job) {
  GetRequest request;
  request.set_job_id(job);
  return Call(&Stub::AsyncGet, request, absl::StrCat("job ", job), unary_deadline_);
}

absl::StatusOr<std::vector<Job>> Api::List(ListRequest request, int64_t limit, bool* more) {
  std::vector<Job> jobs;
  *more = false;
  for (;;) {
    const int64_t left = limit == 0 ? kPageSize : limit - static_cast<int64_t>(jobs.size());
    request.set_page_size(static_cast<int32_t>(std::min<int64_t>(left, kPageSize)));
    SOUP_ASSIGN_OR_RETURN(ListReply reply,
                          Call(&Stub::AsyncList, request, "list", unary_deadline_));
    for (Job& job : *reply.mutable_jobs()) jobs.push_back(std::move(job));
    if (reply.next_page_token().empty()) return jobs;
    if (reply.next_page_token() == request.page_token()) {
      return absl::InternalError("list: soupd gave the same page token twice");
    }
    request.set_page_token(reply.next_page_token());
    if (limit != 0 && static_cast<int64_t>(jobs.size()) >= limit) {
      *more = true;
      return jobs;
    }
  }
}

absl::StatusOr<Job> Api::Act(std::unique_ptr<grpc::ClientAsyncResponseReader<Job>> (Stub::*start)(
                                 grpc::ClientContext*, const JobRequest&, grpc::CompletionQueue*),
                             const std::string& job_id, const std::string& verb) {
  JobRequest request;
  request.set_request_id(NewRequestId());
  request.set_job_id(job_id);
  return Call(start, request, absl::StrCat(verb, " ", job_id), unary_deadline_);
}

absl::StatusOr<Job> Api::Pause(const std::string& job_id) {
  return Act(&Stub::AsyncPause, job_id, "pause");
}
absl::StatusOr<Job> Api::Resume(const std::string& job_id) {
  return Act(&Stub::AsyncResume, job_id, "resume");
}
absl::StatusOr<Job> Api::Cancel(const std::string& job_id) {
  return Act(&Stub::AsyncCancel, job_id, "cancel");
}

absl::StatusOr<GetMetricsReply> Api::GetMetrics(const GetMetricsRequest& request) {
  return Call(&Stub::AsyncGetMetrics, request, absl::StrCat("metrics of ", request.job_id()),
              unary_deadline_);
}

absl::StatusOr<StatUploadReply> Api::StatUpload(const StatUploadRequest& request) {
  return Call(&Stub::AsyncStatUpload, request, "upload", unary_deadline_);
}

absl::StatusOr<ListArtifactsReply> Api::ListArtifacts(const std::string& job_id) {
  ListArtifactsRequest request;
  request.set_job_id(job_id);
  return Call(&Stub::AsyncListArtifacts, request, absl::StrCat("artifacts of ", job_id),
              unary_deadline_);
}

absl::StatusOr<PreviewDataReply> Api::PreviewData(const PreviewDataRequest& request) {
  return Call(&Stub::AsyncPreviewData, request, "data preview",
              std::max(unary_deadline_, kWorkDeadline));
}

absl::StatusOr<ListCacheReply> Api::ListCache() {
  return Call(&Stub::AsyncListCache, ListCacheRequest(), "cache ls", unary_deadline_);
}

absl::StatusOr<EvictCacheReply> Api::EvictCache(const std::string& fingerprint,
                                                const std::string& format) {
  EvictCacheRequest request;
  request.set_request_id(NewRequestId());
  request.set_fingerprint(fingerprint);
  request.set_format(format);
  return Call(&Stub::AsyncEvictCache, request, absl::StrCat("cache evict ", fingerprint),
              std::max(unary_deadline_, kWorkDeadline));
}

absl::StatusOr<Node> Api::GetNode() {
  return Call(&Stub::AsyncGetNode, GetNodeRequest(), "node", unary_deadline_);
}

}  // namespace soup::client
