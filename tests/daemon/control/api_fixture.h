// soupd's whole API in this process, over a fake orchestrator: the real store, step logs, uploads,
// endpoints.
#ifndef SOUP_TESTS_DAEMON_CONTROL_API_FIXTURE_H_
#define SOUP_TESTS_DAEMON_CONTROL_API_FIXTURE_H_

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "daemon/control/api_server.h"
#include "daemon/control/store_listener.h"
#include "soup/v1/soup.grpc.pb.h"
#include "tests/daemon/control/fake_orchestrator.h"
#include "tests/daemon/control/job_spec_for_tests.h"
#include "tests/daemon/control/tls_for_tests.h"
#include "tests/support/temp_dir.h"

namespace soup::daemon {

// A client's call with a deadline, so that a hang is a failure.
class Call : public grpc::ClientContext {
 public:
  explicit Call(int seconds = 20) {
    set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  }
};

class ApiTest : public ::testing::Test {
 protected:
  ApiTest();
  ~ApiTest() override;

  // Both endpoints; tokens "alice", "bob" and the admin "root-remote" (TokenOf).
  void StartServer();
  void StopServer();

  static std::string TokenOf(const std::string& user) { return "token-of-" + user + "-0123456789"; }
  // A channel of its own each time. Empty token: none is sent.
  std::shared_ptr<grpc::Channel> UnixChannel() const;
  std::shared_ptr<grpc::Channel> TcpChannel(const std::string& token) const;
  std::unique_ptr<soup::v1::Soup::Stub> Unix() const {
    return soup::v1::Soup::NewStub(UnixChannel());
  }
  std::unique_ptr<soup::v1::Soup::Stub> As(const std::string& user) const {
    return soup::v1::Soup::NewStub(TcpChannel(TokenOf(user)));
  }

  std::string BasePath() const { return models_ / "base"; }
  // Uploads a small file as `stub`'s user; its SHA-256.
  std::string Upload(soup::v1::Soup::Stub& stub, const std::string& content = "{\"text\":\"a\"}\n");
  soup::v1::JobSpec Spec(const std::string& name, const std::string& sha) const {
    soup::v1::JobSpec spec = GoodSpec(name, BasePath(), sha);
    spec.mutable_data()->mutable_train()->set_size_bytes(
        engine::RealFileSystem().FileSize(config_.FilePath(sha)).value_or(0));
    return spec;
  }
  soup::v1::Job Submit(soup::v1::Soup::Stub& stub, const std::string& name);

  soup::testing::TempDir dir_{soup::testing::TempDir::kInMemory};
  soup::testing::TempDir models_{soup::testing::TempDir::kInMemory};
  KeyAndCertificate tls_ = MakeCertificate("localhost");
  Config config_;
  EventHub hub_{8};
  Metrics metrics_;
  std::unique_ptr<StepLogs> steps_;
  std::unique_ptr<StoreListener> listener_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<Uploads> uploads_;
  std::unique_ptr<FakeOrchestrator> fake_;
  PeerTable peers_;
  Admins admins_{{}};
  std::unique_ptr<TokenFile> tokens_;
  std::unique_ptr<ApiContext> api_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ThreadPool> slow_pool_;
  std::unique_ptr<ApiServer> server_;
};

// The whole of a server stream.
template <typename Reply>
std::vector<Reply> ReadAll(grpc::ClientReader<Reply>& reader) {
  std::vector<Reply> all;
  Reply reply;
  while (reader.Read(&reply)) all.push_back(reply);
  return all;
}

}  // namespace soup::daemon

#endif  // SOUP_TESTS_DAEMON_CONTROL_API_FIXTURE_H_
