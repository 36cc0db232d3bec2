// RocksHandle: an open RocksDB with the two column families of the shard store, and its recovery
// from a full disk.
//
// After a failed write RocksDB refuses all further ones, though it goes on reading.
// EnsureWritable tries Resume, and when that is not enough (what waits in memory does not fit
// either) closes and reopens: what was written without the WAL and never flushed is dropped, which
// is the unfinished import's own. Thread-safe.
#ifndef SOUP_CACHE_ROCKS_HANDLE_H_
#define SOUP_CACHE_ROCKS_HANDLE_H_

#include <rocksdb/db.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace soup::cache {

// Names the folder; a full disk becomes ResourceExhausted with the bytes needed and free.
absl::Status FromRocks(const rocksdb::Status& status, const std::string& operation,
                       const std::string& folder, int64_t needed_bytes = 0);

class RocksHandle {
 public:
  struct Db {
    std::unique_ptr<rocksdb::DB> db;
    rocksdb::ColumnFamilyHandle* meta = nullptr;    // manifests, marks, digests: with the WAL
    rocksdb::ColumnFamilyHandle* shards = nullptr;  // chunks, in blob files: without
  };

  // With a full disk the database stays closed (With: Unavailable) until EnsureWritable finds room.
  static absl::StatusOr<std::unique_ptr<RocksHandle>> Open(const std::string& folder);
  ~RocksHandle();

  // f(const Db&) -> rocksdb::Status, with the database held open. needed_bytes: for the message.
  template <typename F>
  absl::Status With(const std::string& operation, F f, int64_t needed_bytes = 0) {
    absl::ReaderMutexLock lock(&mu_);
    if (db_.db == nullptr) return Closed();
    return FromRocks(f(db_), operation, folder_, needed_bytes);
  }

  // OK at once when nothing is wrong. Otherwise tries to recover.
  absl::Status EnsureWritable();
  bool is_open() {
    absl::ReaderMutexLock lock(&mu_);
    return db_.db != nullptr;
  }
  // The error that makes the store read-only; OK when it is writable. Tries nothing.
  absl::Status WriteState();
  const std::string& folder() const { return folder_; }

 private:
  class Listener;
  class RocksLogger;
  explicit RocksHandle(std::string folder);
  absl::Status Closed() const;
  absl::Status CheckRoomToOpen() const;
  absl::Status OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Probe(const Db& db);

  const std::string folder_;
  std::shared_ptr<Listener> listener_;
  absl::Mutex recovery_mu_;  // one recovery at a time; taken before mu_
  absl::Mutex mu_;
  Db db_ ABSL_GUARDED_BY(mu_);
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_ROCKS_HANDLE_H_
