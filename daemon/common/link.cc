#include "daemon/common/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/message_lite.h"

namespace soup::daemon {
namespace {

constexpr size_t kHeaderBytes = 4;
constexpr size_t kReadChunk = size_t{256} << 10;

uint32_t DecodeLength(const char* p) {
  uint32_t n = 0;
  for (int i = 3; i >= 0; --i) n = (n << 8) | static_cast<uint8_t>(p[i]);
  return n;
}

void EncodeLength(uint32_t n, char* p) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<char>((n >> (8 * i)) & 0xff);
}

int PollTimeoutMs(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1'000'000));
}

}  // namespace

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> Link::MakePair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return engine::ErrnoStatus(errno, "make", "a socket pair for a worker");
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Link::Link(UniqueFd socket, LinkOptions options)
    : socket_(std::move(socket)), options_(options), writer_([this] { WriteLoop(); }) {}

Link::~Link() {
  Close();
  writer_.join();
}

void Link::Close() {
  absl::MutexLock lock(&mu_);
  if (closed_) return;
  closed_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

absl::Status Link::Send(const google::protobuf::MessageLite& message, absl::Span<const int> fds) {
  if (fds.size() > static_cast<size_t>(kMaxFrameDescriptors))
    return absl::InvalidArgumentError(absl::StrCat(
        "a message carries at most ", kMaxFrameDescriptors, " descriptors, not ", fds.size()));
  const int64_t size = static_cast<int64_t>(message.ByteSizeLong());
  if (size > options_.max_frame_bytes)
    return absl::ResourceExhaustedError(absl::StrCat("a message of ", size,
                                                     " bytes is longer than a frame may be (",
                                                     options_.max_frame_bytes, " bytes)"));
  Outgoing out;
  out.bytes.resize(kHeaderBytes);
  EncodeLength(static_cast<uint32_t>(size), out.bytes.data());
  if (!message.AppendToString(&out.bytes)) return absl::InternalError("message not serialisable");
  for (int fd : fds) {
    UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid())
      return absl::InternalError(
          absl::StrCat("dup of descriptor ", fd, ": ", std::strerror(errno)));
    out.fds.push_back(std::move(copy));
  }
  absl::MutexLock lock(&mu_);
  if (closed_ || broken_) return absl::UnavailableError("the worker link is closed");
  const int64_t bytes = static_cast<int64_t>(out.bytes.size());
  if (queued_bytes_ + bytes > options_.max_queued_bytes)
    return absl::ResourceExhaustedError(absl::StrCat("the peer does not read: ", queued_bytes_,
                                                     " bytes wait, the limit is ",
                                                     options_.max_queued_bytes));
  queued_bytes_ += bytes;
  queue_.push_back(std::move(out));
  return absl::OkStatus();
}

void Link::WriteLoop() {
  for (;;) {
    Outgoing frame;
    {
      absl::MutexLock lock(&mu_);
      auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !queue_.empty(); };
      mu_.Await(absl::Condition(&ready));
      if (closed_) return;
      frame = std::move(queue_.front());
      queue_.pop_front();
    }
    const absl::Status status = WriteFrame(frame);
    absl::MutexLock lock(&mu_);
    queued_bytes_ -= static_cast<int64_t>(frame.bytes.size());
    if (!status.ok()) {
      broken_ = true;
      queue_.clear();
      return;
    }
  }
}

absl::Status Link::WriteFrame(const Outgoing& frame) {
  size_t at = 0;
  bool fds_sent = frame.fds.empty();
  while (at < frame.bytes.size()) {
    // Descriptors go with the header alone, so that they arrive with it and nothing else.
    const size_t end = fds_sent ? frame.bytes.size() : kHeaderBytes;
    iovec iov{const_cast<char*>(frame.bytes.data()) + at, end - at};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    std::vector<char> control;
    if (!fds_sent) {
      const size_t fd_bytes = frame.fds.size() * sizeof(int);
      control.assign(CMSG_SPACE(fd_bytes), 0);
      msg.msg_control = control.data();
      msg.msg_controllen = control.size();
      cmsghdr* c = CMSG_FIRSTHDR(&msg);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fd_bytes);
      std::vector<int> raw;
      for (const UniqueFd& fd : frame.fds) raw.push_back(fd.get());
      std::memcpy(CMSG_DATA(c), raw.data(), fd_bytes);
    }
    const ssize_t n = ::sendmsg(socket_.get(), &msg, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      return absl::UnavailableError(absl::StrCat("sendmsg: ", std::strerror(errno)));
    }
    at += static_cast<size_t>(n);
    fds_sent = true;
  }
  return absl::OkStatus();
}

bool Link::Flush(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return queued_bytes_ == 0 || closed_ || broken_;
  };
  mu_.AwaitWithDeadline(absl::Condition(&done), deadline);
  return queued_bytes_ == 0 && !broken_;
}

absl::Status Link::ReadSome(size_t want, absl::Time deadline) {
  for (;;) {
    pollfd p{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&p, 1, PollTimeoutMs(deadline));
    if (ready < 0 && errno != EINTR)
      return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
    if (ready > 0) break;
    if (absl::Now() >= deadline) return absl::DeadlineExceededError("no message came");
  }
  const size_t have = buffer_.size();
  buffer_.resize(have + std::min(want, kReadChunk));
  iovec iov{buffer_.data() + have, buffer_.size() - have};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFrameDescriptors * sizeof(int))];
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  msg.msg_control = control;
  msg.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(socket_.get(), &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const int error = errno;
  buffer_.resize(have + (n > 0 ? static_cast<size_t>(n) : 0));
  if (n < 0) {
    if (error == EINTR || error == EAGAIN) return absl::OkStatus();
    if (error == ECONNRESET) return absl::OutOfRangeError("the peer closed the link");
    return absl::UnavailableError(absl::StrCat("recvmsg: ", std::strerror(error)));
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(&msg, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      pending_fds_.emplace_back(fd);
    }
  }
  if (msg.msg_flags & MSG_CTRUNC)
    return absl::DataLossError("descriptors of a message were lost (descriptor limit reached?)");
  if (n == 0) {
    absl::MutexLock lock(&mu_);
    if (closed_) return absl::UnavailableError("the link was closed here");
    if (!buffer_.empty())
      return absl::DataLossError("the peer closed the link in the middle of a message");
    return absl::OutOfRangeError("the peer closed the link");
  }
  return absl::OkStatus();
}

absl::StatusOr<Frame> Link::Receive(absl::Time deadline) {
  if (!read_error_.ok()) return read_error_;
  for (;;) {
    // Never read past the frame: descriptors of the next one must not be mistaken for this one's.
    size_t need = kHeaderBytes;
    if (buffer_.size() >= kHeaderBytes) {
      const uint32_t length = DecodeLength(buffer_.data());
      if (static_cast<int64_t>(length) > options_.max_frame_bytes) {
        read_error_ = absl::DataLossError(absl::StrCat("a message claims ", length,
                                                       " bytes, more than a frame may have (",
                                                       options_.max_frame_bytes, ")"));
        return read_error_;
      }
      need += length;
      if (buffer_.size() == need) {
        Frame frame;
        frame.bytes = buffer_.substr(kHeaderBytes);
        frame.fds = std::move(pending_fds_);
        pending_fds_.clear();
        buffer_.clear();
        return frame;
      }
    }
    const absl::Status status = ReadSome(need - buffer_.size(), deadline);
    if (absl::IsDeadlineExceeded(status)) return status;
    if (!status.ok()) {
      read_error_ = status;
      return status;
    }
  }
}

}  // namespace soup::daemon
