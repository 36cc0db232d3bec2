// HostStore: bases in host memory, in memfd segments that workers map by descriptor.
//
// Slabs start at multiples of 2 MiB; a segment holds up to segment_bytes of them (one larger slab
// has a segment of its own). Before memory is touched, what the host and every cgroup above us
// leave, less a reserve, is compared with what is needed. Memory comes as hugetlb pages, else with
// huge-page advice, else plain; it is prefaulted in parallel and the tier is then read back from
// the kernel, not believed. Filled segments are sealed against size changes and new writable
// mappings.
//
// A base is shared: HostBase is immutable and lives as long as someone holds it. An idle base (held
// by the store alone) stays until room is needed or Drop is called; least recently used goes first.
// Before a base goes, before_drop is called, so that workers unmap it (memory is free only then).
//
// Errors: ResourceExhausted (bytes needed, bytes available, what would help; shortage.h), DataLoss
// (checksum), FailedPrecondition (in use), Cancelled. Thread-safe.
#ifndef SOUP_CACHE_HOST_STORE_H_
#define SOUP_CACHE_HOST_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/base_key.h"
#include "cache/host_memory.h"
#include "cache/manifest.h"
#include "cache/memory_segment.h"
#include "cache/task_control.h"
#include "engine/base/clock.h"
#include "engine/base/unique_fd.h"

namespace soup::cache {

struct SlabPlace {
  int32_t segment = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

class HostBase {
 public:
  ~HostBase();
  HostBase(const HostBase&) = delete;
  HostBase& operator=(const HostBase&) = delete;

  const BaseManifest& manifest() const { return manifest_; }
  std::string key_text() const { return manifest_.key.ToString(); }
  int segments() const { return static_cast<int>(segments_.size()); }
  int segment_fd(int i) const { return segments_[i].fd(); }  // stays the base's
  int64_t segment_bytes(int i) const { return segments_[i].bytes(); }
  const std::vector<SlabPlace>& slabs() const { return slabs_; }
  absl::Span<const uint8_t> slab(int64_t i) const;
  int64_t bytes() const;  // of all segments
  MemoryTier tier() const { return tier_; }

  // Compares every slab with its checksum. DataLoss names the bad ones.
  absl::Status Verify(const TaskControl& control = {}) const;

 private:
  friend class HostStore;
  HostBase() = default;
  BaseManifest manifest_;
  std::vector<MemorySegment> segments_;
  std::vector<SlabPlace> slabs_;
  MemoryTier tier_ = MemoryTier::kPlain;
};

struct HostStoreOptions {
  int64_t segment_bytes = int64_t{1} << 30;
  int64_t reserve_bytes = int64_t{1} << 30;  // left to the rest of the host
  int64_t limit_bytes = 0;                   // of all bases together; 0: none
  // Refuse new writable mappings of filled segments. False only for devices that cannot register
  // read-only memory.
  bool seal_writes = true;
  // Called without locks, before an idle base is released. May block until workers have unmapped.
  std::function<void(const std::string& base_key)> before_drop;
  const engine::Clock* clock = &engine::RealClock();
  HostMemory* memory = &RealHostMemory();
};

struct HostedBase {
  BaseKey key;
  int64_t bytes = 0;
  MemoryTier tier = MemoryTier::kPlain;
  int64_t holders = 0;  // besides the store
};

class HostStore {
 public:
  explicit HostStore(HostStoreOptions options);
  ~HostStore();

  // Fills one chunk of a slab.
  using ChunkReader =
      std::function<absl::Status(int64_t slab, int64_t chunk, absl::Span<uint8_t> dst)>;

  // The base when it is here (marked used); null when it is not.
  std::shared_ptr<const HostBase> Find(const BaseKey& key);
  // Finds, or makes room, allocates and fills in parallel. Callers of one key at the same time
  // share one filling.
  absl::StatusOr<std::shared_ptr<const HostBase>> Load(const BaseManifest& manifest,
                                                       const ChunkReader& read,
                                                       const TaskControl& control);
  // Takes segments back by descriptor (systemd's FDSTORE) after a restart: sizes, seals and every
  // checksum are verified. DataLoss: not what the manifest says; the descriptors are closed.
  absl::StatusOr<std::shared_ptr<const HostBase>> Attach(const BaseManifest& manifest,
                                                         std::vector<engine::UniqueFd> segments,
                                                         const TaskControl& control);
  // Bytes released. NotFound; FailedPrecondition when held.
  absl::StatusOr<int64_t> Drop(const BaseKey& key);
  std::vector<HostedBase> List();
  int64_t pinned_bytes();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// How slabs are laid into segments: pure, so that a restarted soupd gets the same answer.
struct SegmentPlan {
  std::vector<int64_t> segment_bytes;  // multiples of 2 MiB
  std::vector<SlabPlace> slabs;
};
SegmentPlan PlanSegments(const BaseManifest& manifest, int64_t segment_bytes);

}  // namespace soup::cache

#endif  // SOUP_CACHE_HOST_STORE_H_
