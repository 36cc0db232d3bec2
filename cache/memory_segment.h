// One mapped memfd: prefault, evidence of its tier, sealing. Errors: ResourceExhausted (the kernel
// has no memory), Unknown. Not thread-safe; movable.
#ifndef SOUP_CACHE_MEMORY_SEGMENT_H_
#define SOUP_CACHE_MEMORY_SEGMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/host_memory.h"
#include "engine/base/unique_fd.h"

namespace soup::cache {

class MemorySegment {
 public:
  // Maps `bytes` of the memfd, to be filled.
  static absl::StatusOr<MemorySegment> MapWritable(engine::UniqueFd fd, int64_t bytes);
  // Maps a filled one. DataLoss when its size is another.
  static absl::StatusOr<MemorySegment> MapReadOnly(engine::UniqueFd fd, int64_t bytes);
  MemorySegment(MemorySegment&& other) noexcept;
  MemorySegment& operator=(MemorySegment&& other) noexcept;
  ~MemorySegment();

  int fd() const { return fd_.get(); }
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Asks for huge pages; no answer is given: see EvidentTier.
  void AdviseHuge();
  // Makes the kernel give the pages of [offset, offset + bytes) now.
  absl::Status Prefault(int64_t offset, int64_t bytes);
  // The size can no longer change and nobody can map it writable anew (where the kernel knows that
  // seal); our own mapping becomes read-only. `seal_writes` false: size only.
  absl::Status Seal(bool seal_writes);

 private:
  MemorySegment() = default;
  static absl::StatusOr<MemorySegment> Map(engine::UniqueFd fd, int64_t bytes, int protection);
  void Unmap();
  engine::UniqueFd fd_;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

// What backs the mappings that begin at `segments`' addresses, by /proc/self/smaps: kHugetlb or
// kHuge only when (nearly) all of it is. `smaps` is that file's text.
struct MappedRange {
  uint64_t begin = 0;
  int64_t bytes = 0;
};
MemoryTier EvidentTier(const std::string& smaps, const std::vector<MappedRange>& ranges);

}  // namespace soup::cache

#endif  // SOUP_CACHE_MEMORY_SEGMENT_H_
