// Removing bases: eviction, the cap, and what interrupted imports and evictions leave behind.
#include <rocksdb/options.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/disk_space.h"
#include "cache/shard_keys.h"
#include "cache/shard_store.h"
#include "cache/shard_store_rep.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

constexpr int64_t kFilesGoWithinNs = 10'000'000'000;

}  // namespace

absl::StatusOr<FileUse> ShardStore::Rep::RemoveChunks(const BaseKey& key, int64_t expected_bytes) {
  const std::string begin = ShardPrefix(key);
  const std::string end = PrefixEnd(begin);
  SOUP_ASSIGN_OR_RETURN(const auto before, DiskUse(options.folder));
  SOUP_RETURN_IF_ERROR(rocks->With("delete chunks", [&](const RocksHandle::Db& db) {
    rocksdb::WriteOptions without_wal;
    without_wal.disableWAL = true;
    return db.db->DeleteRange(without_wal, db.shards, begin, end);
  }));
  SOUP_RETURN_IF_ERROR(Flush(0));
  // Deleting frees nothing by itself: the blobs go when a compaction has counted them as garbage.
  SOUP_RETURN_IF_ERROR(rocks->With("compact", [&](const RocksHandle::Db& db) {
    rocksdb::CompactRangeOptions compact;
    compact.exclusive_manual_compaction = false;
    compact.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
    compact.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kForce;
    compact.blob_garbage_collection_age_cutoff = 1.0;
    const rocksdb::Slice first(begin), last(end);
    return db.db->CompactRange(compact, db.shards, &first, &last);
  }));
  SOUP_RETURN_IF_ERROR(rocks->With("end a removal", [&](const RocksHandle::Db& db) {
    rocksdb::WriteOptions synced;
    synced.sync = true;
    return db.db->Delete(synced, db.meta, absl::StrCat(kLeftoverPrefix, key.ToString()));
  }));
  return AwaitFreed(before, expected_bytes);
}

// A reader in the middle of a Get keeps the old files until it ends, and they go a moment later.
absl::StatusOr<FileUse> ShardStore::Rep::AwaitFreed(const std::map<std::string, FileUse>& before,
                                                    int64_t expected_bytes) {
  const int64_t deadline_ns = engine::RealClock().MonotonicNs() + kFilesGoWithinNs;
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const FileUse freed, FreedSince(options.folder, before));
    if (freed.length >= expected_bytes || engine::RealClock().MonotonicNs() > deadline_ns) {
      return freed;
    }
    SOUP_RETURN_IF_ERROR(rocks->With("remove files", [](const RocksHandle::Db& db) {
      const rocksdb::Status s = db.db->DisableFileDeletions();
      return s.ok() ? db.db->EnableFileDeletions(/*force=*/false) : s;  // looks for dead files
    }));
    absl::SleepFor(absl::Milliseconds(10));
  }
}

absl::Status ShardStore::Rep::RemoveLeftovers() {
  for (;;) {
    BaseKey key;
    {
      absl::MutexLock lock(&mu);
      if (leftovers.empty()) return absl::OkStatus();
      key = *leftovers.begin();
      leftovers.erase(key);
      busy.insert(key);
    }
    const auto freed = RemoveChunks(key, /*expected_bytes=*/0);
    absl::MutexLock lock(&mu);
    busy.erase(key);
    if (!freed.ok()) {
      leftovers.insert(key);
      return freed.status();
    }
    SOUP_LOG(kInfo, "cache") << "removed what was left of base " << key.ToString() << ": "
                             << freed->on_disk << " bytes freed";
  }
}

absl::StatusOr<int64_t> ShardStore::Rep::Evict(const BaseKey& key, bool counted) {
  int64_t expected = 0;
  Entry entry;
  {
    absl::MutexLock lock(&mu);
    const auto it = bases.find(key);
    if (it == bases.end()) {
      return absl::NotFoundError(
          absl::StrCat("base ", key.ToString(), " is not in the shard store"));
    }
    if (it->second.pins > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("base ", key.ToString(), " is in use; wait for its jobs or cancel them"));
    }
    expected = it->second.manifest.total_bytes();
    entry = std::move(it->second);
    bases.erase(it);
    busy.insert(key);
  }
  const absl::Status gone = rocks->With("evict", [&](const RocksHandle::Db& db) {
    rocksdb::WriteBatch batch;
    batch.Delete(db.meta, absl::StrCat(kBasePrefix, key.ToString()));
    batch.Delete(db.meta, absl::StrCat(kUsedPrefix, key.ToString()));
    for (int64_t slab : entry.bad_slabs) batch.Delete(db.meta, BadKey(key, slab));
    batch.Put(db.meta, absl::StrCat(kLeftoverPrefix, key.ToString()), "");
    rocksdb::WriteOptions synced;
    synced.sync = true;
    return db.db->Write(synced, &batch);
  });
  if (!gone.ok()) {
    absl::MutexLock lock(&mu);
    bases[key] = std::move(entry);
    busy.erase(key);
    return gone;
  }
  const bool damaged = !entry.bad_slabs.empty();
  const auto freed = RemoveChunks(key, damaged ? 0 : expected);
  {
    absl::MutexLock lock(&mu);
    busy.erase(key);
    if (!freed.ok()) leftovers.insert(key);
    if (counted) ++counters.evictions;
  }
  if (!freed.ok()) return freed.status();
  // By length: a file system that compresses gives back fewer blocks. A damaged base may have lost
  // files before.
  if (freed->length < expected && !damaged) {
    return absl::InternalError(absl::StrCat("evicting base ", key.ToString(), " freed files of ",
                                            freed->length, " of its ", expected, " bytes in ",
                                            options.folder));
  }
  SOUP_LOG(kInfo, "cache") << "evicted base " << key.ToString() << ": " << freed->on_disk
                           << " bytes freed";
  return freed->on_disk;
}

absl::StatusOr<int64_t> ShardStore::Evict(const BaseKey& key) {
  SOUP_RETURN_IF_ERROR(EnsureWritable());
  return rep_->Evict(key, /*counted=*/true);
}

const BaseKey* ShardStore::Rep::EvictionVictim() {
  const BaseKey* victim = nullptr;
  int64_t oldest = 0;
  for (const auto& [key, entry] : bases) {
    if (entry.pins > 0) continue;
    if (victim == nullptr || entry.last_used_unix_ms < oldest) {
      victim = &key;
      oldest = entry.last_used_unix_ms;
    }
  }
  return victim;
}

absl::Status ShardStore::Rep::MakeRoom(int64_t bytes) {
  if (options.cap_bytes <= 0) return absl::OkStatus();
  if (bytes > options.cap_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shard store ", options.folder, ": the base needs ", bytes, " bytes, the cap of all is ",
        options.cap_bytes, ": raise the cap (--cache-cap)"));
  }
  for (;;) {
    BaseKey victim;
    {
      absl::MutexLock lock(&mu);
      const int64_t total = TotalBytes();
      if (total + bytes <= options.cap_bytes) return absl::OkStatus();
      const BaseKey* found = EvictionVictim();
      if (found == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("shard store ", options.folder, ": the base needs ", bytes,
                         " bytes, the cap is ", options.cap_bytes, " and ", total,
                         " are taken by bases in use: raise the cap (--cache-cap)"));
      }
      victim = *found;
    }
    const absl::Status evicted = Evict(victim, /*counted=*/true).status();
    // Taken into use or gone in between: look again.
    if (!evicted.ok() && !absl::IsFailedPrecondition(evicted) && !absl::IsNotFound(evicted)) {
      return evicted;
    }
  }
}

}  // namespace soup::cache
