// The job store's one writer: a thread with the writing connection. Writes that wait are committed
// together, each in a savepoint of its own; when the disk is full, a reserve file is given up and
// the batch tried once more. Internal to job_store.cc.
//
// Threads: Do and StorageStatus from any but the writer's own; it returns when the write is on
// disk.
#ifndef SOUP_DAEMON_CONTROL_STORE_WRITER_H_
#define SOUP_DAEMON_CONTROL_STORE_WRITER_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/job_store.h"
#include "daemon/control/sqlite_db.h"

namespace soup::daemon {

// What a write tells once it is on disk.
struct Told {
  JobRecord record;
  soup::v1::JobEvent event;
  std::optional<JobState> from;  // nullopt: a new job
};

// A file whose blocks are given up when the disk is full, so that a last write finds room.
class StorageReserve {
 public:
  StorageReserve(std::string path, int64_t bytes);
  bool GiveUp();  // true when there was something to give
  void Fill();    // takes the blocks again when there is room for four times as many

 private:
  const std::string path_;
  const int64_t bytes_;
  bool held_ = false;
};

class StoreWriter {
 public:
  // Runs in a transaction, perhaps twice (after the reserve was given up): assigns its results
  // anew.
  using WriteFn = std::function<absl::Status(SqliteDb& db, std::vector<Told>* told)>;
  // After the commit, on the writer's thread, in commit order.
  using PublishFn = std::function<void(const Told& told)>;

  StoreWriter(const JobStoreOptions& options, std::unique_ptr<SqliteDb> db, PublishFn publish);
  ~StoreWriter();  // finishes what waits
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  absl::Status Do(WriteFn run);
  // OK, or why the last batch could not be written.
  absl::Status StorageStatus() const;

 private:
  struct Write {
    WriteFn run;
    std::vector<Told> told;
    absl::Status result;
    bool done = false;
  };

  void Loop();
  void RunBatch(const std::vector<Write*>& batch);
  absl::Status TryBatch(const std::vector<Write*>& batch);

  const size_t max_pending_;
  const std::unique_ptr<SqliteDb> db_;  // writer's thread only
  StorageReserve reserve_;              // likewise
  const PublishFn publish_;

  absl::Mutex queue_mutex_;
  std::deque<Write*> queue_ ABSL_GUARDED_BY(queue_mutex_);
  bool stopping_ ABSL_GUARDED_BY(queue_mutex_) = false;

  mutable absl::Mutex status_mutex_;
  absl::Status storage_status_ ABSL_GUARDED_BY(status_mutex_);

  std::thread thread_;  // last: it uses the rest
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_STORE_WRITER_H_
