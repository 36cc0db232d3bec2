#include "daemon/control/metrics_endpoint.h"

#include <CivetServer.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

void Answer(mg_connection* connection, int code, absl::string_view reason,
            absl::string_view content_type, absl::string_view body) {
  const std::string head = absl::StrFormat(
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", code,
      reason, content_type, body.size());
  mg_write(connection, head.data(), head.size());
  mg_write(connection, body.data(), body.size());
}

class MetricsHandler final : public CivetHandler {
 public:
  explicit MetricsHandler(const Metrics& metrics) : metrics_(metrics) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    Answer(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", metrics_.Render());
    return true;
  }

 private:
  const Metrics& metrics_;
};

class HealthHandler final : public CivetHandler {
 public:
  explicit HealthHandler(std::function<absl::Status()> health) : health_(std::move(health)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const absl::Status status = health_();
    if (status.ok()) {
      Answer(connection, 200, "OK", "text/plain; charset=utf-8", "ok\n");
    } else {
      Answer(connection, 503, "Service Unavailable", "text/plain; charset=utf-8",
             absl::StrCat(status.message(), "\n"));
    }
    return true;
  }

 private:
  const std::function<absl::Status()> health_;
};

// Whatever no other handler took. Its path makes no series.
class NotFoundHandler final : public CivetHandler {
 public:
  bool handleGet(CivetServer*, mg_connection* connection) override {
    Answer(connection, 404, "Not Found", "text/plain; charset=utf-8",
           "soupd answers /metrics and /healthz here\n");
    return true;
  }
};

}  // namespace

struct MetricsEndpoint::Server {
  Server(const std::vector<std::string>& options, const Metrics& metrics,
         std::function<absl::Status()> health)
      : metrics_handler(metrics), health_handler(std::move(health)), civet(options) {
    civet.addHandler("/metrics$", metrics_handler);
    civet.addHandler("/healthz$", health_handler);
    civet.addHandler("/", not_found_handler);
  }
  MetricsHandler metrics_handler;
  HealthHandler health_handler;
  NotFoundHandler not_found_handler;
  CivetServer civet;  // last: its threads use the handlers
};

MetricsEndpoint::MetricsEndpoint() = default;
MetricsEndpoint::~MetricsEndpoint() = default;

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& listen, const Metrics& metrics, std::function<absl::Status()> health) {
  SOUP_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(listen, "--metrics-listen"));
  const std::vector<std::string> options = {
      "listening_ports", JoinHostPort(address), "num_threads", "2", "request_timeout_ms",
      "10000",           "enable_keep_alive",   "no"};
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  try {
    endpoint->server_ = std::make_unique<Server>(options, metrics, std::move(health));
    const std::vector<int> ports = endpoint->server_->civet.getListeningPorts();
    if (ports.empty() || ports[0] == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen for metrics on ", listen));
    }
    address.port = ports[0];
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen for metrics on ", listen, " (", e.what(),
        "): is another soupd running there? --metrics-listen takes HOST:PORT, port 0, or off"));
  }
  endpoint->address_ = JoinHostPort(address);
  return endpoint;
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text, const std::string& what) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat(what, " ", text, " is not HOST:PORT, e.g. 127.0.0.1:9464 or [::1]:9464"));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  HostPort address;
  address.host = text.substr(0, colon);
  if (!absl::SimpleAtoi(text.substr(colon + 1), &address.port) || address.port < 0 ||
      address.port > 65535) {
    return bad;
  }
  if (address.host.front() == '[') {
    if (address.host.size() < 3 || address.host.back() != ']') return bad;
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return bad;
  }
  return address;
}

std::string JoinHostPort(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", address.host, "]:", address.port)
            : absl::StrCat(address.host, ":", address.port);
}

}  // namespace soup::daemon
