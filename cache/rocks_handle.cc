#include "cache/rocks_handle.h"

#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_partitioner.h>
#include <rocksdb/table.h>

#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache/disk_space.h"
#include "cache/shard_keys.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

constexpr char kShardsFamily[] = "shards";
constexpr char kProbeKey[] = "probe";
// Opening writes a few small files. With less room it fails, leaves us closed, and in builds of
// RocksDB with assertions (Debian's) may even abort: so room is looked for first.
constexpr int64_t kRoomToOpenBytes = 512 << 10;

rocksdb::ColumnFamilyOptions ShardFamilyOptions() {
  rocksdb::ColumnFamilyOptions options;
  options.enable_blob_files = true;
  options.min_blob_size = 4096;
  options.blob_file_size = uint64_t{256} << 20;
  options.blob_compression_type = rocksdb::kNoCompression;
  options.compression = rocksdb::kNoCompression;
  // Garbage is collected when a base is evicted, by CompactRange; never in the background.
  options.enable_blob_garbage_collection = false;
  // Flushes are asked for by the writer, before this fills.
  options.write_buffer_size = size_t{256} << 20;
  // No table file holds keys of two bases, so that compacting one never moves another's blobs.
  options.sst_partitioner_factory = rocksdb::NewSstPartitionerFixedPrefixFactory(kShardPrefixBytes);
  return options;
}

rocksdb::DBOptions DbOptions() {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.max_open_files = 512;
  options.max_background_jobs = 2;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.allow_fallocate = false;  // the importer reserves; small disks are not to be pre-filled
  options.avoid_flush_during_shutdown = true;
  options.max_total_wal_size = 1 << 20;
  return options;
}

bool IsFullDisk(const rocksdb::Status& status) {
  return status.IsNoSpace() || absl::StrContains(status.ToString(), "Disk quota exceeded") ||
         absl::StrContains(status.ToString(), "No space left") ||
         absl::StrContains(status.ToString(), "File too large");
}

}  // namespace

absl::Status FromRocks(const rocksdb::Status& status, const std::string& operation,
                       const std::string& folder, int64_t needed_bytes) {
  if (status.ok()) return absl::OkStatus();
  if (IsFullDisk(status)) {
    return engine::ErrnoStatus(ENOSPC, absl::StrCat("shard store: ", operation, " in"), folder,
                               needed_bytes);
  }
  const std::string message =
      absl::StrCat("shard store ", folder, ": ", operation, ": ", status.ToString());
  if (status.IsNotFound()) return absl::NotFoundError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (absl::StrContains(message, "lock")) {
    return absl::FailedPreconditionError(
        absl::StrCat(message, " (is another soupd running on this cache folder?)"));
  }
  return absl::UnavailableError(message);
}

// RocksDB's warnings and errors into our log. Its own writes a file in the folder, and a full disk
// then ends the process in builds with assertions (Debian's): the logger itself hits one.
class RocksHandle::RocksLogger final : public rocksdb::Logger {
 public:
  RocksLogger() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char line[1024];
    vsnprintf(line, sizeof line, format, arguments);
    SOUP_LOG(kWarn, "rocksdb") << line;
  }
};

// Remembers the error that has made the database read-only.
class RocksHandle::Listener final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) override {
    absl::MutexLock lock(&mu_);
    error_ = *error;
  }
  void OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) override {
    absl::MutexLock lock(&mu_);
    if (info.new_bg_error.ok()) error_ = rocksdb::Status::OK();
  }
  void Clear() {
    absl::MutexLock lock(&mu_);
    error_ = rocksdb::Status::OK();
  }
  rocksdb::Status error() {
    absl::MutexLock lock(&mu_);
    return error_;
  }

 private:
  absl::Mutex mu_;
  rocksdb::Status error_ ABSL_GUARDED_BY(mu_);
};

RocksHandle::RocksHandle(std::string folder)
    : folder_(std::move(folder)), listener_(std::make_shared<Listener>()) {}

absl::StatusOr<std::unique_ptr<RocksHandle>> RocksHandle::Open(const std::string& folder) {
  SOUP_RETURN_IF_ERROR(engine::RealFileSystem().CreateDirectories(folder));
  std::unique_ptr<RocksHandle> handle(new RocksHandle(folder));
  absl::MutexLock lock(&handle->mu_);
  const absl::Status opened = handle->OpenLocked();
  if (absl::IsResourceExhausted(opened)) {
    SOUP_LOG(kWarn, "cache") << opened.message() << "; it is opened once there is room";
    return handle;
  }
  if (absl::IsDataLoss(opened) || absl::StrContains(opened.message(), "No such file")) {
    return absl::DataLossError(
        absl::StrCat(opened.message(),
                     ". Nothing but copies of bases lies there: remove the folder, "
                     "and they are imported again when jobs need them"));
  }
  if (!opened.ok()) return opened;
  return handle;
}

RocksHandle::~RocksHandle() {
  absl::MutexLock lock(&mu_);
  CloseLocked();
}

absl::Status RocksHandle::Closed() const {
  return absl::UnavailableError(absl::StrCat("shard store ", folder_,
                                             " is closed after a full disk; it reopens when there "
                                             "is room"));
}

absl::Status RocksHandle::CheckRoomToOpen() const {
  const auto free_bytes = engine::RealFileSystem().FreeBytes(folder_);
  if (!free_bytes.ok() || *free_bytes >= kRoomToOpenBytes) return absl::OkStatus();
  return engine::ErrnoStatus(ENOSPC, "shard store: open", folder_, kRoomToOpenBytes);
}

absl::Status RocksHandle::OpenLocked() {
  SOUP_RETURN_IF_ERROR(CheckRoomToOpen());
  rocksdb::DBOptions options = DbOptions();
  options.listeners.push_back(listener_);
  options.info_log = std::make_shared<RocksLogger>();
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions()},
      {kShardsFamily, ShardFamilyOptions()}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, folder_, families, &handles, &db);
  SOUP_RETURN_IF_ERROR(FromRocks(status, "open", folder_, kRoomToOpenBytes));
  db_.db.reset(db);
  db_.meta = handles[0];
  db_.shards = handles[1];
  listener_->Clear();
  return absl::OkStatus();
}

void RocksHandle::CloseLocked() {
  if (db_.db == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* family : {db_.meta, db_.shards}) {
    db_.db->DestroyColumnFamilyHandle(family).PermitUncheckedError();
  }
  db_.db->Close().PermitUncheckedError();
  db_ = Db();
}

absl::Status RocksHandle::Probe(const Db& db) {
  rocksdb::WriteOptions synced;
  synced.sync = true;
  return FromRocks(db.db->Put(synced, db.meta, kProbeKey, ""), "write", folder_);
}

absl::Status RocksHandle::WriteState() {
  absl::ReaderMutexLock lock(&mu_);
  if (db_.db == nullptr) return Closed();
  return FromRocks(listener_->error(), "write", folder_);
}

absl::Status RocksHandle::EnsureWritable() {
  absl::MutexLock recovery(&recovery_mu_);
  if (WriteState().ok()) return absl::OkStatus();
  SOUP_RETURN_IF_ERROR(CheckRoomToOpen());  // without it every try fails, and costs a flush
  {
    absl::ReaderMutexLock lock(&mu_);
    if (db_.db != nullptr && db_.db->Resume().ok() && Probe(db_).ok()) {
      listener_->Clear();
      SOUP_LOG(kInfo, "cache") << "shard store " << folder_ << " is writable again";
      return absl::OkStatus();
    }
  }
  absl::MutexLock lock(&mu_);
  CloseLocked();
  SOUP_RETURN_IF_ERROR(OpenLocked());
  SOUP_RETURN_IF_ERROR(Probe(db_));
  SOUP_LOG(kInfo, "cache") << "shard store " << folder_ << " was reopened and is writable again";
  return absl::OkStatus();
}

}  // namespace soup::cache
