// Owner of one file descriptor: move-only, closes in the destructor. Not thread-safe.
#ifndef SOUP_DAEMON_COMMON_UNIQUE_FD_H_
#define SOUP_DAEMON_COMMON_UNIQUE_FD_H_

#include <unistd.h>

namespace soup::daemon {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_COMMON_UNIQUE_FD_H_
