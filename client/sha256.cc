#include "client/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/unique_fd.h"

namespace soup::client {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  SOUP_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::Update(absl::string_view data) {
  SOUP_CHECK(EVP_DigestUpdate(context_, data.data(), data.size()) == 1);
}

std::string Sha256::HexDigest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  SOUP_CHECK(EVP_DigestFinal_ex(context_, digest, &size) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

absl::StatusOr<HashedFile> HashFile(const std::string& path, const ByteProgress& progress) {
  const engine::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st;
  if (fd.get() < 0 || fstat(fd.get(), &st) != 0) return engine::ErrnoStatus(errno, "open", path);
  Sha256 hash;
  HashedFile out;
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t n = read(fd.get(), buffer.data(), buffer.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return engine::ErrnoStatus(errno, "read", path);
    }
    if (n == 0) break;
    hash.Update(absl::string_view(buffer.data(), static_cast<size_t>(n)));
    out.size_bytes += n;
    if (progress && !progress(out.size_bytes, st.st_size)) return absl::CancelledError("stopped");
  }
  out.sha256 = hash.HexDigest();
  return out;
}

}  // namespace soup::client
