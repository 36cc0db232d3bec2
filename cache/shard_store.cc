#include "cache/shard_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache/shard_keys.h"
#include "cache/shard_store_rep.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

rocksdb::WriteOptions Synced() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Every key of the meta family with the prefix, and its value: fn(rest of the key, value).
template <typename Fn>
rocksdb::Status ForEach(const RocksHandle::Db& db, const std::string& prefix, Fn fn) {
  std::unique_ptr<rocksdb::Iterator> it(db.db->NewIterator(rocksdb::ReadOptions(), db.meta));
  for (it->Seek(prefix); it->Valid() && absl::StartsWith(View(it->key()), prefix); it->Next()) {
    fn(View(it->key()).substr(prefix.size()), View(it->value()));
  }
  return it->status();
}

}  // namespace

// Pin ---------------------------------------------------------------------------------------------

ShardStore::Pin::Pin(Pin&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), key_(std::move(other.key_)) {}

ShardStore::Pin& ShardStore::Pin::operator=(Pin&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(key_, other.key_);
  return *this;
}

ShardStore::Pin::~Pin() {
  if (store_ == nullptr) return;
  store_->rep_->Touch(key_);  // the end of a long use is a use
  absl::MutexLock lock(&store_->rep_->mu);
  const auto it = store_->rep_->bases.find(key_);
  if (it != store_->rep_->bases.end()) --it->second.pins;
}

// Open --------------------------------------------------------------------------------------------

ShardStore::ShardStore() = default;
ShardStore::~ShardStore() = default;

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Open(const ShardStoreOptions& options) {
  std::unique_ptr<ShardStore> store(new ShardStore);
  store->rep_ = std::make_unique<Rep>();
  store->rep_->options = options;
  SOUP_ASSIGN_OR_RETURN(store->rep_->rocks, RocksHandle::Open(options.folder));
  if (store->rep_->rocks->is_open()) SOUP_RETURN_IF_ERROR(store->rep_->LoadOnce());
  return store;
}

absl::Status ShardStore::Rep::LoadOnce() {
  absl::MutexLock lock(&load_mu);
  if (loaded) return absl::OkStatus();
  SOUP_RETURN_IF_ERROR(Load());
  loaded = true;
  // With a full disk this fails; it is tried again before each import.
  const absl::Status removed = RemoveLeftovers();
  if (!removed.ok()) {
    SOUP_LOG(kWarn, "cache") << "leftovers stay for now: " << removed.ToString();
  }
  return absl::OkStatus();
}

absl::Status ShardStore::Rep::Load() {
  absl::MutexLock lock(&mu);
  std::vector<std::string> dead;  // manifests that cannot be read
  SOUP_RETURN_IF_ERROR(rocks->With("read manifests", [&](const RocksHandle::Db& db) {
    mu.AssertHeld();
    rocksdb::Status s =
        ForEach(db, kBasePrefix, [&](absl::string_view rest, absl::string_view value) {
          mu.AssertHeld();
          auto manifest = BaseManifest::FromText(value);
          const auto key = BaseKey::Parse(rest);
          if (manifest.ok() && key.ok() && manifest->key == *key) {
            bases[*key].manifest = *std::move(manifest);
            return;
          }
          SOUP_LOG(kWarn, "cache")
              << "base " << rest
              << " is removed from the shard store: " << manifest.status().ToString();
          dead.push_back(std::string(rest));
          if (key.ok()) leftovers.insert(*key);
        });
    if (!s.ok()) return s;
    s = ForEach(db, kUsedPrefix, [&](absl::string_view rest, absl::string_view value) {
      mu.AssertHeld();
      const auto key = BaseKey::Parse(rest);
      int64_t used = 0;
      if (!key.ok() || !absl::SimpleAtoi(value, &used)) return;
      const auto it = bases.find(*key);
      if (it != bases.end()) it->second.last_used_unix_ms = used;
    });
    if (!s.ok()) return s;
    s = ForEach(db, kBadPrefix, [&](absl::string_view rest, absl::string_view) {
      mu.AssertHeld();
      const size_t slash = rest.rfind('/');
      int64_t slab = 0;
      const auto key = BaseKey::Parse(rest.substr(0, slash));
      if (!key.ok() || !absl::SimpleAtoi(rest.substr(slash + 1), &slab)) return;
      const auto it = bases.find(*key);
      if (it != bases.end()) it->second.bad_slabs.insert(slab);
    });
    if (!s.ok()) return s;
    return ForEach(db, kLeftoverPrefix, [&](absl::string_view rest, absl::string_view) {
      mu.AssertHeld();
      const auto key = BaseKey::Parse(rest);
      if (key.ok()) leftovers.insert(*key);
    });
  }));
  if (dead.empty()) return absl::OkStatus();
  return rocks->With("remove damaged manifests", [&](const RocksHandle::Db& db) {
    rocksdb::WriteBatch batch;
    for (const std::string& rest : dead) {
      batch.Delete(db.meta, absl::StrCat(kBasePrefix, rest));
      batch.Put(db.meta, absl::StrCat(kLeftoverPrefix, rest), "");
    }
    return db.db->Write(Synced(), &batch);
  });
}

// Look-up -----------------------------------------------------------------------------------------

void ShardStore::Rep::Touch(const BaseKey& key) {
  const int64_t now_ms = options.clock->UnixNs() / 1'000'000;
  {
    absl::MutexLock lock(&mu);
    const auto it = bases.find(key);
    if (it == bases.end()) return;
    it->second.last_used_unix_ms = now_ms;
  }
  // Only an order of eviction: not synced, and not worth failing for.
  if (!rocks->WriteState().ok()) return;
  rocks
      ->With("note the last use",
             [&](const RocksHandle::Db& db) {
               return db.db->Put(rocksdb::WriteOptions(), db.meta,
                                 absl::StrCat(kUsedPrefix, key.ToString()), absl::StrCat(now_ms));
             })
      .IgnoreError();
}

absl::StatusOr<ShardStore::Found> ShardStore::Find(const BaseKey& key) {
  Found found;
  {
    absl::MutexLock lock(&rep_->mu);
    const auto it = rep_->bases.find(key);
    if (it == rep_->bases.end()) {
      ++rep_->counters.misses;
      return absl::NotFoundError(
          absl::StrCat("base ", key.ToString(), " is not in the shard store"));
    }
    ++rep_->counters.hits;
    ++it->second.pins;
    found.manifest = it->second.manifest;
    found.pin = Pin(this, key);
  }
  rep_->Touch(key);
  return found;
}

std::vector<StoredBase> ShardStore::List() {
  absl::MutexLock lock(&rep_->mu);
  std::vector<StoredBase> out;
  for (const auto& [key, entry] : rep_->bases) {
    StoredBase base;
    base.manifest = entry.manifest;
    base.last_used_unix_ms = entry.last_used_unix_ms;
    base.in_use = entry.pins > 0;
    base.bad_slabs.assign(entry.bad_slabs.begin(), entry.bad_slabs.end());
    out.push_back(std::move(base));
  }
  return out;
}

CacheCounters ShardStore::counters() const {
  absl::MutexLock lock(&rep_->mu);
  return rep_->counters;
}

int64_t ShardStore::Rep::TotalBytes() {
  int64_t total = 0;
  for (const auto& [key, entry] : bases) total += entry.manifest.total_bytes();
  return total;
}

int64_t ShardStore::total_bytes() {
  absl::MutexLock lock(&rep_->mu);
  return rep_->TotalBytes();
}

int64_t ShardStore::cap_bytes() const { return rep_->options.cap_bytes; }

// Chunks ------------------------------------------------------------------------------------------

absl::Status ShardStore::ReadChunk(const BaseManifest& manifest, int64_t slab, int64_t chunk,
                                   absl::Span<uint8_t> dst) {
  std::string wrong;
  const absl::Status read = rep_->rocks->With("read a chunk", [&](const RocksHandle::Db& db) {
    rocksdb::PinnableSlice value;
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    const rocksdb::Status s =
        db.db->Get(options, db.shards, ChunkKey(manifest.key, slab, chunk), &value);
    if (!s.ok()) return s;
    uint64_t checksum;
    if (value.size() != dst.size() + sizeof checksum) {
      wrong = absl::StrCat("it has ", value.size(), " bytes");
      return s;
    }
    std::memcpy(dst.data(), value.data(), dst.size());
    std::memcpy(&checksum, value.data() + dst.size(), sizeof checksum);
    if (ChunkChecksum(slab, chunk, dst) != checksum) wrong = "its checksum does not match";
    return s;
  });
  if (read.ok() && wrong.empty()) return absl::OkStatus();
  // A blob file that is gone or cut off reads as an I/O error: damage as well, unless the store as
  // a whole is out of order.
  const bool damage = read.ok() || absl::IsDataLoss(read) || absl::IsNotFound(read);
  if (!damage && !rep_->rocks->WriteState().ok()) return read;
  if (wrong.empty()) wrong = std::string(read.message());
  {
    absl::MutexLock lock(&rep_->mu);
    const auto it = rep_->bases.find(manifest.key);
    if (it == rep_->bases.end()) {
      return absl::NotFoundError(
          absl::StrCat("base ", manifest.key.ToString(), " has been evicted from the shard store"));
    }
    ++rep_->counters.corruptions;
    it->second.bad_slabs.insert(slab);
  }
  rep_->rocks
      ->With("quarantine a slab",
             [&](const RocksHandle::Db& db) {
               return db.db->Put(Synced(), db.meta, BadKey(manifest.key, slab), "");
             })
      .IgnoreError();  // found again at the next read
  SOUP_LOG(kError, "cache") << "base " << manifest.key.ToString() << " slab " << slab << " chunk "
                            << chunk << " is damaged: " << wrong;
  return absl::DataLossError(absl::StrCat("base ", manifest.key.ToString(), ": slab ", slab,
                                          " chunk ", chunk,
                                          " is damaged in the shard store: ", wrong));
}

absl::Status ShardStore::Repair(const BaseManifest& manifest, int64_t slab_index,
                                absl::Span<const uint8_t> slab) {
  const SlabRecord& record = manifest.slabs[slab_index];
  if (static_cast<int64_t>(slab.size()) != record.bytes || SlabChecksum(slab) != record.xxh3) {
    return absl::FailedPreconditionError(
        absl::StrCat("slab ", slab_index, " of base ", manifest.key.ToString(),
                     " cannot be rebuilt: its source gives other bytes than were imported"));
  }
  SOUP_RETURN_IF_ERROR(EnsureWritable());
  SOUP_RETURN_IF_ERROR(PutChunks(manifest, slab_index, 0, slab));
  SOUP_RETURN_IF_ERROR(rep_->Flush(record.bytes));
  SOUP_RETURN_IF_ERROR(rep_->rocks->With("end a quarantine", [&](const RocksHandle::Db& db) {
    return db.db->Delete(Synced(), db.meta, BadKey(manifest.key, slab_index));
  }));
  absl::MutexLock lock(&rep_->mu);
  const auto it = rep_->bases.find(manifest.key);
  if (it != rep_->bases.end()) it->second.bad_slabs.erase(slab_index);
  return absl::OkStatus();
}

absl::Status ShardStore::PutChunks(const BaseManifest& manifest, int64_t slab_index,
                                   int64_t first_chunk, absl::Span<const uint8_t> bytes) {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  const int64_t size = static_cast<int64_t>(bytes.size());
  for (int64_t at = 0, chunk = first_chunk; at < size; at += manifest.chunk_bytes, ++chunk) {
    const auto data =
        bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(manifest.chunk_bytes));
    const uint64_t checksum = ChunkChecksum(slab_index, chunk, data);
    const std::string key = ChunkKey(manifest.key, slab_index, chunk);
    const rocksdb::Slice key_parts[] = {key};
    const rocksdb::Slice value_parts[] = {
        {reinterpret_cast<const char*>(data.data()), data.size()},
        {reinterpret_cast<const char*>(&checksum), sizeof checksum}};
    SOUP_RETURN_IF_ERROR(rep_->rocks->With(
        "write a chunk",
        [&](const RocksHandle::Db& db) {
          rocksdb::WriteBatch batch;
          const rocksdb::Status s = batch.Put(db.shards, rocksdb::SliceParts(key_parts, 1),
                                              rocksdb::SliceParts(value_parts, 2));
          return s.ok() ? db.db->Write(options, &batch) : s;
        },
        static_cast<int64_t>(data.size())));
  }
  return absl::OkStatus();
}

absl::Status ShardStore::Rep::Flush(int64_t bytes) {
  return rocks->With(
      "flush",
      [](const RocksHandle::Db& db) {
        rocksdb::FlushOptions options;
        options.wait = true;
        options.allow_write_stall = true;
        return db.db->Flush(options, db.shards);
      },
      bytes);
}

// Health and digests ------------------------------------------------------------------------------

absl::Status ShardStore::EnsureWritable() {
  SOUP_RETURN_IF_ERROR(rep_->rocks->EnsureWritable());
  return rep_->LoadOnce();
}

StorageHealth ShardStore::Health() {
  const absl::Status status = EnsureWritable();
  StorageHealth health;
  health.healthy = status.ok();
  if (!status.ok()) {
    health.message = absl::StrCat(status.message(), " (bases on disk stay readable; imports wait)");
  }
  return health;
}

std::optional<std::string> ShardStore::Recall(const engine::FileStamp& stamp) {
  std::string digest;
  const absl::Status status = rep_->rocks->With("recall a digest", [&](const RocksHandle::Db& db) {
    return db.db->Get(rocksdb::ReadOptions(), db.meta, DigestKey(stamp), &digest);
  });
  if (!status.ok() || digest.size() != kFingerprintChars) return std::nullopt;
  return digest;
}

void ShardStore::Remember(const engine::FileStamp& stamp, const std::string& digest) {
  if (!rep_->rocks->WriteState().ok()) return;
  rep_->rocks
      ->With("remember a digest",
             [&](const RocksHandle::Db& db) {
               return db.db->Put(rocksdb::WriteOptions(), db.meta, DigestKey(stamp), digest);
             })
      .IgnoreError();
}

}  // namespace soup::cache
