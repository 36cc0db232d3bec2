#include "cache/disk_space.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::cache {

absl::StatusOr<SpaceReservation> SpaceReservation::Reserve(const std::string& folder,
                                                           int64_t bytes) {
  SOUP_ASSIGN_OR_RETURN(const int64_t free_bytes, engine::RealFileSystem().FreeBytes(folder));
  if (free_bytes < bytes) return engine::ErrnoStatus(ENOSPC, "reserve room in", folder, bytes);
  SpaceReservation out;
  out.fd_ = engine::UniqueFd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!out.fd_.valid()) {
    if (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT) return out;  // checked only
    return engine::ErrnoStatus(errno, "reserve room in", folder, bytes);
  }
  while (fallocate(out.fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP) return out;
    return engine::ErrnoStatus(errno, "reserve room in", folder, bytes);
  }
  out.bytes_ = bytes;
  return out;
}

void SpaceReservation::ShrinkTo(int64_t bytes) {
  if (bytes >= bytes_) return;
  // Failing to shrink costs room that the process's end gives back.
  if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0) bytes_ = bytes;
}

absl::StatusOr<std::map<std::string, FileUse>> DiskUse(const std::string& folder) {
  SOUP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        engine::RealFileSystem().ListDirectory(folder));
  std::map<std::string, FileUse> use;
  for (const std::string& name : names) {
    struct stat st;
    if (stat(engine::JoinPath(folder, name).c_str(), &st) != 0) continue;  // gone in between
    use[name] = {static_cast<int64_t>(st.st_size), static_cast<int64_t>(st.st_blocks) * 512};
  }
  return use;
}

absl::StatusOr<FileUse> FreedSince(const std::string& folder,
                                   const std::map<std::string, FileUse>& before) {
  SOUP_ASSIGN_OR_RETURN(const auto after, DiskUse(folder));
  FileUse freed;
  for (const auto& [name, use] : before) {
    if (after.count(name) > 0) continue;
    freed.length += use.length;
    freed.on_disk += use.on_disk;
  }
  return freed;
}

}  // namespace soup::cache
