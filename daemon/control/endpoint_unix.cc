#include "daemon/control/endpoint_unix.h"

#include <fcntl.h>
#include <grpcpp/server.h>
#include <grpcpp/server_posix.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr int64_t kNumberRestMs = 30'000;
constexpr int64_t kAcceptRestMs = 100;
constexpr int kMaxNumbers = 1 << 16;

int64_t NowMs() { return engine::RealClock().MonotonicNs() / 1'000'000; }

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket's path ", path, " is too long; give --listen unix:PATH"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Leaves no file at `path`, or says why it must stay.
absl::Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat st {};
  if (lstat(path.c_str(), &st) != 0) {
    return errno == ENOENT ? absl::OkStatus() : engine::ErrnoStatus(errno, "stat", path);
  }
  if (!S_ISSOCK(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket; remove it or give --listen unix:PATH"));
  }
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return engine::ErrnoStatus(errno, "socket", path);
  const int rc = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  close(probe);
  if (rc == 0 || error == EAGAIN) {
    return absl::FailedPreconditionError(
        absl::StrCat("another server listens on ", path, "; stop it or give --listen unix:PATH"));
  }
  if (error != ECONNREFUSED && error != ENOENT) return engine::ErrnoStatus(error, "connect", path);
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return engine::ErrnoStatus(errno, "unlink", path);
  return absl::OkStatus();
}

absl::StatusOr<int> Listen(const UnixEndpointOptions& options) {
  SOUP_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(options.path));
  SOUP_RETURN_IF_ERROR(RemoveStaleSocket(options.path, address));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return engine::ErrnoStatus(errno, "socket", options.path);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(options.path.c_str(), options.mode) != 0 || listen(fd, 128) != 0) {
    const absl::Status status = engine::ErrnoStatus(errno, "listen on", options.path);
    close(fd);
    return status;
  }
  return fd;
}

// Hands out descriptor numbers in turn.
class NumberRing {
 public:
  NumberRing() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= 64) {
      high_ = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
    }
    low_ = next_ = std::min(high_ / 4, 4096);
    high_ = std::min(high_, low_ + kMaxNumbers);  // bounds the tables by number, too
  }

  // A duplicate of `fd` under a rested number; -1 when there is none just now.
  int Move(int fd, int64_t now_ms) {
    for (int tries = 0; tries < 64; ++tries) {
      int number = fcntl(fd, F_DUPFD_CLOEXEC, next_);
      if (number < 0 && next_ != low_) {
        next_ = low_;
        continue;
      }
      if (number < 0) return -1;
      next_ = number + 1 >= high_ ? low_ : number + 1;
      const auto used = used_ms_.find(number);
      if (used == used_ms_.end() || now_ms - used->second >= kNumberRestMs) {
        used_ms_[number] = now_ms;
        return number;
      }
      close(number);
    }
    return -1;
  }

 private:
  int high_ = 1024;
  int low_ = 256;
  int next_ = 256;
  std::map<int, int64_t> used_ms_;
};

}  // namespace

struct UnixEndpoint::Loop {
  struct Waiting {
    int64_t until_ms;
    uid_t uid;
  };

  UnixEndpointOptions options;
  grpc::Server* server = nullptr;
  PeerTable* peers = nullptr;
  int listen_fd = -1;
  int stop_fd = -1;
  int epoll_fd = -1;
  int64_t accept_again_ms = 0;  // 0: listening
  NumberRing numbers;
  std::map<int, Waiting> waiting;

  ~Loop() {
    for (const auto& [fd, w] : waiting) close(fd);
    for (const int fd : {listen_fd, stop_fd, epoll_fd}) {
      if (fd >= 0) close(fd);
    }
  }

  bool Watch(int fd, uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
  }

  void Drop(int fd) {
    waiting.erase(fd);
    close(fd);  // Leaves the epoll set with it.
  }

  // Out of descriptors or memory: polling on would spin until there are some.
  void RestFromAccepting(int error) {
    SOUP_LOG(kWarn, "endpoint") << "accept: " << std::strerror(error);
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, listen_fd, nullptr);
    accept_again_ms = NowMs() + kAcceptRestMs;
  }

  void AcceptAgain() {
    if (accept_again_ms == 0 || NowMs() < accept_again_ms) return;
    if (Watch(listen_fd, EPOLLIN)) accept_again_ms = 0;
  }

  void Accept() {
    for (int i = 0; i < 64; ++i) {
      const int fd = accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) RestFromAccepting(errno);
        return;
      }
      ucred peer{};
      socklen_t size = sizeof peer;
      if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        close(fd);
        continue;
      }
      if (static_cast<int>(waiting.size()) >= options.max_waiting) {
        const auto oldest = std::min_element(
            waiting.begin(), waiting.end(),
            [](const auto& a, const auto& b) { return a.second.until_ms < b.second.until_ms; });
        Drop(oldest->first);
      }
      waiting[fd] = Waiting{NowMs() + options.preface_timeout_ms, peer.uid};
      // Edge-triggered: a part of the preface must not make the loop spin.
      if (!Watch(fd, EPOLLIN | EPOLLRDHUP | EPOLLET)) Drop(fd);
    }
  }

  void Readable(int fd) {
    const auto it = waiting.find(fd);
    if (it == waiting.end()) return;
    char head[kPreface.size()];
    const ssize_t n = recv(fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || std::memcmp(head, kPreface.data(), static_cast<size_t>(n)) != 0) {
      Drop(fd);
      return;
    }
    if (static_cast<size_t>(n) < kPreface.size()) return;
    const uid_t uid = it->second.uid;
    const int number = numbers.Move(fd, NowMs());
    Drop(fd);
    if (number < 0) {
      SOUP_LOG(kWarn, "endpoint") << "no descriptor free for a connection of uid " << uid;
      return;
    }
    peers->Set(number, uid);
    grpc::AddInsecureChannelFromFd(server, number);
  }

  void DropLate() {
    const int64_t now = NowMs();
    std::vector<int> late;
    for (const auto& [fd, w] : waiting) {
      if (w.until_ms <= now) late.push_back(fd);
    }
    for (const int fd : late) Drop(fd);
  }

  int TimeoutMs() const {
    if (waiting.empty() && accept_again_ms == 0) return -1;
    int64_t first = accept_again_ms == 0 ? INT64_MAX : accept_again_ms;
    for (const auto& [fd, w] : waiting) first = std::min(first, w.until_ms);
    return static_cast<int>(std::clamp<int64_t>(first - NowMs(), 0, 10'000));
  }

  void Run() {
    while (true) {
      epoll_event events[64];
      const int n = epoll_wait(epoll_fd, events, 64, TimeoutMs());
      for (int i = 0; i < n; ++i) {
        const int fd = events[i].data.fd;
        if (fd == stop_fd) return;
        if (fd == listen_fd) {
          Accept();
        } else {
          Readable(fd);
        }
      }
      DropLate();
      AcceptAgain();
    }
  }
};

UnixEndpoint::UnixEndpoint(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {
  thread_ = std::thread([this] { loop_->Run(); });
}

absl::StatusOr<std::unique_ptr<UnixEndpoint>> UnixEndpoint::Start(
    const UnixEndpointOptions& options, grpc::Server* server, PeerTable* peers) {
  auto loop = std::make_unique<Loop>();
  loop->options = options;
  loop->server = server;
  loop->peers = peers;
  SOUP_ASSIGN_OR_RETURN(loop->listen_fd, Listen(options));
  loop->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (loop->stop_fd < 0 || loop->epoll_fd < 0 || !loop->Watch(loop->stop_fd, EPOLLIN) ||
      !loop->Watch(loop->listen_fd, EPOLLIN)) {
    return engine::ErrnoStatus(errno, "poll", options.path);
  }
  return std::unique_ptr<UnixEndpoint>(new UnixEndpoint(std::move(loop)));
}

void UnixEndpoint::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (write(loop_->stop_fd, &one, sizeof one) != sizeof one) {
    SOUP_LOG(kError, "endpoint") << "cannot stop the accept loop: " << std::strerror(errno);
  }
  thread_.join();
  if (unlink(loop_->options.path.c_str()) != 0 && errno != ENOENT) {
    SOUP_LOG(kWarn, "endpoint") << "cannot remove " << loop_->options.path;
  }
}

UnixEndpoint::~UnixEndpoint() { Stop(); }

}  // namespace soup::daemon
