// Uploaded files: <files>/<sha256> once whole, <files>/partial/<user>-<sha256>… on the way. A user
// owns what that user has uploaded whole; that another user has the same file shows nowhere: not in
// Stat, not in the bytes that must be sent, not in errors.
//
// A partial file is kept when the client goes away and resumed from its size; what is older than a
// day is removed by CollectOld. Its bytes are hashed again when it is resumed, so only the right
// file is ever given its final name. Memory: one chunk a stream.
//
// Threads: any; one UploadSession is used by one thread at a time.
#ifndef SOUP_DAEMON_CONTROL_UPLOADS_H_
#define SOUP_DAEMON_CONTROL_UPLOADS_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/job_store.h"
#include "daemon/control/sha256.h"

namespace soup::daemon {

constexpr int64_t kMaxChunkBytes = 1 << 20;

class Uploads;

// One stream. Dies with the partial file kept (unless it was refused or finished).
class UploadSession {
 public:
  ~UploadSession();
  UploadSession(const UploadSession&) = delete;
  UploadSession& operator=(const UploadSession&) = delete;

  // Appends at `offset`, which must be where the last chunk ended. InvalidArgument (too large,
  // beyond the size), Aborted (another offset), ResourceExhausted (disk).
  absl::Status Write(int64_t offset, absl::string_view data);
  // All bytes are there: checks the hash, syncs, gives the file its name and `user` the ownership.
  // InvalidArgument when the hash differs (the bytes are dropped), Aborted when bytes are missing.
  absl::Status Finish();

 private:
  friend class Uploads;
  UploadSession(Uploads* uploads, std::string user, std::string sha256, int64_t size_bytes);
  void Drop();  // removes the partial file

  Uploads* const uploads_;
  const std::string user_;
  const std::string sha256_;
  const int64_t size_bytes_;
  std::string path_;    // of the partial file
  bool extra_ = false;  // beside another session of the same file
  bool finished_ = false;
  int fd_ = -1;
  int64_t offset_ = 0;
  Sha256 hash_;
};

class Uploads {
 public:
  // Makes the folders. `store` outlives this.
  static absl::StatusOr<std::unique_ptr<Uploads>> Open(const std::string& files_dir,
                                                       int64_t max_bytes, JobStore* store);

  struct Known {
    bool complete = false;
    int64_t offset = 0;  // where the caller may go on
  };
  absl::StatusOr<Known> Stat(const std::string& user, const std::string& sha256,
                             int64_t size_bytes);
  // offset 0 begins anew; another must be the size of the caller's partial file (Aborted: ask Stat
  // again).
  absl::StatusOr<std::unique_ptr<UploadSession>> Begin(const std::string& user,
                                                       const std::string& sha256,
                                                       int64_t size_bytes, int64_t offset);
  // Whether `user` may use the file in a job: owned, and there; it counts as used now. NotFound
  // with the remedy.
  absl::Status CheckUsable(const std::string& user, const soup::v1::FileRef& file,
                           absl::string_view field) const;
  // Removes partial files that nobody has touched for `age_seconds` and nobody writes.
  void CollectOld(int64_t now_unix_ms, int64_t age_seconds);
  // Removes whole files that no job which has not ended needs and that nobody has uploaded or
  // submitted for `age_seconds`. Whoever needs one again uploads it again.
  void CollectUnused(int64_t now_unix_ms, int64_t age_seconds);

 private:
  friend class UploadSession;
  Uploads(std::string files_dir, int64_t max_bytes, JobStore* store);
  std::string FinalPath(const std::string& sha256) const;
  std::string PartialPath(const std::string& user, const std::string& sha256) const;
  absl::Status CheckArguments(const std::string& sha256, int64_t size_bytes) const;
  bool Claim(const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_);
  void Unclaim(const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string files_dir_;
  const int64_t max_bytes_;
  JobStore* const store_;
  absl::Mutex mutex_;
  std::set<std::string> in_use_ ABSL_GUARDED_BY(mutex_);  // partial paths with a session
  int64_t next_extra_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_UPLOADS_H_
