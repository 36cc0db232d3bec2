// The steps of each job: an append-only file jobs/<id>/steps.bin of fixed-size records (header of
// 16 bytes, then 160 bytes a step with an XXH3-64 checksum at the end), so that step n lies at 16 +
// 160*(n-1) and a Watch can start anywhere. A record whose checksum is wrong is told as damage, a
// torn tail after a crash is cut when the log is opened.
//
// A step is appended after its mirror commit, and a resumed job's log is cut back to the mirror's
// step, so no step is ever told twice with two values.
//
// Threads: any; one mutex a job. Appends are one pwrite without fsync: what the mirror says after a
// power cut decides, and the log is cut or has a hole (which Read skips) there.
//
// Errors: NotFound (no such job or no steps file yet is an empty log, not an error),
// InvalidArgument (a step that is not after the last one), DataLoss (damaged record),
// ResourceExhausted (disk full: the step is kept in memory, is read like the others and written
// with the next append or Flush; at most 10 000 steps wait so).
#ifndef SOUP_DAEMON_CONTROL_STEP_LOG_H_
#define SOUP_DAEMON_CONTROL_STEP_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "soup/v1/job.pb.h"

namespace soup::daemon {

struct StepSummary {
  int64_t steps_done = 0;  // number of the last step; 0: none
  double last_loss = 0;    // NaN when no step was done
};

class StepLogs {
 public:
  // Logs lie in <jobs_dir>/<id>/steps.bin; the folder is made on the first append.
  explicit StepLogs(std::string jobs_dir);
  ~StepLogs();
  StepLogs(const StepLogs&) = delete;
  StepLogs& operator=(const StepLogs&) = delete;

  absl::Status Append(const std::string& job_id, const soup::v1::StepRecord& step);
  // Removes every step after `step` (0: all). Call it when a job is opened, with the worker's
  // steps_done.
  absl::Status CutAfter(const std::string& job_id, int64_t step);
  // Steps after `after_step`, in order, at most `limit`.
  absl::StatusOr<std::vector<soup::v1::StepRecord>> Read(const std::string& job_id,
                                                         int64_t after_step, int limit);
  absl::StatusOr<StepSummary> Summary(const std::string& job_id);
  // Writes what a full disk held back.
  absl::Status Flush(const std::string& job_id);
  // Closes the job's descriptor and forgets what is in memory (it has ended). Reads open it again.
  void Release(const std::string& job_id);

 private:
  struct Log;
  std::string PathOf(const std::string& job_id) const;
  std::shared_ptr<Log> FindOrMake(const std::string& job_id) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Log> Find(const std::string& job_id) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string jobs_dir_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Log>> logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_STEP_LOG_H_
