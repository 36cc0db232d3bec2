// Where soupd is and how to talk to it. Flags go before the environment, the environment before the
// context, the context before the defaults:
//
//                flag            environment     context
//   endpoint     --endpoint      SOUP_ENDPOINT   endpoint     unix:<state dir>/soupd.sock
//   token        --token-file    SOUP_TOKEN      token, token_file
//   CA           --ca            SOUP_CA         ca           the system's
//   server name  --server-name   –               server_name  the endpoint's host
//   context      --context       SOUP_CONTEXT    `current` of contexts.yaml
//
// A context's token, CA and server name belong to its endpoint: when --endpoint or SOUP_ENDPOINT
// names another one they are not used, unless --context asks for them, so that a token is never
// sent to a host it was not given for. --context, being a flag, also goes before SOUP_ENDPOINT.
//
// Endpoints: unix:PATH (no TLS; the kernel tells soupd who the caller is), HOST:PORT and
// https://HOST:PORT (TLS always; the token goes with each call).
// Plain values and factories; thread-safe.
#ifndef SOUP_CLIENT_CONNECTION_H_
#define SOUP_CLIENT_CONNECTION_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"

namespace soup::client {

struct ConnectionFlags {
  std::string endpoint, context, token_file, ca, server_name;  // empty: not given
};

struct Connection {
  std::string endpoint;     // as given
  std::string grpc_target;  // what gRPC wants
  bool is_unix = false;
  std::string token;          // empty: none
  std::string ca_path;        // empty: the system's
  std::string server_name;    // empty: the endpoint's host
  std::string endpoint_from;  // "--endpoint", "SOUP_ENDPOINT", "context lab", "default"
  std::string token_from;     // likewise; empty: none
};

// $SOUP_STATE_DIR, else $XDG_STATE_HOME/soupd, else ~/.local/state/soupd: as soupd's own default.
std::string DefaultStateDir();

// Reads the environment, contexts.yaml and the token file. UsageError when something is malformed,
// an error that names the file when a token or CA file cannot be read.
absl::StatusOr<Connection> ResolveConnection(const ConnectionFlags& flags);

// Does not connect yet. Keepalive, message limits and bounded reconnect backoff are set.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const Connection& connection);

// A token as it stands in a file or an environment variable, without white space around it.
// UsageError when it is empty or cannot stand in a header.
absl::StatusOr<std::string> CleanToken(const std::string& text, const std::string& from);

}  // namespace soup::client

#endif  // SOUP_CLIENT_CONNECTION_H_
