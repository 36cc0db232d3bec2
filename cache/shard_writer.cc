// Writing a base: reserve, chunks without the WAL, flush, and the manifest last.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cache/disk_space.h"
#include "cache/shard_keys.h"
#include "cache/shard_store.h"
#include "cache/shard_store_rep.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;
// Chunks are kept in memory until this much has come together.
constexpr int64_t kFlushBytes = int64_t{64} << 20;
// Beyond the chunks themselves: keys, table files, the log of the meta family.
constexpr int64_t kOverheadBytes = int64_t{256} << 10;
constexpr absl::Duration kCancelPoll = absl::Milliseconds(100);

int64_t WithOverhead(int64_t bytes) { return bytes + bytes / 1024 + kOverheadBytes; }

}  // namespace

class ShardStore::WriterImpl final : public ShardStore::Writer {
 public:
  WriterImpl(ShardStore* store, BaseManifest manifest, int64_t total_bytes, TaskControl control)
      : store_(store),
        rep_(*store->rep_),
        control_(std::move(control)),
        manifest_(std::move(manifest)),
        to_come_(total_bytes) {}

  ~WriterImpl() override {
    if (committed_) {
      Release(/*leftover=*/false);
      return;
    }
    reservation_.ShrinkTo(0);
    absl::Status status;
    // Twice: the first removal may be what shows that the store needs recovery.
    for (int attempt = 0; marked_ && attempt < 2; ++attempt) {
      status = rep_.rocks->EnsureWritable();
      if (status.ok()) status = rep_.RemoveChunks(manifest_.key, /*expected_bytes=*/0).status();
      if (status.ok()) break;
    }
    if (!status.ok()) {
      SOUP_LOG(kWarn, "cache") << "the unfinished import of base " << manifest_.key.ToString()
                               << " is removed later: " << status.ToString();
    }
    Release(/*leftover=*/!status.ok());
  }

  absl::Status Start() {
    SOUP_RETURN_IF_ERROR(rep_.rocks->EnsureWritable());
    SOUP_RETURN_IF_ERROR(rep_.RemoveLeftovers());
    SOUP_RETURN_IF_ERROR(rep_.MakeRoom(to_come_));
    SOUP_ASSIGN_OR_RETURN(reservation_,
                          SpaceReservation::Reserve(rep_.options.folder, WithOverhead(to_come_)));
    // The mark needs a little of the room that was just taken.
    reservation_.ShrinkTo(WithOverhead(to_come_) - kOverheadBytes / 2);
    SOUP_RETURN_IF_ERROR(rep_.rocks->With("begin an import", [&](const RocksHandle::Db& db) {
      rocksdb::WriteOptions synced;
      synced.sync = true;
      return db.db->Put(synced, db.meta, absl::StrCat(kLeftoverPrefix, manifest_.key.ToString()),
                        "");
    }));
    marked_ = true;
    return absl::OkStatus();
  }

  absl::Status Append(absl::Span<const uint8_t> slab) override {
    const int64_t index = static_cast<int64_t>(manifest_.slabs.size());
    const int64_t bytes = static_cast<int64_t>(slab.size());
    for (int64_t at = 0; at < bytes; at += kFlushBytes) {
      SOUP_RETURN_IF_ERROR(control_.CheckCancelled());
      const int64_t n = std::min(kFlushBytes, bytes - at);
      SOUP_RETURN_IF_ERROR(
          store_->PutChunks(manifest_, index, at / kChunkBytes,
                            slab.subspan(static_cast<size_t>(at), static_cast<size_t>(n))));
      in_memory_ += n;
      if (in_memory_ >= kFlushBytes) SOUP_RETURN_IF_ERROR(Flush());
    }
    manifest_.slabs.push_back({bytes, SlabChecksum(slab)});
    return absl::OkStatus();
  }

  absl::StatusOr<Found> Commit() override {
    SOUP_RETURN_IF_ERROR(Flush());
    reservation_.ShrinkTo(0);
    manifest_.created_unix_ms = rep_.options.clock->UnixNs() / 1'000'000;
    const std::string name = manifest_.key.ToString();
    // One synced batch: the base is there and its mark is gone, or neither.
    SOUP_RETURN_IF_ERROR(rep_.rocks->With("commit a manifest", [&](const RocksHandle::Db& db) {
      rocksdb::WriteBatch batch;
      batch.Put(db.meta, absl::StrCat(kBasePrefix, name), manifest_.ToText());
      batch.Put(db.meta, absl::StrCat(kUsedPrefix, name), absl::StrCat(manifest_.created_unix_ms));
      batch.Delete(db.meta, absl::StrCat(kLeftoverPrefix, name));
      rocksdb::WriteOptions synced;
      synced.sync = true;
      return db.db->Write(synced, &batch);
    }));
    committed_ = true;
    absl::MutexLock lock(&rep_.mu);
    Rep::Entry& entry = rep_.bases[manifest_.key];
    entry.manifest = manifest_;
    entry.last_used_unix_ms = manifest_.created_unix_ms;
    entry.pins = 1;
    Found found;
    found.manifest = manifest_;
    found.pin = Pin(store_, manifest_.key);
    return found;
  }

 private:
  absl::Status Flush() {
    to_come_ -= in_memory_;
    reservation_.ShrinkTo(to_come_ > 0 ? WithOverhead(to_come_) - kOverheadBytes / 2 : 0);
    SOUP_RETURN_IF_ERROR(rep_.Flush(in_memory_));
    in_memory_ = 0;
    return absl::OkStatus();
  }

  void Release(bool leftover) {
    absl::MutexLock lock(&rep_.mu);
    if (leftover) rep_.leftovers.insert(manifest_.key);
    rep_.writing = false;
  }

  ShardStore* const store_;
  Rep& rep_;
  const TaskControl control_;
  BaseManifest manifest_;
  SpaceReservation reservation_;
  int64_t to_come_;        // bytes of slabs not yet flushed
  int64_t in_memory_ = 0;  // of these, handed to RocksDB
  bool marked_ = false;
  bool committed_ = false;
};

absl::StatusOr<std::unique_ptr<ShardStore::Writer>> ShardStore::Begin(const BaseManifest& draft,
                                                                      int64_t total_bytes,
                                                                      const TaskControl& control) {
  if (!rep_->rocks->is_open()) SOUP_RETURN_IF_ERROR(EnsureWritable());
  {
    absl::MutexLock lock(&rep_->mu);
    const auto free = [&] {
      rep_->mu.AssertReaderHeld();
      return !rep_->writing && rep_->busy.count(draft.key) == 0;
    };
    while (!rep_->mu.AwaitWithTimeout(absl::Condition(&free), kCancelPoll)) {
      SOUP_RETURN_IF_ERROR(control.CheckCancelled());
    }
    if (rep_->bases.count(draft.key) > 0) {
      return absl::AlreadyExistsError(
          absl::StrCat("base ", draft.key.ToString(), " is in the shard store already"));
    }
    rep_->writing = true;
  }
  BaseManifest manifest = draft;
  manifest.chunk_bytes = kChunkBytes;
  manifest.slabs.clear();
  auto writer = std::make_unique<WriterImpl>(this, std::move(manifest), total_bytes, control);
  SOUP_RETURN_IF_ERROR(writer->Start());
  return std::unique_ptr<Writer>(std::move(writer));
}

}  // namespace soup::cache
