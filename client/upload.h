// Sends a job's data files to soupd: hashed here, asked for by hash, sent in chunks from where an
// earlier attempt stopped, and accepted by soupd only when the whole has that hash.
//
// Errors: a local file that is missing, empty, no regular file or changes while it is sent is named
// with its place in the job file; soupd's refusals pass through; a connection that breaks is taken
// up again at soupd's offset a bounded number of times. InterruptedError after a signal: what has
// arrived stays for the next attempt. Used by one thread at a time.
#ifndef SOUP_CLIENT_UPLOAD_H_
#define SOUP_CLIENT_UPLOAD_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "client/api.h"
#include "client/job_file.h"

namespace soup::client {

class UploadObserver {
 public:
  virtual ~UploadObserver() = default;
  virtual void Hashing(const std::string& name, int64_t done, int64_t total) {}
  // `done` starts at what soupd had already.
  virtual void Sending(const std::string& name, int64_t done, int64_t total) {}
  // soupd has had the whole file from this user before: nothing was sent.
  virtual void AlreadyThere(const std::string& name, int64_t total) {}
  virtual void Sent(const std::string& name, int64_t total) {}
  virtual void Retrying(const std::string& name, const absl::Status& why) {}
};

// Before anything is sent: every local file of the job is there and readable. UsageError.
absl::Status CheckLocalFiles(const JobFile& job);

// Uploads every file of `job` and fills the spec's references with hashes and sizes.
absl::Status UploadFiles(Api* api, JobFile* job, UploadObserver* observer);

}  // namespace soup::client

#endif  // SOUP_CLIENT_UPLOAD_H_
