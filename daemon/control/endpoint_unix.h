// The unix socket: our own accept loop, because gRPC does not say who the peer is. A connection's
// uid is read with SO_PEERCRED; its descriptor goes to gRPC once the HTTP/2 preface has come (2 s
// at most), so that a mute peer holds nothing up.
//
// Descriptor numbers are the key from a call to its uid, so a number is not given out again while a
// call of its last owner could still be looked up: they go round through a range of thousands, and
// one that was used in the last 30 s is passed over.
//
// Threads: one of its own. Start and Stop from one thread.
#ifndef SOUP_DAEMON_CONTROL_ENDPOINT_UNIX_H_
#define SOUP_DAEMON_CONTROL_ENDPOINT_UNIX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/auth.h"

namespace grpc {
class Server;
}

namespace soup::daemon {

struct UnixEndpointOptions {
  std::string path;
  uint32_t mode = 0666;
  int64_t preface_timeout_ms = 2000;
  int max_waiting = 256;  // connections whose preface has not come; the oldest goes first
};

class UnixEndpoint {
 public:
  // Removes a stale socket; refuses when a live server answers there or the path is no socket.
  // `server` and `peers` outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<UnixEndpoint>> Start(const UnixEndpointOptions& options,
                                                             grpc::Server* server,
                                                             PeerTable* peers);
  ~UnixEndpoint();
  // No new connections; the socket file goes. Idempotent.
  void Stop();

 private:
  struct Loop;
  explicit UnixEndpoint(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_ENDPOINT_UNIX_H_
