#include "daemon/control/sha256.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  SOUP_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(absl::string_view data) {
  SOUP_CHECK(EVP_DigestUpdate(context_.get(), data.data(), data.size()) == 1);
}

std::string Sha256::HexDigest() {
  unsigned char digest[32];
  unsigned int n = 0;
  SOUP_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &n) == 1 && n == sizeof digest);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(digest), n));
}

std::string Sha256Hex(absl::string_view data) {
  Sha256 sha;
  sha.Update(data);
  return sha.HexDigest();
}

absl::Status UpdateFromFile(Sha256& sha, int fd, const std::string& path, int64_t bytes) {
  std::vector<char> buffer(1 << 20);
  int64_t done = 0;
  while (done < bytes) {
    const size_t want =
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(buffer.size()), bytes - done));
    const ssize_t n = pread(fd, buffer.data(), want, done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return engine::ErrnoStatus(errno, "read", path);
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(path, " ends at byte ", done, ", expected ", bytes));
    }
    sha.Update(absl::string_view(buffer.data(), static_cast<size_t>(n)));
    done += n;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Sha256HexOfFile(int fd, const std::string& path, int64_t bytes) {
  if (bytes < 0) {
    struct stat st {};
    if (fstat(fd, &st) != 0) return engine::ErrnoStatus(errno, "stat", path);
    bytes = st.st_size;
  }
  Sha256 sha;
  SOUP_RETURN_IF_ERROR(UpdateFromFile(sha, fd, path, bytes));
  return sha.HexDigest();
}

}  // namespace soup::daemon
