#include "daemon/control/api_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/api_service.h"
#include "daemon/control/endpoint_tcp.h"
#include "daemon/control/endpoint_unix.h"
#include "daemon/control/metrics_endpoint.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr char kStorageService[] = "soupd.storage";
constexpr char kWorkerService[] = "soupd.worker";

// Wakes all watchers now and then, so that heartbeats go out.
class Ticker {
 public:
  Ticker(EventHub& hub, absl::Duration period)
      : hub_(hub), period_(period), thread_([this] { Loop(); }) {}
  ~Ticker() {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    thread_.join();
  }

 private:
  void Loop() {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), period_)) return;
      }
      hub_.NotifyAll();
    }
  }

  EventHub& hub_;
  const absl::Duration period_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(4 << 20);
  builder.SetMaxSendMessageSize(8 << 20);
  // A peer that is gone without a word is noticed; clients may ask for the same every 10 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 9'000);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // What a stream may have under way is fixed: an estimate of the line lets a slow reader, or a
  // busy machine, hold tens of megabytes of an upload. 4 MiB carry 80 MB/s over a line of 50 ms.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  grpc::ResourceQuota quota("soupd");
  quota.Resize(size_t{64} << 20);
  builder.SetResourceQuota(quota);
}

}  // namespace

struct ApiServer::Parts {
  ApiContext& api;
  SoupService service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<UnixEndpoint> unix_endpoint;
  std::unique_ptr<Ticker> ticker;
  explicit Parts(ApiContext& context) : api(context), service(context) {}
};

ApiServer::ApiServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Start(ApiContext* api, PeerTable* peers) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const Config& config = api->config;
  std::unique_ptr<ApiServer> self(new ApiServer(std::make_unique<Parts>(*api)));
  Parts& parts = *self->parts_;

  grpc::ServerBuilder builder;
  SetLimits(builder);
  builder.RegisterService(&parts.service);
  int port = 0;
  if (!config.listen_tcp.empty()) {
    SOUP_ASSIGN_OR_RETURN(const auto credentials, MakeTlsCredentials(config, api->tokens));
    builder.AddListeningPort(config.listen_tcp, credentials, &port);
  }
  parts.server = builder.BuildAndStart();
  if (parts.server == nullptr || (!config.listen_tcp.empty() && port == 0)) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", config.listen_tcp,
                     ": is the port in use, and do --tls-cert and --tls-key belong together?"));
  }
  if (!config.listen_tcp.empty()) {
    SOUP_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(config.listen_tcp, "--listen-tcp"));
    address.port = port;
    self->tcp_address_ = JoinHostPort(address);
  }
  UnixEndpointOptions options;
  options.path = config.listen.substr(std::string("unix:").size());
  options.mode = config.socket_mode;
  SOUP_ASSIGN_OR_RETURN(parts.unix_endpoint,
                        UnixEndpoint::Start(options, parts.server.get(), peers));
  self->SetStorageHealthy(true);
  self->SetWorkerHealthy(false);  // until one has come up
  parts.server->GetHealthCheckService()->SetServingStatus(soup::v1::Soup::service_full_name(),
                                                          true);
  parts.ticker = std::make_unique<Ticker>(api->hub, absl::Milliseconds(api->heartbeat_ms) / 2);
  return self;
}

void ApiServer::SetStorageHealthy(bool healthy) {
  parts_->server->GetHealthCheckService()->SetServingStatus(kStorageService, healthy);
}

void ApiServer::SetWorkerHealthy(bool healthy) {
  parts_->server->GetHealthCheckService()->SetServingStatus(kWorkerService, healthy);
}

void ApiServer::BeginDrain() {
  if (parts_->api.draining.exchange(true)) return;
  if (parts_->server == nullptr) return;
  if (parts_->unix_endpoint != nullptr) parts_->unix_endpoint->Stop();
  parts_->server->GetHealthCheckService()->SetServingStatus(false);
  parts_->api.hub.NotifyAll();
}

void ApiServer::Shutdown(absl::Time deadline) {
  BeginDrain();
  if (parts_->server == nullptr) return;
  parts_->server->Shutdown(absl::ToChronoTime(deadline));
}

ApiServer::~ApiServer() {
  Shutdown(absl::Now() + absl::Seconds(1));
  parts_->ticker.reset();
  parts_->unix_endpoint.reset();
  parts_->server.reset();
}

}  // namespace soup::daemon
