// Who a caller is. Over the unix socket: the peer's uid, kept by descriptor (PeerTable). Over TCP:
// a bearer token (TokenFile), or the common name of a client certificate when only mutual TLS is
// set up.
//
// Thread-safe.
#ifndef SOUP_DAEMON_CONTROL_AUTH_H_
#define SOUP_DAEMON_CONTROL_AUTH_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace soup::daemon {

struct Principal {
  std::string user;  // "uid:1000", a token's user, or "cert:NAME"
  bool admin = false;
};

// uid of the peer behind descriptor N of an accepted unix connection. gRPC calls the peer "fd:N".
class PeerTable {
 public:
  void Set(int fd, uid_t uid);
  // `peer` as ServerContext::peer() has it; nullopt when it is not one of ours.
  std::optional<uid_t> Find(absl::string_view peer) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<int, uid_t> uids_ ABSL_GUARDED_BY(mutex_);
};

// root, soupd's own uid and those configured.
class Admins {
 public:
  explicit Admins(std::vector<uid_t> configured);
  bool Contains(uid_t uid) const;

 private:
  std::vector<uid_t> uids_;  // sorted
};

Principal PrincipalOfUid(uid_t uid, const Admins& admins);

// Lines `token user [admin]`; # starts a comment; a token may be written as sha256:<64 hex digits>.
// Only hashes are kept. Refused unless the file belongs to soupd's user (or root) and nobody else
// may read it. Read again when the file changes; a broken new version leaves the old one in force
// and is logged.
class TokenFile {
 public:
  static absl::StatusOr<std::vector<std::pair<std::string, Principal>>> Parse(
      absl::string_view text, const std::string& path);
  // InvalidArgument, PermissionDenied, NotFound: with the line or the remedy, never with a token.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  // Whom the token stands for; compares with every entry in constant time.
  std::optional<Principal> Check(absl::string_view token);

 private:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReloadIfChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  std::vector<std::pair<std::string, Principal>> entries_
      ABSL_GUARDED_BY(mutex_);                 // by SHA-256, hex
  std::string stamp_ ABSL_GUARDED_BY(mutex_);  // inode, size and times of the file that was read
};

// 256 bits from the kernel, "soup_" + 43 characters.
std::string NewToken();
// Letters, digits and . _ : @ - ; at most 64.
bool IsUserName(absl::string_view user);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_AUTH_H_
