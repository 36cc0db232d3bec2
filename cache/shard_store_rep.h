// The shard store's insides, shared by its source files. Not for others.
#ifndef SOUP_CACHE_SHARD_STORE_REP_H_
#define SOUP_CACHE_SHARD_STORE_REP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache/disk_space.h"
#include "cache/rocks_handle.h"
#include "cache/shard_store.h"

namespace soup::cache {

struct ShardStore::Rep {
  struct Entry {
    BaseManifest manifest;
    int64_t last_used_unix_ms = 0;
    int64_t pins = 0;
    std::set<int64_t> bad_slabs;
  };

  ShardStoreOptions options;
  std::unique_ptr<RocksHandle> rocks;

  absl::Mutex mu;
  std::map<BaseKey, Entry> bases ABSL_GUARDED_BY(mu);
  // Keys whose chunks are on disk without a manifest: being written or being removed now (busy), or
  // waiting for a removal that has failed so far (leftover).
  std::set<BaseKey> busy ABSL_GUARDED_BY(mu);
  std::set<BaseKey> leftovers ABSL_GUARDED_BY(mu);
  bool writing ABSL_GUARDED_BY(mu) = false;
  CacheCounters counters ABSL_GUARDED_BY(mu);

  absl::Mutex load_mu;  // taken before mu
  bool loaded ABSL_GUARDED_BY(load_mu) = false;

  absl::Status Load();
  // What the store holds is read when it can first be opened.
  absl::Status LoadOnce();
  void Touch(const BaseKey& key);
  int64_t TotalBytes() ABSL_SHARED_LOCKS_REQUIRED(mu);
  // Least recently used base that nobody holds; null: none.
  const BaseKey* EvictionVictim() ABSL_SHARED_LOCKS_REQUIRED(mu);
  // Evicts until `bytes` more fit under the cap.
  absl::Status MakeRoom(int64_t bytes);
  absl::StatusOr<int64_t> Evict(const BaseKey& key, bool counted);
  // Removes a key's chunks from disk, and then its leftover mark. What the files that went took.
  // Waits (bounded) for that to come to expected_bytes.
  absl::StatusOr<FileUse> RemoveChunks(const BaseKey& key, int64_t expected_bytes);
  absl::StatusOr<FileUse> AwaitFreed(const std::map<std::string, FileUse>& before,
                                     int64_t expected_bytes);
  // What earlier failures left behind, when there is any.
  absl::Status RemoveLeftovers();
  absl::Status Flush(int64_t bytes);
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_SHARD_STORE_REP_H_
