// soupd's unary calls, each with a deadline, retried a bounded number of times when soupd cannot be
// reached or is draining (every call is a read or carries a request id, so a repeat is safe), and
// with errors that say what to do about them.
//
// Errors: those of soup.proto, made by FromGrpc; InterruptedError after a signal.
// Used by one thread at a time.
#ifndef SOUP_CLIENT_API_H_
#define SOUP_CLIENT_API_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/rpc.h"
#include "soup/v1/soup.grpc.pb.h"

namespace soup::client {

// 128 random bits in hex.
std::string NewRequestId();

class Api {
 public:
  using Stub = soup::v1::Soup::Stub;

  // `unary_deadline` is for calls that soupd answers from its records; those that work (plan,
  // preview, evict) get at least ten minutes.
  static absl::StatusOr<std::unique_ptr<Api>> Create(const ConnectionFlags& flags,
                                                     absl::Duration unary_deadline);

  const Connection& connection() const { return connection_; }
  Stub* stub() { return stub_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  absl::StatusOr<soup::v1::Job> Submit(const soup::v1::JobSpec& spec,
                                       const std::string& request_id);
  absl::StatusOr<soup::v1::PlanReply> Plan(const soup::v1::JobSpec& spec);
  // By id, or the newest of the caller's jobs with that name.
  absl::StatusOr<soup::v1::Job> Get(const std::string& job);
  // All pages, newest first, at most `limit` jobs (0: all). *more tells that there are others.
  absl::StatusOr<std::vector<soup::v1::Job>> List(soup::v1::ListRequest request, int64_t limit,
                                                  bool* more);
  // By id, as Get resolved it.
  absl::StatusOr<soup::v1::Job> Pause(const std::string& job_id);
  absl::StatusOr<soup::v1::Job> Resume(const std::string& job_id);
  absl::StatusOr<soup::v1::Job> Cancel(const std::string& job_id);
  absl::StatusOr<soup::v1::GetMetricsReply> GetMetrics(const soup::v1::GetMetricsRequest& request);
  absl::StatusOr<soup::v1::StatUploadReply> StatUpload(const soup::v1::StatUploadRequest& request);
  absl::StatusOr<soup::v1::ListArtifactsReply> ListArtifacts(const std::string& job_id);
  absl::StatusOr<soup::v1::PreviewDataReply> PreviewData(
      const soup::v1::PreviewDataRequest& request);
  absl::StatusOr<soup::v1::ListCacheReply> ListCache();
  absl::StatusOr<soup::v1::EvictCacheReply> EvictCache(const std::string& fingerprint,
                                                       const std::string& format);
  absl::StatusOr<soup::v1::Node> GetNode();

  // An answer of gRPC as an error of ours: the endpoint and the remedy added where soupd was not
  // reached or did not accept the caller.
  absl::Status Explain(const grpc::Status& status, const std::string& doing) const;

 private:
  Api(Connection connection, std::shared_ptr<grpc::Channel> channel, absl::Duration unary_deadline);

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (Stub::*start)(
                                 grpc::ClientContext*, const Request&, grpc::CompletionQueue*),
                             const Request& request, const std::string& doing,
                             absl::Duration deadline);
  absl::StatusOr<soup::v1::Job> Act(
      std::unique_ptr<grpc::ClientAsyncResponseReader<soup::v1::Job>> (Stub::*start)(
          grpc::ClientContext*, const soup::v1::JobRequest&, grpc::CompletionQueue*),
      const std::string& job_id, const std::string& verb);

  const Connection connection_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Stub> stub_;
  const absl::Duration unary_deadline_;
};

// Waits between attempts: doubling from `first`, at most `last`, with jitter so that many clients
// do not come back at once.
class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration last) : first_(first), last_(last), next_(first) {}
  absl::Duration Next();
  void Reset() { next_ = first_; }

 private:
  const absl::Duration first_, last_;
  absl::Duration next_;
};

}  // namespace soup::client

#endif  // SOUP_CLIENT_API_H_
