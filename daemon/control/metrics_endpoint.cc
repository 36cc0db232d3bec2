#include "daemon/control/metrics_endpoint.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
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

// Connects and hangs up. `address` is numeric, or nothing happens.
void Poke(const std::string& address) {
  const absl::StatusOr<HostPort> at = ParseHostPort(address, "");
  if (!at.ok()) return;
  sockaddr_storage to{};
  socklen_t size = 0;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&to);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&to);
  if (inet_pton(AF_INET, at->host.c_str(), &v4->sin_addr) == 1) {
    to.ss_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(at->port));
    size = sizeof *v4;
  } else if (inet_pton(AF_INET6, at->host.c_str(), &v6->sin6_addr) == 1) {
    to.ss_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(at->port));
    size = sizeof *v6;
  } else {
    return;
  }
  const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  // In progress is as good as done: the listener wakes either way.
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), size) != 0 && errno != EINPROGRESS) {
    SOUP_LOG(kDebug, "metrics") << "the endpoint no longer listens";
  }
  close(fd);
}

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

// civetweb looks at its stop flag when a connection comes or every 2 s: connections are made until
// it has stopped.
MetricsEndpoint::~MetricsEndpoint() {
  if (server_ == nullptr) return;
  std::atomic<bool> stopped{false};
  std::thread closer([&] {
    server_.reset();
    stopped = true;
  });
  while (!stopped) {
    Poke(address_);
    absl::SleepFor(absl::Milliseconds(10));
  }
  closer.join();
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& listen, const Metrics& metrics, std::function<absl::Status()> health) {
  SOUP_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(listen, "--metrics-listen"));
  const std::vector<std::string> options = {
      "listening_ports", JoinHostPort(address), "num_threads", "4", "request_timeout_ms",
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
