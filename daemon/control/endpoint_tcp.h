// The TCP endpoint's credentials: TLS always, a bearer token and/or a client certificate on top.
// Calls without them are refused before any handler, health and reflection included. Thread-safe
// once made.
#ifndef SOUP_DAEMON_CONTROL_ENDPOINT_TCP_H_
#define SOUP_DAEMON_CONTROL_ENDPOINT_TCP_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/control/auth.h"
#include "daemon/control/config.h"

namespace soup::daemon {

// `tokens` may be null (mutual TLS only) and must outlive the server. NotFound, PermissionDenied,
// InvalidArgument (no PEM) name the file.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(const Config& config,
                                                                            TokenFile* tokens);

// Whom the call's token stands for or, when there is no token file, the client certificate's common
// name. Unauthenticated otherwise. (The token is looked up again rather than kept by the check
// above: gRPC's auth context belongs to the connection, whose calls may carry different tokens.)
absl::StatusOr<Principal> PrincipalOfTls(const grpc::ServerContextBase& call, TokenFile* tokens);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_ENDPOINT_TCP_H_
