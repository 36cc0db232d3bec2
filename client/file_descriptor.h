// Owns a file descriptor; -1 is none. Not thread-safe.
#ifndef SOUP_CLIENT_FILE_DESCRIPTOR_H_
#define SOUP_CLIENT_FILE_DESCRIPTOR_H_

#include <unistd.h>

namespace soup::client {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  // False when close(2) reports an error that the bytes may not be there (errno is set).
  bool Close() {
    const int fd = fd_;
    fd_ = -1;
    return fd < 0 || close(fd) == 0;
  }

 private:
  int fd_;
};

}  // namespace soup::client

#endif  // SOUP_CLIENT_FILE_DESCRIPTOR_H_
