#include "engine/device/gemm_profile.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr char kFirstLine[] = "soup gemm algorithms 1";

// Held from construction to the end: a lock file beside the profile.
class FileLock {
 public:
  static absl::StatusOr<FileLock> Take(const std::string& path) {
    FileLock lock;
    lock.fd_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (lock.fd_ < 0) return ErrnoStatus(errno, "open", path);
    while (flock(lock.fd_, LOCK_EX) != 0) {
      if (errno != EINTR) return ErrnoStatus(errno, "lock", path);
    }
    return lock;
  }
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  FileLock() = default;
  int fd_ = -1;
};

// scope|key -> algorithm, of every scope.
absl::StatusOr<GemmProfile::Entries> Parse(const std::string& path, const std::string& text) {
  GemmProfile::Entries entries;
  const auto broken = [&](absl::string_view line) {
    return absl::DataLossError(
        absl::StrCat(path, " is not a file of GEMM algorithms at \"", line.substr(0, 80),
                     "\": put it back as it was, or remove it (jobs under way must then be "
                     "submitted again)"));
  };
  bool first = true;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (first && line != kFirstLine) return broken(line);
    if (std::exchange(first, false) || line.empty()) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, '|');
    if (parts.size() != 3 || parts[2].empty()) return broken(line);
    entries.emplace(absl::StrCat(parts[0], "|", parts[1]), std::string(parts[2]));
  }
  return entries;
}

absl::StatusOr<GemmProfile::Entries> ReadAll(const std::string& path) {
  if (path.empty() || !RealFileSystem().Exists(path)) return GemmProfile::Entries();
  SOUP_ASSIGN_OR_RETURN(const std::string text, RealFileSystem().ReadFile(path));
  return Parse(path, text);
}

GemmProfile::Entries OfScope(const GemmProfile::Entries& all, const std::string& scope) {
  GemmProfile::Entries entries;
  const std::string prefix = absl::StrCat(scope, "|");
  for (auto it = all.lower_bound(prefix); it != all.end(); ++it) {
    if (it->first.compare(0, prefix.size(), prefix) != 0) break;
    entries.emplace(it->first.substr(prefix.size()), it->second);
  }
  return entries;
}

}  // namespace

absl::StatusOr<GemmProfile::Entries> GemmProfile::Read() const {
  SOUP_ASSIGN_OR_RETURN(const Entries all, ReadAll(path_));
  return OfScope(all, scope_);
}

absl::StatusOr<GemmProfile::Entries> GemmProfile::Merge(const Entries& added) const {
  if (path_.empty()) return added;
  SOUP_ASSIGN_OR_RETURN(const FileLock lock, FileLock::Take(absl::StrCat(path_, ".lock")));
  SOUP_ASSIGN_OR_RETURN(Entries all, ReadAll(path_));
  bool grows = false;
  for (const auto& [key, algorithm] : added) {
    grows |= all.emplace(absl::StrCat(scope_, "|", key), algorithm).second;
  }
  if (grows) {
    std::string text = absl::StrCat(kFirstLine, "\n");
    for (const auto& [key, algorithm] : all) absl::StrAppend(&text, key, "|", algorithm, "\n");
    SOUP_RETURN_IF_ERROR(WriteFileAtomically(RealFileSystem(), path_, text));
  }
  return OfScope(all, scope_);
}

}  // namespace soup::engine
