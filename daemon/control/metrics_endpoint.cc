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

// A connection holds a thread until it has asked, or for as long as a silent one is borne with.
constexpr char kThreads[] = "48", kPatienceMs[] = "2000";

// What is answered to whom.
struct Routes {
  const Metrics& metrics;
  const std::function<absl::Status()> health;
};

void Answer(mg_connection* connection, int code, absl::string_view reason,
            absl::string_view content_type, absl::string_view body, bool head_only) {
  const std::string head = absl::StrFormat(
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n",
      code, reason, content_type, body.size(), code == 405 ? "Allow: GET, HEAD\r\n" : "");
  mg_write(connection, head.data(), head.size());
  if (!head_only) mg_write(connection, body.data(), body.size());
}

// Every request, whatever its method and path: what civetweb would do with one that it finds no
// answer for can end the process (1.15). A path makes no series. Answers the status sent.
int Route(mg_connection* connection) {
  constexpr absl::string_view kPlain = "text/plain; charset=utf-8";
  const auto* server =
      static_cast<const CivetServer*>(mg_get_user_data(mg_get_context(connection)));
  const auto& routes = *static_cast<const Routes*>(server->getUserContext());
  const mg_request_info* request = mg_get_request_info(connection);
  const auto text = [](const char* s) { return absl::string_view(s == nullptr ? "" : s); };
  const absl::string_view method = text(request->request_method);
  const absl::string_view path = text(request->local_uri);
  const bool head = method == "HEAD";
  const auto answer = [&](int code, absl::string_view reason, absl::string_view type,
                          absl::string_view body) {
    Answer(connection, code, reason, type, body, head);
    return code;
  };
  if (method != "GET" && !head)
    return answer(405, "Method Not Allowed", kPlain, "soupd answers GET and HEAD here\n");
  if (path == "/metrics") {
    return answer(200, "OK", "text/plain; version=0.0.4; charset=utf-8", routes.metrics.Render());
  }
  if (path != "/healthz")
    return answer(404, "Not Found", kPlain, "soupd answers /metrics and /healthz here\n");
  const absl::Status status = routes.health();
  if (status.ok()) return answer(200, "OK", kPlain, "ok\n");
  return answer(503, "Service Unavailable", kPlain, absl::StrCat(status.message(), "\n"));
}

CivetCallbacks Callbacks() {
  CivetCallbacks callbacks;
  callbacks.begin_request = &Route;
  return callbacks;
}

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

}  // namespace

struct MetricsEndpoint::Server {
  Server(const std::vector<std::string>& options, const Metrics& metrics,
         std::function<absl::Status()> health)
      : routes{metrics, std::move(health)}, civet(options, &callbacks, &routes) {}
  const Routes routes;
  const CivetCallbacks callbacks = Callbacks();
  CivetServer civet;  // last: its threads use the others
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
      "listening_ports",    JoinHostPort(address), "num_threads",       kThreads,
      "request_timeout_ms", kPatienceMs,           "enable_keep_alive", "no"};
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
