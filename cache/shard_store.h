// ShardStore: slabs on disk, in RocksDB (blob files, no compression), as chunks with a checksum
// each: key = fingerprint / format / layer / chunk.
//
// Writing: space is reserved, chunks go in without the WAL and are flushed, and a manifest is
// committed last, synced. Before the manifest nothing is visible; what an interrupted import left
// is removed at the next Open. Reading verifies every chunk; a bad one is counted, its slab
// quarantined until it is rewritten. Eviction deletes, compacts the prefix and reports the bytes
// that the disk has really got back. Under a size cap the least recently used base goes first,
// never one that is pinned. Variants of one fingerprint live side by side.
//
// A full disk makes RocksDB read-only. EnsureWritable (called by Begin and Health) resumes it, by
// reopening when resuming is not enough, once there is room. On a disk that is full at Open the
// store is empty until then.
//
// Errors: ResourceExhausted (full disk or cap: path, bytes needed, bytes free), DataLoss (a bad
// chunk: base and slab named), NotFound, AlreadyExists, FailedPrecondition (in use; a base
// larger than the cap), Unavailable.
// Thread-safe. One process at a time may hold a store's folder (RocksDB's lock).
#ifndef SOUP_CACHE_SHARD_STORE_H_
#define SOUP_CACHE_SHARD_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/base_key.h"
#include "cache/fingerprint.h"
#include "cache/manifest.h"
#include "cache/task_control.h"
#include "engine/base/clock.h"

namespace soup::cache {

struct ShardStoreOptions {
  std::string folder;     // made when absent (mode 0700)
  int64_t cap_bytes = 0;  // of all bases; 0: none
  const engine::Clock* clock = &engine::RealClock();
};

// Since Open.
struct CacheCounters {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t evictions = 0;
  int64_t corruptions = 0;
};

struct StoredBase {
  BaseManifest manifest;
  int64_t last_used_unix_ms = 0;
  bool in_use = false;
  std::vector<int64_t> bad_slabs;  // quarantined
};

struct StorageHealth {
  bool healthy = true;
  std::string message;  // empty when healthy
};

class ShardStore final : public DigestMemory {
 public:
  static absl::StatusOr<std::unique_ptr<ShardStore>> Open(const ShardStoreOptions& options);
  ~ShardStore() override;

  // Keeps a base from eviction while it lives; must not outlive the store. Move-only.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin();

   private:
    friend class ShardStore;
    Pin(ShardStore* store, BaseKey key) : store_(store), key_(std::move(key)) {}
    ShardStore* store_ = nullptr;
    BaseKey key_;
  };

  struct Found {
    BaseManifest manifest;
    Pin pin;
  };
  // Counts a hit or a miss, marks the base used, pins it. NotFound.
  absl::StatusOr<Found> Find(const BaseKey& key);
  std::vector<StoredBase> List();

  // One import. Destroyed before Commit: everything it wrote is removed. Not thread-safe.
  class Writer {
   public:
    virtual ~Writer() = default;
    // Slab after slab, each whole, in order.
    virtual absl::Status Append(absl::Span<const uint8_t> slab) = 0;
    virtual absl::StatusOr<Found> Commit() = 0;
  };
  // `draft` says everything but slabs: key, config, source. Waits for another import's end (one at
  // a time). Frees room under the cap first. AlreadyExists when the base is there.
  absl::StatusOr<std::unique_ptr<Writer>> Begin(const BaseManifest& draft, int64_t total_bytes,
                                                const TaskControl& control);

  // Chunk `chunk` of a slab into dst (chunk_bytes, less for the last). A bad one quarantines the
  // slab: DataLoss.
  absl::Status ReadChunk(const BaseManifest& manifest, int64_t slab, int64_t chunk,
                         absl::Span<uint8_t> dst);
  // Puts a quarantined slab back. `slab` must hash to what the manifest says (FailedPrecondition).
  absl::Status Repair(const BaseManifest& manifest, int64_t slab_index,
                      absl::Span<const uint8_t> slab);

  // Bytes that the disk has got back. NotFound; FailedPrecondition when pinned.
  absl::StatusOr<int64_t> Evict(const BaseKey& key);

  absl::Status EnsureWritable();
  StorageHealth Health();
  CacheCounters counters() const;
  int64_t total_bytes();  // of committed bases
  int64_t cap_bytes() const;

  std::optional<std::string> Recall(const engine::FileStamp& stamp) override;
  void Remember(const engine::FileStamp& stamp, const std::string& digest) override;

 private:
  ShardStore();
  class WriterImpl;
  // Chunks first_chunk .. of a slab, without the WAL.
  absl::Status PutChunks(const BaseManifest& manifest, int64_t slab_index, int64_t first_chunk,
                         absl::Span<const uint8_t> data);
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_SHARD_STORE_H_
