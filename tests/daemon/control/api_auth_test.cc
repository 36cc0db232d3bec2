// Who gets in: the unix socket by uid, TCP by TLS and token, and nobody without. And peers that say
// nothing.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/control/endpoint_unix.h"
#include "tests/daemon/control/api_fixture.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {
namespace {

using ::testing::HasSubstr;
using namespace soup::v1;
using soup::testing::WriteWhole;

class ApiAuthTest : public ApiTest {
 protected:
  grpc::Status NodeOf(const std::shared_ptr<grpc::Channel>& channel, Node* node,
                      const std::string& header = "") {
    Call call(5);
    if (!header.empty()) call.AddMetadata("authorization", header);
    return Soup::NewStub(channel)->GetNode(&call, {}, node);
  }
  int Connect() {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = config_.listen.substr(5);
    memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  // Until the other side closes; false after 10 s.
  static bool IsClosed(int fd) {
    timeval limit{10, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char byte = 0;
    const ssize_t n = read(fd, &byte, 1);
    return n == 0 || (n < 0 && errno == ECONNRESET);  // reset: what was sent lay unread
  }
  std::shared_ptr<grpc::Channel> TlsChannel(const grpc::SslCredentialsOptions& options) {
    return grpc::CreateChannel(server_->tcp_address(), grpc::SslCredentials(options));
  }
};

TEST_F(ApiAuthTest, TheUnixPeerIsItsUid) {
  StartServer();
  Node node;
  const grpc::Status status = NodeOf(UnixChannel(), &node);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(node.user(), "uid:" + std::to_string(getuid()));
  EXPECT_TRUE(node.admin());
  struct stat st {};
  ASSERT_EQ(stat(config_.listen.substr(5).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0666u);
  // Many connections, one after the other: each is known.
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(NodeOf(UnixChannel(), &node).ok());
}

TEST_F(ApiAuthTest, TcpTakesTheTokenAndNothingElse) {
  StartServer();
  Node node;
  ASSERT_TRUE(NodeOf(TcpChannel(TokenOf("alice")), &node).ok());
  EXPECT_EQ(node.user(), "alice");
  EXPECT_FALSE(node.admin());
  ASSERT_TRUE(NodeOf(TcpChannel(TokenOf("root-remote")), &node).ok());
  EXPECT_TRUE(node.admin());
  EXPECT_EQ(NodeOf(TcpChannel(""), &node).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(NodeOf(TcpChannel("wrong-token-0123456789"), &node).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  for (const std::string& header : {TokenOf("alice"), "Basic " + TokenOf("alice"),
                                    std::string("Bearer "), "Bearer " + TokenOf("alice") + "x"}) {
    EXPECT_EQ(NodeOf(TcpChannel(""), &node, header).error_code(), grpc::StatusCode::UNAUTHENTICATED)
        << header;
  }
  // Tokens belong to calls, not to connections: one channel, two users.
  const auto shared = TcpChannel("");
  for (const std::string user : {"alice", "root-remote", "bob", "alice"}) {
    ASSERT_TRUE(NodeOf(shared, &node, "Bearer " + TokenOf(user)).ok());
    EXPECT_EQ(node.user(), user);
    EXPECT_EQ(node.admin(), user == "root-remote");
  }
  EXPECT_EQ(NodeOf(shared, &node).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  // Two headers are one too many.
  EXPECT_EQ(
      NodeOf(TcpChannel(TokenOf("alice")), &node, "Bearer " + TokenOf("root-remote")).error_code(),
      grpc::StatusCode::UNAUTHENTICATED);
  // No TLS, or another certificate: no connection at all.
  const auto plain =
      grpc::CreateChannel(server_->tcp_address(), grpc::InsecureChannelCredentials());
  EXPECT_FALSE(NodeOf(plain, &node, "Bearer " + TokenOf("alice")).ok());
  grpc::SslCredentialsOptions stranger;
  stranger.pem_root_certs = MakeCertificate("localhost").certificate_pem;
  EXPECT_FALSE(NodeOf(TlsChannel(stranger), &node, "Bearer " + TokenOf("alice")).ok());
}

TEST_F(ApiAuthTest, EveryCallIsRefusedWithoutAToken) {
  StartServer();
  const auto channel = TcpChannel("");
  const auto stub = Soup::NewStub(channel);
  const auto refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  };
  Call c1, c2, c3, c4, c5, c6, c7;
  Job job;
  refused(stub->Submit(&c1, {}, &job));
  ListReply list;
  refused(stub->List(&c2, {}, &list));
  auto watch = stub->Watch(&c3, {});
  refused(watch->Finish());
  UploadReply upload;
  auto writer = stub->UploadFile(&c4, &upload);
  writer->WritesDone();
  refused(writer->Finish());
  auto fetch = stub->FetchArtifact(&c5, {});
  refused(fetch->Finish());
  auto logs = stub->GetLogs(&c6, {});
  refused(logs->Finish());
  auto prefetch = stub->PrefetchCache(&c7, {});
  refused(prefetch->Finish());
}

TEST_F(ApiAuthTest, ARevokedTokenStopsWorking) {
  StartServer();
  Node node;
  ASSERT_TRUE(NodeOf(TcpChannel(TokenOf("bob")), &node).ok());
  WriteWhole(dir_ / "tokens", TokenOf("alice") + " alice\n");
  EXPECT_EQ(NodeOf(TcpChannel(TokenOf("bob")), &node).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(NodeOf(TcpChannel(TokenOf("alice")), &node).ok());
}

TEST_F(ApiAuthTest, MutualTlsAloneNamesTheUserByCertificate) {
  const KeyAndCertificate client = MakeCertificate("carol");
  WriteWhole(dir_ / "ca.pem", client.certificate_pem);
  config_.tls_client_ca = dir_ / "ca.pem";
  config_.token_file.clear();
  StartServer();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = tls_.certificate_pem;
  Node node;
  EXPECT_FALSE(NodeOf(TlsChannel(options), &node).ok());  // no certificate
  options.pem_private_key = client.key_pem;
  options.pem_cert_chain = client.certificate_pem;
  const grpc::Status status = NodeOf(TlsChannel(options), &node);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(node.user(), "cert:carol");
  EXPECT_FALSE(node.admin());
}

TEST_F(ApiAuthTest, MutePeersAndStrangersAreDroppedAndHoldNothingUp) {
  StartServer();
  const int garbage = Connect();
  ASSERT_EQ(write(garbage, "GET / HTTP/1.1\r\n\r\n", 18), 18);
  EXPECT_TRUE(IsClosed(garbage));
  close(garbage);
  const int mute = Connect();
  const int half = Connect();
  ASSERT_EQ(write(half, "PRI * HTTP", 10), 10);
  Node node;
  EXPECT_TRUE(NodeOf(UnixChannel(), &node).ok());  // others are served meanwhile
  EXPECT_TRUE(IsClosed(mute));                     // after the 2 s
  EXPECT_TRUE(IsClosed(half));
  close(mute);
  close(half);
  // One that has said its preface and nothing more does not hold shutdown beyond its deadline.
  const int greeted = Connect();
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  ASSERT_EQ(write(greeted, preface.data(), preface.size()), static_cast<ssize_t>(preface.size()));
  char first = 0;
  ASSERT_EQ(read(greeted, &first, 1), 1);  // gRPC answers with its settings
  const absl::Time begin = absl::Now();
  server_->Shutdown(absl::Now() + absl::Milliseconds(300));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  close(greeted);
}

TEST_F(ApiAuthTest, AStaleSocketIsReplacedALiveOneIsNot) {
  const std::string path = config_.listen.substr(5);
  {
    // A socket file that nobody listens on.
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    close(fd);
  }
  StartServer();
  Node node;
  EXPECT_TRUE(NodeOf(UnixChannel(), &node).ok());
  const auto second = ApiServer::Start(api_.get(), &peers_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server listens"));
  EXPECT_TRUE(NodeOf(UnixChannel(), &node).ok());
  StopServer();
  EXPECT_FALSE(engine::RealFileSystem().Exists(path));  // tidy
}

TEST_F(ApiAuthTest, AFileInTheSocketsPlaceIsLeftAlone) {
  const std::string path = config_.listen.substr(5);
  WriteWhole(path, "precious");
  UnixEndpointOptions options;
  options.path = path;
  const auto endpoint = UnixEndpoint::Start(options, nullptr, &peers_);
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(soup::testing::ReadWhole(path), "precious");
}

TEST_F(ApiAuthTest, HealthAndReflectionAreServed) {
  StartServer();
  // grpc.health.v1.Health/Check with an empty request, over the generic method.
  grpc::ByteBuffer request_bytes;
  {
    grpc::Slice empty;
    request_bytes = grpc::ByteBuffer(&empty, 1);
  }
  const auto check = [&](const std::shared_ptr<grpc::Channel>& channel, const char* method) {
    grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
    Call call;
    grpc::CompletionQueue queue;
    auto rpc = stub.PrepareUnaryCall(&call, method, request_bytes, &queue);
    rpc->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    rpc->Finish(&answer, &status, this);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (status.ok() && answer.Dump(&slices).ok()) {
      for (const grpc::Slice& slice : slices) {
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
    return std::make_pair(status, bytes);
  };
  const auto healthy = check(UnixChannel(), "/grpc.health.v1.Health/Check");
  EXPECT_TRUE(healthy.first.ok()) << healthy.first.error_message();
  EXPECT_EQ(healthy.second, std::string("\x08\x01", 2));  // status: SERVING
  EXPECT_EQ(check(TcpChannel(""), "/grpc.health.v1.Health/Check").first.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(check(UnixChannel(), "/soup.v1.Soup/NoSuchCall").first.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  server_->BeginDrain();
}

}  // namespace
}  // namespace soup::daemon
