#include "daemon/control/auth.h"

#include <openssl/crypto.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/control/sha256.h"
#include "daemon/control/text.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr size_t kMinTokenBytes = 16;

std::string Stamp(const struct stat& st) {
  return absl::StrCat(st.st_dev, ":", st.st_ino, ":", st.st_size, ":", st.st_mtim.tv_sec, ".",
                      st.st_mtim.tv_nsec, ":", st.st_ctim.tv_sec, ".", st.st_ctim.tv_nsec);
}

}  // namespace

void PeerTable::Set(int fd, uid_t uid) {
  absl::MutexLock lock(&mutex_);
  uids_[fd] = uid;
}

std::optional<uid_t> PeerTable::Find(absl::string_view peer) const {
  int fd = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &fd)) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  const auto it = uids_.find(fd);
  if (it == uids_.end()) return std::nullopt;
  return it->second;
}

Admins::Admins(std::vector<uid_t> configured) : uids_(std::move(configured)) {
  uids_.push_back(0);
  uids_.push_back(geteuid());
  std::sort(uids_.begin(), uids_.end());
}

bool Admins::Contains(uid_t uid) const {
  return std::binary_search(uids_.begin(), uids_.end(), uid);
}

Principal PrincipalOfUid(uid_t uid, const Admins& admins) {
  return Principal{absl::StrCat("uid:", uid), admins.Contains(uid)};
}

absl::StatusOr<std::vector<std::pair<std::string, Principal>>> TokenFile::Parse(
    absl::string_view text, const std::string& path) {
  std::vector<std::pair<std::string, Principal>> entries;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const auto bad = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat("token file ", path, ", line ", number, ": ", why));
    };
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words.size() < 2 || words.size() > 3 || (words.size() == 3 && words[2] != "admin")) {
      return bad("expected `token user [admin]`");
    }
    if (!IsUserName(words[1])) {
      return bad("a user has 1 to 64 letters, digits and . _ : @ -");
    }
    absl::string_view token = words[0];
    std::string hash;
    if (absl::ConsumePrefix(&token, "sha256:")) {
      if (!IsSha256Hex(token)) return bad("sha256: wants 64 lower-case hex digits");
      hash = std::string(token);
    } else {
      if (token.size() < kMinTokenBytes) {
        return bad("a token has at least 16 characters; `soupd token new` makes one");
      }
      hash = Sha256Hex(token);
    }
    for (const auto& [other, principal] : entries) {
      if (other == hash) return bad("this token stands on an earlier line too");
    }
    entries.emplace_back(hash, Principal{std::string(words[1]), words.size() == 3});
  }
  return entries;
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  std::unique_ptr<TokenFile> file(new TokenFile(path));
  absl::MutexLock lock(&file->mutex_);
  SOUP_RETURN_IF_ERROR(file->Load());
  return file;
}

absl::Status TokenFile::Load() {
  struct stat st {};
  if (stat(path_.c_str(), &st) != 0)
    return engine::ErrnoStatus(errno, "read the token file", path_);
  if ((st.st_mode & 077) != 0 || (st.st_uid != geteuid() && st.st_uid != 0)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "token file ", path_, " must belong to soupd's user and be closed to others: chmod 0600"));
  }
  stamp_ = Stamp(st);
  SOUP_ASSIGN_OR_RETURN(const std::string text, engine::RealFileSystem().ReadFile(path_));
  SOUP_ASSIGN_OR_RETURN(entries_, Parse(text, path_));
  return absl::OkStatus();
}

void TokenFile::ReloadIfChanged() {
  struct stat st {};
  if (stat(path_.c_str(), &st) != 0 || Stamp(st) == stamp_) return;
  const absl::Status loaded = Load();
  if (!loaded.ok()) {
    SOUP_LOG(kError, "auth") << loaded.message() << "; the tokens read before stay in force";
  }
}

std::optional<Principal> TokenFile::Check(absl::string_view token) {
  const std::string hash = Sha256Hex(token);
  absl::MutexLock lock(&mutex_);
  ReloadIfChanged();
  const Principal* found = nullptr;
  for (const auto& [known, principal] : entries_) {
    if (CRYPTO_memcmp(known.data(), hash.data(), hash.size()) == 0) found = &principal;
  }
  if (found == nullptr) return std::nullopt;
  return *found;
}

std::string NewToken() {
  char bytes[32];
  SOUP_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  return absl::StrCat("soup_", absl::WebSafeBase64Escape(absl::string_view(bytes, sizeof bytes)));
}

bool IsUserName(absl::string_view user) {
  if (user.empty() || user.size() > 64) return false;
  return std::all_of(user.begin(), user.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == ':' || c == '@' || c == '-';
  });
}

}  // namespace soup::daemon
