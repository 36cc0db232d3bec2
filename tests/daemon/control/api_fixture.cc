#include "tests/daemon/control/api_fixture.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>

#include "daemon/control/sha256.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {

using soup::testing::WriteWhole;

ApiTest::ApiTest() {
  SOUP_CHECK(mkdir(BasePath().c_str(), 0700) == 0);
  WriteWhole(BasePath() + "/config.json", "{}");
  WriteWhole(dir_ / "cert.pem", tls_.certificate_pem);
  WriteWhole(dir_ / "key.pem", tls_.key_pem);
  WriteWhole(dir_ / "tokens", TokenOf("alice") + " alice\n" + TokenOf("bob") + " bob\n" +
                                  TokenOf("root-remote") + " root-remote admin\n");
  SOUP_CHECK(chmod((dir_ / "tokens").c_str(), 0600) == 0);
  config_.state_dir = dir_.path();
  config_.cache_dir = dir_ / "cache";
  config_.model_roots = {models_.path()};
  config_.listen = "unix:" + (dir_ / "soupd.sock");
  config_.listen_tcp = "127.0.0.1:0";
  config_.tls_cert = dir_ / "cert.pem";
  config_.tls_key = dir_ / "key.pem";
  config_.token_file = dir_ / "tokens";
}

ApiTest::~ApiTest() { StopServer(); }

void ApiTest::StartServer() {
  steps_ = std::make_unique<StepLogs>(config_.JobsDir());
  JobStoreOptions options;
  options.path = config_.DatabasePath();
  auto store = OpenJobStore(options, engine::RealClock());
  ASSERT_TRUE(store.ok()) << store.status();
  store_ = *std::move(store);
  auto uploads = Uploads::Open(config_.FilesDir(), config_.max_upload_bytes, store_.get());
  ASSERT_TRUE(uploads.ok()) << uploads.status();
  uploads_ = *std::move(uploads);
  listener_ = std::make_unique<StoreListener>(store_.get(), &hub_, &metrics_, steps_.get());
  ASSERT_TRUE(listener_->Attach().ok());
  fake_ = std::make_unique<FakeOrchestrator>(config_, *store_, *steps_, hub_, metrics_);
  if (!config_.token_file.empty()) {
    auto tokens = TokenFile::Open(config_.token_file);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    tokens_ = *std::move(tokens);
  }
  pool_ = std::make_unique<ThreadPool>(4, 256);
  slow_pool_ = std::make_unique<ThreadPool>(4, 64);
  api_.reset(new ApiContext{config_, engine::RealClock(), *store_, *steps_, hub_, *uploads_, *fake_,
                            peers_, admins_, tokens_.get(), *pool_, *slow_pool_});
  api_->heartbeat_ms = 50;
  auto server = ApiServer::Start(api_.get(), &peers_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

void ApiTest::StopServer() {
  server_.reset();
  pool_.reset();
  slow_pool_.reset();
  api_.reset();
  fake_.reset();
  uploads_.reset();
  store_.reset();
  listener_.reset();
}

std::shared_ptr<grpc::Channel> ApiTest::UnixChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(config_.listen, grpc::InsecureChannelCredentials(), arguments);
}

std::shared_ptr<grpc::Channel> ApiTest::TcpChannel(const std::string& token) const {
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = tls_.certificate_pem;
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::SslCredentials(ssl);
  if (!token.empty()) {
    credentials =
        grpc::CompositeChannelCredentials(credentials, grpc::AccessTokenCredentials(token));
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server_->tcp_address(), credentials, arguments);
}

std::string ApiTest::Upload(soup::v1::Soup::Stub& stub, const std::string& content) {
  Call call;
  soup::v1::UploadReply reply;
  auto writer = stub.UploadFile(&call, &reply);
  soup::v1::UploadChunk chunk;
  chunk.set_sha256(Sha256Hex(content));
  chunk.set_size_bytes(static_cast<int64_t>(content.size()));
  chunk.set_data(content);
  writer->Write(chunk);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return Sha256Hex(content);
}

soup::v1::Job ApiTest::Submit(soup::v1::Soup::Stub& stub, const std::string& name) {
  Call call;
  soup::v1::SubmitRequest request;
  *request.mutable_spec() = Spec(name, Upload(stub));
  soup::v1::Job job;
  const grpc::Status status = stub.Submit(&call, request, &job);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return job;
}

}  // namespace soup::daemon
