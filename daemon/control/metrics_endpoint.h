// HTTP on --metrics-listen: /metrics (Prometheus text) and /healthz (200 "ok", or 503 and what is
// wrong). Anything else is 404. No authentication: keep it on the loopback or behind a firewall.
// Threads: the endpoint has four of its own; `health` is called on them.
#ifndef SOUP_DAEMON_CONTROL_METRICS_ENDPOINT_H_
#define SOUP_DAEMON_CONTROL_METRICS_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/metrics.h"

namespace soup::daemon {

class MetricsEndpoint {
 public:
  // listen: HOST:PORT or [V6]:PORT; port 0 takes a free one. InvalidArgument, Unavailable (in use).
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& listen, const Metrics& metrics, std::function<absl::Status()> health);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // HOST:PORT with the port that was taken.
  const std::string& address() const { return address_; }

 private:
  struct Server;
  MetricsEndpoint();
  std::unique_ptr<Server> server_;
  std::string address_;
};

// "HOST:PORT" or "[V6]:PORT" apart. InvalidArgument names `what`.
struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(const std::string& text, const std::string& what);
std::string JoinHostPort(const HostPort& address);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_METRICS_ENDPOINT_H_
