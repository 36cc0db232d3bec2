// SHA-256 over OpenSSL, incremental. Not thread-safe: one object a stream.
#ifndef SOUP_DAEMON_CONTROL_SHA256_H_
#define SOUP_DAEMON_CONTROL_SHA256_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace soup::daemon {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void Update(absl::string_view data);
  // 64 lower-case hex digits. The object is spent.
  std::string HexDigest();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string Sha256Hex(absl::string_view data);
// Of the first `bytes` of an open file (-1: all of it), read in 1 MiB pieces. DataLoss when it is
// shorter.
absl::StatusOr<std::string> Sha256HexOfFile(int fd, const std::string& path, int64_t bytes = -1);
// Feeds the first `bytes` of an open file into `sha`.
absl::Status UpdateFromFile(Sha256& sha, int fd, const std::string& path, int64_t bytes);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_SHA256_H_
