// A soup.v1 server in the test's process, with scripted faults: what soupctl is held against
// without a soupd. Keeps jobs, uploads and artifacts in memory. Thread-safe.
#ifndef SOUP_TESTS_CLIENT_FAKE_SOUP_H_
#define SOUP_TESTS_CLIENT_FAKE_SOUP_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "soup/v1/soup.grpc.pb.h"

namespace soup::client {

class FakeSoup final : public soup::v1::Soup::Service {
 public:
  // Faults, each used up as it strikes. Set before the calls, read with Locked.
  struct Faults {
    int submit_unavailable_after = 0;  // calls that take effect, then answer UNAVAILABLE
    int get_unavailable = 0;
    int64_t cut_upload_after_bytes = -1;    // once: the stream breaks when so much has come
    int64_t stall_upload_after_bytes = -1;  // reads no further until the caller goes
    int lose_upload_replies = 0;            // completed, but the answer is UNAVAILABLE
    std::vector<int> cut_watch_after;       // items of each connection before it breaks
    bool watch_ends_early = false;          // once: ends in order though the job goes on
    bool silent_watch = false;              // once: says nothing at all
    int64_t cut_fetch_after_bytes = -1;     // once
    bool corrupt_fetch = false;
    grpc::Status every_call = grpc::Status::OK;
  };
  struct Seen {
    int submits = 0;
    int uploads = 0;
    int64_t upload_bytes = 0;
    int64_t largest_chunk = 0;
    bool stalled = false;
    std::vector<int64_t> upload_offsets;  // first chunk of each stream
    std::vector<soup::v1::WatchRequest> watches;
    std::vector<int64_t> fetch_offsets;
    std::set<std::string> request_ids;
    std::string authorization;
  };

  FakeSoup();

  // A job with its whole history; Watch tells it from the cursors.
  soup::v1::Job* AddJob(const std::string& id, const std::string& name, soup::v1::JobState state);
  void AddEvent(const std::string& id, soup::v1::JobState state, const std::string& message = "",
                soup::v1::Reason reason = soup::v1::REASON_UNSPECIFIED);
  void AddStep(const std::string& id, int64_t step, double loss);
  void AddArtifact(const std::string& id, const std::string& name, const std::string& data);
  void SetJob(const soup::v1::Job& job);
  soup::v1::Job GetJob(const std::string& id);
  std::string Uploaded(const std::string& sha256);
  soup::v1::Node* mutable_node() { return &node_; }
  soup::v1::PlanReply* mutable_plan() { return &plan_; }

  template <typename Fn>
  void WithFaults(Fn fn) {
    absl::MutexLock lock(&mutex_);
    fn(faults_);
  }
  Seen seen() {
    absl::MutexLock lock(&mutex_);
    return seen_;
  }
  // Until an upload stalls; false after a minute.
  bool AwaitStall();
  // Until `count` Watch streams have begun; false after a minute.
  bool AwaitWatches(size_t count);

  // unix: when `socket` is a path, else TLS on a free port of 127.0.0.1. `token` empty: none
  // wanted.
  void ServeUnix(const std::string& socket);
  int ServeTls(const std::string& certificate, const std::string& key, const std::string& token);
  void Stop();
  ~FakeSoup() override { Stop(); }

  using Context = grpc::ServerContext;
  grpc::Status Submit(Context*, const soup::v1::SubmitRequest*, soup::v1::Job*) override;
  grpc::Status Plan(Context*, const soup::v1::PlanRequest*, soup::v1::PlanReply*) override;
  grpc::Status Get(Context*, const soup::v1::GetRequest*, soup::v1::Job*) override;
  grpc::Status List(Context*, const soup::v1::ListRequest*, soup::v1::ListReply*) override;
  grpc::Status Watch(Context*, const soup::v1::WatchRequest*,
                     grpc::ServerWriter<soup::v1::WatchReply>*) override;
  grpc::Status Pause(Context*, const soup::v1::JobRequest*, soup::v1::Job*) override;
  grpc::Status Resume(Context*, const soup::v1::JobRequest*, soup::v1::Job*) override;
  grpc::Status Cancel(Context*, const soup::v1::JobRequest*, soup::v1::Job*) override;
  grpc::Status GetMetrics(Context*, const soup::v1::GetMetricsRequest*,
                          soup::v1::GetMetricsReply*) override;
  grpc::Status GetLogs(Context*, const soup::v1::GetLogsRequest*,
                       grpc::ServerWriter<soup::v1::LogChunk>*) override;
  grpc::Status StatUpload(Context*, const soup::v1::StatUploadRequest*,
                          soup::v1::StatUploadReply*) override;
  grpc::Status UploadFile(Context*, grpc::ServerReader<soup::v1::UploadChunk>*,
                          soup::v1::UploadReply*) override;
  grpc::Status ListArtifacts(Context*, const soup::v1::ListArtifactsRequest*,
                             soup::v1::ListArtifactsReply*) override;
  grpc::Status FetchArtifact(Context*, const soup::v1::FetchArtifactRequest*,
                             grpc::ServerWriter<soup::v1::ArtifactChunk>*) override;
  grpc::Status PreviewData(Context*, const soup::v1::PreviewDataRequest*,
                           soup::v1::PreviewDataReply*) override;
  grpc::Status ListCache(Context*, const soup::v1::ListCacheRequest*,
                         soup::v1::ListCacheReply*) override;
  grpc::Status PrefetchCache(Context*, const soup::v1::PrefetchCacheRequest*,
                             grpc::ServerWriter<soup::v1::PrefetchReply>*) override;
  grpc::Status EvictCache(Context*, const soup::v1::EvictCacheRequest*,
                          soup::v1::EvictCacheReply*) override;
  grpc::Status GetNode(Context*, const soup::v1::GetNodeRequest*, soup::v1::Node*) override;

 private:
  struct Record {
    soup::v1::Job job;
    std::vector<soup::v1::WatchReply> history;  // events and steps as they came
    std::map<std::string, std::string> artifacts;
    std::string log;
  };

  // The token, and the fault that strikes every call.
  grpc::Status Admit(const Context& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Record* Find(const std::string& id_or_name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  grpc::Status Act(Context* context, const soup::v1::JobRequest& request, soup::v1::JobState state,
                   soup::v1::Job* reply);

  absl::Mutex mutex_;
  Faults faults_ ABSL_GUARDED_BY(mutex_);
  Seen seen_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Record> records_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> by_request_id_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> partial_, whole_ ABSL_GUARDED_BY(mutex_);
  soup::v1::Node node_;
  soup::v1::PlanReply plan_;
  std::string token_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace soup::client

#endif  // SOUP_TESTS_CLIENT_FAKE_SOUP_H_
