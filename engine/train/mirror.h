// Mirror: the state of a job after its last step, in a mapped file of the state directory, so that
// it outlives the worker.
//
// mirror.bin: a header page, then two halves. A commit invalidates the older half, writes the state
// into it, then checksum (XXH3-64 over everything in the half and its sequence number), then,
// released last, the sequence. Opening takes the half with the higher sequence whose checksum
// holds. So at any instant one whole half is there:
//   - killed process (-9, a crash, the OOM killer): the mapping is the page cache's, every store
//     made is kept; at most the commit under way is lost;
//   - power loss or a crash of the kernel: pages are written back in any order, halves may be torn
//     or old. A torn half fails its checksum; if both do, Read says DataLoss, and the job goes on
//     from its last checkpoint, which is fsynced.
//
// The file's blocks are reserved when it is made (posix_fallocate): a full disk is met then, as
// ResourceExhausted, and not as SIGBUS in a commit. (File systems that copy on write may still
// need room later; there SIGBUS ends the worker, and the mirror's other half stands.)
//
// One process has a mirror open: it holds flock on it. Not thread-safe.
#ifndef SOUP_ENGINE_TRAIN_MIRROR_H_
#define SOUP_ENGINE_TRAIN_MIRROR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/file_system.h"
#include "engine/train/adapter_state.h"

namespace soup::engine {

class Mirror {
 public:
  static constexpr int64_t kMaxStatsBytes = 4096;

  // One that cannot be opened, so that the next Open makes it. Nothing if there is none.
  static absl::Status Remove(FileSystem& fs, const std::string& directory);

  // Opens <directory>/mirror.bin for states of `elements` fp32 a vector, and makes it (directory
  // too) when it is not there. Errors: ResourceExhausted (no room; nothing is left behind),
  // FailedPrecondition (another process holds it; or it is of another size of adapter: names both),
  // DataLoss (its header is not one), and those of FileSystem.
  static absl::StatusOr<std::unique_ptr<Mirror>> Open(FileSystem& fs, const std::string& directory,
                                                      int64_t elements);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // The newest whole state; nullopt when none was ever committed. Errors: DataLoss (something was
  // committed, and neither half is whole).
  absl::StatusOr<std::optional<AdapterState>> Read() const;

  // On return the state is the mirror's newest. Errors: InvalidArgument (sizes that are not the
  // mirror's, stats above kMaxStatsBytes).
  absl::Status Commit(const AdapterStateView& state);

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }
  uint64_t sequence() const { return sequence_; }  // of the newest whole half; 0: none

 private:
  struct HalfHeader;
  Mirror() = default;
  HalfHeader* half(int i) const;
  // Whether half i is whole.
  bool Valid(int i) const;

  std::string path_;
  int64_t elements_ = 0;
  int64_t file_bytes_ = 0;
  int fd_ = -1;
  std::byte* map_ = nullptr;
  uint64_t sequence_ = 0;
  int newest_ = -1;  // half with `sequence_`
};

// Removes the mirror with its directory; absent is OK. Errors as FileSystem.
absl::Status RemoveMirror(FileSystem& fs, const std::string& directory);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_MIRROR_H_
