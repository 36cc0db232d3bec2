#include "daemon/control/store_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"

namespace soup::daemon {
namespace {

constexpr size_t kMaxBatch = 64;

}  // namespace

StorageReserve::StorageReserve(std::string path, int64_t bytes)
    : path_(std::move(path)), bytes_(bytes) {
  Fill();
}

bool StorageReserve::GiveUp() {
  if (!held_) return false;
  held_ = false;
  return truncate(path_.c_str(), 0) == 0;
}

void StorageReserve::Fill() {
  if (held_ || bytes_ <= 0) return;
  const absl::StatusOr<int64_t> free =
      engine::RealFileSystem().FreeBytes(path_.substr(0, path_.rfind('/')));
  if (!free.ok() || *free < 4 * bytes_) return;
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  held_ = posix_fallocate(fd, 0, bytes_) == 0;
  if (!held_ && ftruncate(fd, 0) != 0) {
    SOUP_LOG(kWarn, "store") << "cannot cut " << path_;
  }
  close(fd);
}

StoreWriter::StoreWriter(const JobStoreOptions& options, std::unique_ptr<SqliteDb> db,
                         PublishFn publish)
    : max_pending_(options.max_pending_writes),
      db_(std::move(db)),
      reserve_(options.path + ".reserve", options.reserve_bytes),
      publish_(std::move(publish)),
      thread_([this] { Loop(); }) {}

StoreWriter::~StoreWriter() {
  {
    absl::MutexLock lock(&queue_mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status StoreWriter::StorageStatus() const {
  absl::MutexLock lock(&status_mutex_);
  return storage_status_;
}

absl::Status StoreWriter::Do(WriteFn run) {
  SOUP_CHECK(std::this_thread::get_id() != thread_.get_id());
  Write write;
  write.run = std::move(run);
  absl::MutexLock lock(&queue_mutex_);
  if (stopping_) return absl::UnavailableError("the job store is closed");
  if (queue_.size() >= max_pending_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job store has ", queue_.size(), " writes waiting, the most it takes; try again"));
  }
  queue_.push_back(&write);
  queue_mutex_.Await(absl::Condition(&write.done));
  return write.result;
}

void StoreWriter::Loop() {
  while (true) {
    std::vector<Write*> batch;
    {
      absl::MutexLock lock(&queue_mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_mutex_) {
        return stopping_ || !queue_.empty();
      };
      queue_mutex_.Await(absl::Condition(&ready));
      if (queue_.empty()) return;
      while (!queue_.empty() && batch.size() < kMaxBatch) {
        batch.push_back(queue_.front());
        queue_.pop_front();
      }
    }
    RunBatch(batch);
    absl::MutexLock lock(&queue_mutex_);
    for (Write* write : batch) write->done = true;
  }
}

void StoreWriter::RunBatch(const std::vector<Write*>& batch) {
  absl::Status status = TryBatch(batch);
  if (absl::IsResourceExhausted(status) && reserve_.GiveUp()) {
    SOUP_LOG(kWarn, "store") << status.message() << "; using the reserve";
    status = TryBatch(batch);
  }
  {
    absl::MutexLock lock(&status_mutex_);
    storage_status_ = status;
  }
  if (!status.ok()) {
    SOUP_LOG(kError, "store") << status.message();
    for (Write* write : batch) write->result = status;
    return;
  }
  for (const Write* write : batch) {
    for (const Told& told : write->told) publish_(told);
  }
  reserve_.Fill();
}

// OK: committed, each write has its own result. Otherwise nothing was written.
absl::Status StoreWriter::TryBatch(const std::vector<Write*>& batch) {
  SqliteDb& db = *db_;
  const auto abandon = [&](const absl::Status& why) {
    if (db.InTransaction()) (void)db.Exec("ROLLBACK");
    db.TakeStorageFailed();
    return why;
  };
  db.TakeStorageFailed();
  absl::Status status = db.Exec("BEGIN IMMEDIATE");
  if (!status.ok()) return abandon(status);
  for (Write* write : batch) {
    write->told.clear();
    status = db.Exec("SAVEPOINT one");
    if (!status.ok()) return abandon(status);
    write->result = write->run(db, &write->told);
    if (db.TakeStorageFailed()) return abandon(write->result);
    if (!write->result.ok()) {
      write->told.clear();
      status = db.Exec("ROLLBACK TO one");
      if (!status.ok()) return abandon(status);
    }
    status = db.Exec("RELEASE one");
    if (!status.ok()) return abandon(status);
  }
  status = db.Exec("COMMIT");
  return status.ok() ? status : abandon(status);
}

}  // namespace soup::daemon
