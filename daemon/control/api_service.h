// soup.v1.Soup over gRPC's callback API. The class only routes: each group of calls is a file.
//   api_jobs.cc    Submit, Plan, Get, List, Pause, Resume, Cancel, GetMetrics, PreviewData
//   api_watch.cc   Watch
//   api_files.cc   GetLogs, ListArtifacts, FetchArtifact
//   api_upload.cc  StatUpload, UploadFile
//   api_node.cc    cache calls, GetNode
// Thread-safe; the context outlives it.
#ifndef SOUP_DAEMON_CONTROL_API_SERVICE_H_
#define SOUP_DAEMON_CONTROL_API_SERVICE_H_

#include "daemon/control/api_context.h"
#include "soup/v1/soup.grpc.pb.h"

namespace soup::daemon {

class SoupService final : public soup::v1::Soup::CallbackService {
 public:
  explicit SoupService(ApiContext& api) : api_(api) {}

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* call,
                                   const soup::v1::SubmitRequest* request,
                                   soup::v1::Job* reply) override;
  grpc::ServerUnaryReactor* Plan(grpc::CallbackServerContext* call,
                                 const soup::v1::PlanRequest* request,
                                 soup::v1::PlanReply* reply) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* call,
                                const soup::v1::GetRequest* request, soup::v1::Job* reply) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* call,
                                 const soup::v1::ListRequest* request,
                                 soup::v1::ListReply* reply) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* call,
                                  const soup::v1::JobRequest* request,
                                  soup::v1::Job* reply) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* call,
                                   const soup::v1::JobRequest* request,
                                   soup::v1::Job* reply) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* call,
                                   const soup::v1::JobRequest* request,
                                   soup::v1::Job* reply) override;
  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* call,
                                       const soup::v1::GetMetricsRequest* request,
                                       soup::v1::GetMetricsReply* reply) override;
  grpc::ServerUnaryReactor* PreviewData(grpc::CallbackServerContext* call,
                                        const soup::v1::PreviewDataRequest* request,
                                        soup::v1::PreviewDataReply* reply) override;

  grpc::ServerWriteReactor<soup::v1::WatchReply>* Watch(
      grpc::CallbackServerContext* call, const soup::v1::WatchRequest* request) override;

  grpc::ServerWriteReactor<soup::v1::LogChunk>* GetLogs(
      grpc::CallbackServerContext* call, const soup::v1::GetLogsRequest* request) override;
  grpc::ServerUnaryReactor* ListArtifacts(grpc::CallbackServerContext* call,
                                          const soup::v1::ListArtifactsRequest* request,
                                          soup::v1::ListArtifactsReply* reply) override;
  grpc::ServerWriteReactor<soup::v1::ArtifactChunk>* FetchArtifact(
      grpc::CallbackServerContext* call, const soup::v1::FetchArtifactRequest* request) override;

  grpc::ServerUnaryReactor* StatUpload(grpc::CallbackServerContext* call,
                                       const soup::v1::StatUploadRequest* request,
                                       soup::v1::StatUploadReply* reply) override;
  grpc::ServerReadReactor<soup::v1::UploadChunk>* UploadFile(grpc::CallbackServerContext* call,
                                                             soup::v1::UploadReply* reply) override;

  grpc::ServerUnaryReactor* ListCache(grpc::CallbackServerContext* call,
                                      const soup::v1::ListCacheRequest* request,
                                      soup::v1::ListCacheReply* reply) override;
  grpc::ServerWriteReactor<soup::v1::PrefetchReply>* PrefetchCache(
      grpc::CallbackServerContext* call, const soup::v1::PrefetchCacheRequest* request) override;
  grpc::ServerUnaryReactor* EvictCache(grpc::CallbackServerContext* call,
                                       const soup::v1::EvictCacheRequest* request,
                                       soup::v1::EvictCacheReply* reply) override;
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* call,
                                    const soup::v1::GetNodeRequest* request,
                                    soup::v1::Node* reply) override;

 private:
  grpc::ServerUnaryReactor* Act(grpc::CallbackServerContext* call,
                                const soup::v1::JobRequest* request, soup::v1::Job* reply,
                                JobTrigger trigger);

  ApiContext& api_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_API_SERVICE_H_
