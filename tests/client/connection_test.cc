// Contexts, the order of flags, environment and contexts, endpoints, and exit codes.
#include "client/connection.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "client/contexts.h"
#include "client/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_files.h"

namespace soup::client {
namespace {

using ::testing::HasSubstr;

class ConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"SOUP_ENDPOINT", "SOUP_TOKEN", "SOUP_CONTEXT", "SOUP_CA",
                             "SOUP_STATE_DIR", "XDG_STATE_HOME"}) {
      unsetenv(name);
    }
    setenv("HOME", folder_.path().c_str(), 1);
    setenv("XDG_CONFIG_HOME", (folder_ / "config").c_str(), 1);
    Contexts contexts;
    contexts.Put({.name = "lab",
                  .endpoint = "lab:7443",
                  .token = "lab-token",
                  .ca = "/lab.pem",
                  .server_name = "soupd.lab"});
    contexts.Put({.name = "home", .endpoint = "unix:/run/soupd.sock"});
    contexts.current = "lab";
    ASSERT_TRUE(SaveContexts(path_(), contexts).ok());
  }
  std::string path_() { return *ContextsPath(); }

  TempDir folder_;
};

TEST_F(ConnectionTest, FlagsGoBeforeEnvironmentBeforeContextBeforeDefault) {
  auto c = ResolveConnection({});
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->endpoint, "lab:7443");
  EXPECT_EQ(c->endpoint_from, "context lab");
  EXPECT_EQ(c->token, "lab-token");
  EXPECT_EQ(c->ca_path, "/lab.pem");
  EXPECT_EQ(c->server_name, "soupd.lab");
  EXPECT_EQ(c->grpc_target, "dns:///lab:7443");

  setenv("SOUP_TOKEN", " env-token\n", 1);
  setenv("SOUP_CA", "/env.pem", 1);
  c = ResolveConnection({});
  EXPECT_EQ(c->token, "env-token");
  EXPECT_EQ(c->token_from, "SOUP_TOKEN");
  EXPECT_EQ(c->ca_path, "/env.pem");

  WriteWhole(folder_ / "token", "flag-token\n");
  c = ResolveConnection({.token_file = folder_ / "token", .ca = "/flag.pem", .server_name = "x"});
  EXPECT_EQ(c->token, "flag-token");
  EXPECT_EQ(c->ca_path, "/flag.pem");
  EXPECT_EQ(c->server_name, "x");

  setenv("SOUP_CONTEXT", "home", 1);
  EXPECT_EQ(ResolveConnection({})->endpoint, "unix:/run/soupd.sock");
  EXPECT_EQ(ResolveConnection({.context = "lab"})->endpoint, "lab:7443");
  setenv("SOUP_ENDPOINT", "env:1", 1);
  EXPECT_EQ(ResolveConnection({})->endpoint, "env:1");
  EXPECT_EQ(ResolveConnection({.context = "lab"})->endpoint, "lab:7443");
  EXPECT_EQ(ResolveConnection({.endpoint = "flag:1"})->endpoint, "flag:1");
}

TEST_F(ConnectionTest, AContextsTokenGoesToItsOwnEndpointOnly) {
  auto c = ResolveConnection({.endpoint = "elsewhere:7443"});
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->token, "");
  EXPECT_EQ(c->ca_path, "");
  setenv("SOUP_ENDPOINT", "elsewhere:7443", 1);
  setenv("SOUP_CONTEXT", "lab", 1);
  EXPECT_EQ(ResolveConnection({})->token, "");
  EXPECT_EQ(ResolveConnection({.endpoint = "elsewhere:1", .context = "lab"})->token, "lab-token")
      << "asked for by name";
}

TEST_F(ConnectionTest, TheDefaultIsTheSocketOfTheStateDirectory) {
  ASSERT_EQ(unlink(path_().c_str()), 0);
  EXPECT_EQ(ResolveConnection({})->endpoint, "unix:" + (folder_ / ".local/state/soupd/soupd.sock"));
  setenv("XDG_STATE_HOME", "/xdg", 1);
  EXPECT_EQ(ResolveConnection({})->endpoint, "unix:/xdg/soupd/soupd.sock");
  setenv("SOUP_STATE_DIR", "/state", 1);
  auto c = ResolveConnection({});
  EXPECT_EQ(c->grpc_target, "unix:/state/soupd.sock");
  EXPECT_EQ(c->endpoint_from, "default");
}

TEST_F(ConnectionTest, ATokenMayComeByAPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "piped\n", 6), 6);
  close(ends[1]);
  const auto c = ResolveConnection({.token_file = absl::StrCat("/dev/fd/", ends[0])});
  close(ends[0]);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->token, "piped");
}

TEST_F(ConnectionTest, MalformedEndpointsAndTokensAreRefused) {
  for (const char* bad : {"lab", "http://lab:80", "unix:", "lab:0", "lab:99999", ":7443",
                          "https://lab", "lab:7443/path", "ftp://lab:1"}) {
    const auto c = ResolveConnection({.endpoint = bad});
    EXPECT_EQ(ExitCodeOf(c.status()), ExitCode::kUsage) << bad;
  }
  EXPECT_EQ(ResolveConnection({.endpoint = "https://lab:7443/"})->grpc_target, "dns:///lab:7443");
  EXPECT_EQ(ResolveConnection({.endpoint = "[::1]:7443"})->grpc_target, "dns:///[::1]:7443");
  EXPECT_EQ(ResolveConnection({.endpoint = "unix:///run/s"})->grpc_target, "unix:/run/s");
  EXPECT_THAT(
      std::string(
          ResolveConnection({.endpoint = "unix:/" + std::string(200, 'x')}).status().message()),
      HasSubstr("longer than the 107 bytes"));
  EXPECT_THAT(std::string(ResolveConnection({.context = "none"}).status().message()),
              HasSubstr("there is no context \"none\""));
  WriteWhole(folder_ / "two", "a b\n");
  EXPECT_EQ(ExitCodeOf(ResolveConnection({.token_file = folder_ / "two"}).status()),
            ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(ResolveConnection({.token_file = folder_ / "absent"}).status()),
            ExitCode::kAuth);
  EXPECT_EQ(ExitCodeOf(ResolveConnection({.endpoint = "unix:/s", .ca = "/x"}).status()),
            ExitCode::kUsage);
  WriteWhole(folder_ / "no.pem", "not a certificate");
  EXPECT_EQ(ExitCodeOf(MakeChannel(*ResolveConnection({.ca = folder_ / "no.pem"})).status()),
            ExitCode::kUsage);
}

TEST_F(ConnectionTest, ContextsAreWrittenForTheirOwnerOnly) {
  struct stat st;
  ASSERT_EQ(stat(path_().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  ASSERT_EQ(chmod(path_().c_str(), 0644), 0);
  const auto contexts = LoadContexts(path_());
  EXPECT_THAT(std::string(contexts.status().message()), HasSubstr("chmod 600"));
  EXPECT_EQ(ExitCodeOf(contexts.status()), ExitCode::kUsage);
}

TEST_F(ConnectionTest, ContextsRoundTripAndRefuseWhatTheyDoNotKnow) {
  Contexts contexts = *LoadContexts(path_());
  EXPECT_EQ(contexts.current, "lab");
  ASSERT_EQ(contexts.all.size(), 2u);
  contexts.Put({.name = "q\"uote: #", .endpoint = "h:1", .token_file = "/a b"});
  ASSERT_TRUE(SaveContexts(path_(), contexts).ok());
  const Contexts again = *LoadContexts(path_());
  ASSERT_NE(again.Find("q\"uote: #"), nullptr);
  EXPECT_EQ(again.Find("q\"uote: #")->token_file, "/a b");
  EXPECT_TRUE(contexts.Remove("lab"));
  EXPECT_FALSE(contexts.Remove("lab"));
  EXPECT_EQ(contexts.current, "");

  const std::string other = folder_ / "other.yaml";
  for (const char* bad : {"contexts: [{name: a, endpoint: b, tokn: c}]", "contexts: [{name: a}]",
                          "x: 1", "contexts: {", "[]", "contexts: [1]"}) {
    WriteWhole(other, bad);
    EXPECT_EQ(ExitCodeOf(LoadContexts(other).status()), ExitCode::kUsage) << bad;
  }
  WriteWhole(other, "");
  EXPECT_TRUE(LoadContexts(other).ok());
  EXPECT_TRUE(LoadContexts(folder_ / "absent")->all.empty());
}

TEST(ExitCodesTest, OneMapping) {
  using grpc::StatusCode;
  const auto remote = [](StatusCode code) {
    return static_cast<int>(ExitCodeOf(FromGrpc(grpc::Status(code, "m"), "get x")));
  };
  EXPECT_EQ(remote(StatusCode::OK), 0);
  EXPECT_EQ(remote(StatusCode::UNAUTHENTICATED), 4);
  EXPECT_EQ(remote(StatusCode::PERMISSION_DENIED), 4);
  EXPECT_EQ(remote(StatusCode::NOT_FOUND), 7);
  EXPECT_EQ(remote(StatusCode::UNAVAILABLE), 8);
  EXPECT_EQ(remote(StatusCode::DEADLINE_EXCEEDED), 8);
  for (const StatusCode code : {StatusCode::INVALID_ARGUMENT, StatusCode::FAILED_PRECONDITION,
                                StatusCode::RESOURCE_EXHAUSTED, StatusCode::INTERNAL,
                                StatusCode::ALREADY_EXISTS, StatusCode::UNKNOWN}) {
    EXPECT_EQ(remote(code), 1) << code;
  }
  // The same codes from this host mean something else.
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("/file")), ExitCode::kError);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("/file")), ExitCode::kError);
  EXPECT_EQ(ExitCodeOf(UsageError("x")), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(InterruptedError(SIGINT, "x")), ExitCode::kInterrupted);
  EXPECT_EQ(ExitCodeOf(InterruptedError(SIGTERM, "x")), ExitCode::kTerminated);
  EXPECT_EQ(ExitCodeOf(soup::v1::SUCCEEDED), ExitCode::kOk);
  EXPECT_EQ(ExitCodeOf(soup::v1::FAILED), ExitCode::kJobFailed);
  EXPECT_EQ(ExitCodeOf(soup::v1::CANCELLED), ExitCode::kCancelled);
  EXPECT_EQ(FromGrpc(grpc::Status(StatusCode::NOT_FOUND, "no such"), "get x").message(),
            "get x: no such");
}

}  // namespace
}  // namespace soup::client
