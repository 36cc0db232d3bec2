#include "client/connection.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/contexts.h"
#include "client/exit_codes.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace soup::client {
namespace {

// Lists and long error texts fit, and nothing a sane soupd sends is larger.
constexpr int kMaxMessageBytes = 64 << 20;
constexpr int kKeepaliveTimeMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kFirstReconnectMs = 200;
constexpr int kConnectTimeoutMs = 5000;
constexpr int kLastReconnectMs = 3'000;
// The longest path that fits into sockaddr_un.
constexpr size_t kMaxUnixPath = 107;
constexpr char kSystemRoots[] = "/etc/ssl/certs/ca-certificates.crt";

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Adds the bearer token to each call; gRPC sends it over a secure channel only.
class BearerToken final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit BearerToken(const std::string& token) : header_(absl::StrCat("Bearer ", token)) {}
  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "bearer"; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", header_);
    return grpc::Status::OK;
  }
  // Never shows the token: gRPC prints this in its traces.
  grpc::string DebugString() override { return "bearer token"; }

 private:
  const std::string header_;
};

absl::Status ParseEndpoint(Connection* c) {
  absl::string_view text = c->endpoint;
  const auto wrong = [&](absl::string_view why) {
    return UsageError(absl::StrCat("endpoint \"", c->endpoint, "\" (", c->endpoint_from, ") ", why,
                                   "; write unix:/path/to/soupd.sock or host:port"));
  };
  if (absl::ConsumePrefix(&text, "unix:")) {
    absl::ConsumePrefix(&text, "//");
    if (text.empty()) return wrong("has no path");
    if (text.size() > kMaxUnixPath) {
      return wrong(absl::StrCat("is longer than the ", kMaxUnixPath,
                                " bytes that a unix socket's path may have"));
    }
    c->is_unix = true;
    c->grpc_target = absl::StrCat("unix:", text);
    return absl::OkStatus();
  }
  if (absl::StartsWith(text, "http://")) return wrong("is without TLS, which soupd does not offer");
  absl::ConsumePrefix(&text, "https://");
  absl::ConsumeSuffix(&text, "/");
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return wrong("has no port");
  }
  if (text.find('/') != absl::string_view::npos) return wrong("is not of a form known here");
  c->grpc_target = absl::StrCat("dns:///", text);
  return absl::OkStatus();
}

// The context of that name, else of SOUP_CONTEXT, else the current one; an empty one for none.
absl::StatusOr<Context> FindContext(const std::string& flag) {
  const std::string asked = flag.empty() ? Env("SOUP_CONTEXT") : flag;
  SOUP_ASSIGN_OR_RETURN(const std::string path, ContextsPath());
  SOUP_ASSIGN_OR_RETURN(const Contexts contexts, LoadContexts(path));
  const std::string name = asked.empty() ? contexts.current : asked;
  if (const Context* found = contexts.Find(name)) return *found;
  if (name.empty()) return Context();
  return UsageError(
      absl::StrCat("there is no context \"", name, "\" in ", path, "; see: soupctl context list"));
}

// A token may come by a pipe: --token-file <(pass show soup).
absl::StatusOr<std::string> ReadFileOrPipe(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_fifo(path, error)) return engine::RealFileSystem().ReadFile(path);
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::StatusOr<std::string> ReadToken(const std::string& path, const std::string& from) {
  absl::StatusOr<std::string> text = ReadFileOrPipe(path);
  if (!text.ok()) {
    return ErrorWithExitCode(ExitCode::kAuth,
                             absl::StrCat("token file (", from, "): ", text.status().message()));
  }
  return CleanToken(*text, absl::StrCat(from, ", ", path));
}

}  // namespace

std::string DefaultStateDir() {
  if (const std::string dir = Env("SOUP_STATE_DIR"); !dir.empty()) return dir;
  if (const std::string dir = Env("XDG_STATE_HOME"); !dir.empty()) return dir + "/soupd";
  return Env("HOME") + "/.local/state/soupd";
}

absl::StatusOr<std::string> CleanToken(const std::string& text, const std::string& from) {
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  if (token.empty()) return UsageError(absl::StrCat("the token (", from, ") is empty"));
  for (const char c : token) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) {
      return UsageError(absl::StrCat("the token (", from,
                                     ") has a space, a line break or a byte that is not ASCII; a "
                                     "token file holds the one token and nothing else"));
    }
  }
  return std::string(token);
}

absl::StatusOr<Connection> ResolveConnection(const ConnectionFlags& flags) {
  Connection c;
  Context context;
  if (!flags.endpoint.empty()) {
    c.endpoint = flags.endpoint;
    c.endpoint_from = "--endpoint";
  } else if (const std::string endpoint = Env("SOUP_ENDPOINT");
             !endpoint.empty() && flags.context.empty()) {
    c.endpoint = endpoint;
    c.endpoint_from = "SOUP_ENDPOINT";
  }
  if (c.endpoint.empty() || !flags.context.empty()) {
    SOUP_ASSIGN_OR_RETURN(context, FindContext(flags.context));
  }
  const std::string context_from = absl::StrCat("context ", context.name);
  if (c.endpoint.empty() && !context.name.empty()) {
    c.endpoint = context.endpoint;
    c.endpoint_from = context_from;
  }
  if (c.endpoint.empty()) {
    c.endpoint = absl::StrCat("unix:", DefaultStateDir(), "/soupd.sock");
    c.endpoint_from = "default";
  }
  SOUP_RETURN_IF_ERROR(ParseEndpoint(&c));
  if (c.is_unix) {
    if (!flags.token_file.empty() || !flags.ca.empty() || !flags.server_name.empty()) {
      return UsageError(absl::StrCat(
          "--token-file, --ca and --server-name have no use with the unix socket ", c.endpoint,
          " (", c.endpoint_from, "): there the kernel tells soupd who you are"));
    }
    return c;
  }

  if (!flags.token_file.empty()) {
    c.token_from = "--token-file";
    SOUP_ASSIGN_OR_RETURN(c.token, ReadToken(flags.token_file, c.token_from));
  } else if (const std::string token = Env("SOUP_TOKEN"); !token.empty()) {
    c.token_from = "SOUP_TOKEN";
    SOUP_ASSIGN_OR_RETURN(c.token, CleanToken(token, c.token_from));
  } else if (!context.token.empty()) {
    c.token_from = context_from;
    SOUP_ASSIGN_OR_RETURN(c.token, CleanToken(context.token, c.token_from));
  } else if (!context.token_file.empty()) {
    c.token_from = context_from;
    SOUP_ASSIGN_OR_RETURN(c.token, ReadToken(context.token_file, c.token_from));
  }
  c.ca_path = !flags.ca.empty() ? flags.ca : Env("SOUP_CA");
  if (c.ca_path.empty()) c.ca_path = context.ca;
  c.server_name = flags.server_name.empty() ? context.server_name : flags.server_name;
  return c;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const Connection& connection) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  // For gRPC this one is also the least time that an attempt to connect may take: a loaded host
  // needs more than the back-off between attempts.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastReconnectMs);
  // A lost connection resolves the name again, and gRPC does so every 30 s at most unless told.
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kFirstReconnectMs);
  args.SetUserAgentPrefix(absl::StrCat("soupctl/", SOUP_VERSION));
  if (connection.is_unix) {
    return grpc::CreateCustomChannel(connection.grpc_target, grpc::InsecureChannelCredentials(),
                                     args);
  }
  grpc::SslCredentialsOptions ssl;
  auto& fs = engine::RealFileSystem();
  if (!connection.ca_path.empty()) {
    absl::StatusOr<std::string> pem = fs.ReadFile(connection.ca_path);
    if (!pem.ok()) {
      return absl::Status(pem.status().code(),
                          absl::StrCat("CA certificate: ", pem.status().message()));
    }
    if (!absl::StrContains(*pem, "-----BEGIN CERTIFICATE-----")) {
      return UsageError(
          absl::StrCat("CA certificate ", connection.ca_path, " holds no certificate in PEM form"));
    }
    ssl.pem_root_certs = *std::move(pem);
  } else if (fs.Exists(kSystemRoots)) {
    SOUP_ASSIGN_OR_RETURN(ssl.pem_root_certs, fs.ReadFile(kSystemRoots));
  }
  if (!connection.server_name.empty()) args.SetSslTargetNameOverride(connection.server_name);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::SslCredentials(ssl);
  if (!connection.token.empty()) {
    credentials = grpc::CompositeChannelCredentials(
        credentials,
        grpc::MetadataCredentialsFromPlugin(std::make_unique<BearerToken>(connection.token)));
  }
  return grpc::CreateCustomChannel(connection.grpc_target, credentials, args);
}

}  // namespace soup::client
