// MappedBase: a base in soupd's host store, mapped read-only into this process by the descriptors
// that came with LoadBase. The mapping lives as long as the object; slabs are views of it.
#ifndef SOUP_DAEMON_WORKER_MAPPED_BASE_H_
#define SOUP_DAEMON_WORKER_MAPPED_BASE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/unique_fd.h"
#include "engine/train/model_base.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::worker {

// Maps a segment of the store, to be read, at an address of whole huge pages: only there can a
// mapping use the huge pages that the memory has, and a device pins those many times faster.
// Nullptr: errno says why. Undone by munmap.
std::byte* MapSegment(int fd, int64_t bytes);

class MappedBase {
 public:
  // Errors: InvalidArgument (descriptors, sizes or slabs that do not agree, an unsupported
  // config), Internal (mmap).
  static absl::StatusOr<std::unique_ptr<MappedBase>> Map(const soup::worker::v1::LoadBase& load,
                                                         std::vector<engine::UniqueFd> fds);
  ~MappedBase();
  MappedBase(const MappedBase&) = delete;
  MappedBase& operator=(const MappedBase&) = delete;

  const engine::ModelBase& base() const { return base_; }
  // Nothing in this process can have changed the slabs.
  bool read_only() const { return true; }
  // Slabs whose bytes do not have the checksum that LoadBase gave.
  std::vector<int32_t> BadSlabs(const soup::worker::v1::LoadBase& load) const;

 private:
  MappedBase() = default;
  struct Segment {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Segment> segments_;
  engine::ModelBase base_;
};

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_MAPPED_BASE_H_
