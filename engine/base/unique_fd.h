// Owner of one file descriptor: move-only, closed when it dies. Not thread-safe; the number may be
// used by several threads while the owner lives.
#ifndef SOUP_ENGINE_BASE_UNIQUE_FD_H_
#define SOUP_ENGINE_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace soup::engine {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}  // -1: none
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_UNIQUE_FD_H_
