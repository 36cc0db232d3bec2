// Room on disk: reserved before an import, measured after an eviction. Errors: ResourceExhausted
// (path, bytes needed, bytes free) and those of files. Not thread-safe.
#ifndef SOUP_CACHE_DISK_SPACE_H_
#define SOUP_CACHE_DISK_SPACE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/unique_fd.h"

namespace soup::cache {

// Holds blocks of the file system in a file of its own, so that nobody else takes them while an
// import goes on; gives them up bit by bit as the import's own files need them. The file has no
// name once made: it goes with the process. Where the file system cannot reserve, room is only
// checked.
class SpaceReservation {
 public:
  static absl::StatusOr<SpaceReservation> Reserve(const std::string& folder, int64_t bytes);
  // Gives up all but `bytes`.
  void ShrinkTo(int64_t bytes);

 private:
  engine::UniqueFd fd_;
  int64_t bytes_ = 0;
};

struct FileUse {
  int64_t length = 0;
  int64_t on_disk = 0;  // blocks: what the disk gets back
};
// Of each file of a folder, by name.
absl::StatusOr<std::map<std::string, FileUse>> DiskUse(const std::string& folder);
// Sum of the files of `before` that are gone now.
absl::StatusOr<FileUse> FreedSince(const std::string& folder,
                                   const std::map<std::string, FileUse>& before);

}  // namespace soup::cache

#endif  // SOUP_CACHE_DISK_SPACE_H_
