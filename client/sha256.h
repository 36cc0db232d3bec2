// SHA-256 of bytes as they come, and of a whole file. An object belongs to one thread.
#ifndef SOUP_CLIENT_SHA256_H_
#define SOUP_CLIENT_SHA256_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

typedef struct evp_md_ctx_st EVP_MD_CTX;

namespace soup::client {

class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();

  void Update(absl::string_view data);
  // 64 lower-case hex digits. Called once, last.
  std::string HexDigest();

 private:
  EVP_MD_CTX* context_;
};

// Told how many bytes of how many are done; false stops the work.
using ByteProgress = std::function<bool(int64_t done, int64_t total)>;

struct HashedFile {
  std::string sha256;
  int64_t size_bytes = 0;
};
// NotFound, PermissionDenied and so on name the path; Cancelled when `progress` stopped it.
absl::StatusOr<HashedFile> HashFile(const std::string& path, const ByteProgress& progress);

}  // namespace soup::client

#endif  // SOUP_CLIENT_SHA256_H_
