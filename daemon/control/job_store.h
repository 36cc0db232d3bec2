// The job store: SQLite (WAL, synchronous=FULL) in <state-dir>/soupd.db. Jobs, attempts, state
// events (in the same transaction as the state they tell), users, files and request ids. Steps,
// logs and progress are not here (step_log.h, event_hub.h).
//
// Threads: any. Writes go to one writer thread and return when they are on disk: never call them on
// a gRPC thread. Reads use a connection of their own and see everything that a returned write
// wrote.
//
// Errors: NotFound (no such job), FailedPrecondition (the transition table says no; the message
// names job, state and trigger), AlreadyExists (another payload under a request id),
// InvalidArgument, ResourceExhausted (disk full or quota of the file system: names the path, the
// bytes free; nothing was written, nothing lost, call again when there is room: no restart is
// needed), DataLoss (the database is damaged), Unavailable (closed). A small reserve file is given
// up before a write fails for want of space, so that "PAUSED, STORAGE" itself can usually be
// recorded.
#ifndef SOUP_DAEMON_CONTROL_JOB_STORE_H_
#define SOUP_DAEMON_CONTROL_JOB_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/control/job_state.h"
#include "engine/base/clock.h"
#include "soup/v1/job.pb.h"
#include "soup/v1/soup.pb.h"

namespace soup::daemon {

// A job as the store knows it. Steps done and the last loss come from the step log.
struct JobRecord {
  std::string id;  // "j-" + 14 characters, sorts by creation
  soup::v1::JobSpec spec;
  std::string user;  // "uid:1000" over the unix socket, the token file's name over TCP
  JobState state = soup::v1::QUEUED;
  Reason reason = soup::v1::REASON_UNSPECIFIED;
  std::string message;
  int64_t created_unix_ms = 0;
  int64_t queued_unix_ms = 0;    // when it last entered QUEUED (fair order, queue wait)
  int64_t started_unix_ms = 0;   // first RUNNING; 0: not yet
  int64_t finished_unix_ms = 0;  // 0: not yet
  int64_t last_sequence = 0;
  int32_t attempts = 0;       // times it entered RUNNING
  int32_t device_losses = 0;  // Interrupted with WORKER_LOST or DEVICE_LOST while RUNNING, in a row
  // Time of earlier attempts (time limit). An attempt lasts from RUNNING until the job is no longer
  // RUNNING, PAUSING, CANCELLING or FINALIZING; one cut by a death of soupd (Interrupted without a
  // reason, or by USER_REQUEST) is not counted here, since nobody knows when it ended: see
  // JobUpdate::running_ms.
  int64_t running_ms = 0;
  int64_t attempt_started_unix_ms = 0;  // of the attempt under way; 0: none
  // Known once it is prepared; all of it is written by UpdateJob.
  std::string base_real_path;    // resolved at submit
  std::string base_fingerprint;  // hex
  std::string base_key;          // fingerprint/format
  std::string numeric_plan;  // NumericPlan::ToText(); frozen: a second, different value is refused
  soup::v1::DatasetReport dataset;
  int64_t steps_total = 0;
  int64_t planned_arena_bytes = 0;
  std::vector<std::string> warnings;
  // For the orchestrator's own use (e.g. the prepared dataset's checksum); opaque here.
  std::string orchestration;
};

// What PREPARING and running find out. Unset fields stay as they are.
struct JobUpdate {
  std::optional<std::string> base_fingerprint;
  std::optional<std::string> base_key;
  std::optional<std::string> numeric_plan;
  std::optional<soup::v1::DatasetReport> dataset;
  std::optional<int64_t> steps_total;
  std::optional<int64_t> planned_arena_bytes;
  std::optional<std::string> orchestration;
  std::optional<int32_t> device_losses;  // set to 0 after a step was done
  std::optional<int64_t> running_ms;     // after a restart of soupd, from the step log
  std::vector<std::string>
      add_warnings;  // appended; one that is there is not repeated; at most 100 are kept
};

struct JobFilter {
  std::optional<std::string> user;  // unset: all users
  std::vector<JobState> states;     // empty: all
  std::string name_prefix;
};

struct JobPage {
  std::vector<JobRecord> jobs;  // newest first
  std::string next_page_token;  // empty: no more
};

class JobStore {
 public:
  // Called after the commit, on the writer thread, in commit order. Must be quick and must not call
  // the store's writes.
  using Listener = std::function<void(const JobRecord& record, const soup::v1::JobEvent& event)>;

  virtual ~JobStore() = default;

  // ---- writes ----
  // A new job in QUEUED with event 1. The same user and request id again: the job made then when
  // the payload is equal (`created` false), else AlreadyExists. An empty request id is not
  // remembered. max_queued: refuses with ResourceExhausted when the user has as many jobs that have
  // not ended; 0: no limit.
  struct CreateResult {
    JobRecord job;
    bool created = false;
  };
  virtual absl::StatusOr<CreateResult> CreateJob(const std::string& user,
                                                 const std::string& request_id,
                                                 const soup::v1::JobSpec& spec,
                                                 const std::string& base_real_path,
                                                 int64_t max_queued) = 0;

  // The job that this user's request id made before with this very spec; nullopt: none did. Errors:
  // AlreadyExists (with another spec).
  virtual absl::StatusOr<std::optional<JobRecord>> FindSubmitted(
      const std::string& user, const std::string& request_id,
      const soup::v1::JobSpec& spec) const = 0;

  // Applies the table to the state in the database and appends a JobEvent with the next sequence,
  // in one transaction. `message` is one sentence for people. Returns the record as it is now.
  // Entering RUNNING opens an attempt; leaving it closes that attempt.
  // `only_from`: refuse (FailedPrecondition) unless the job is in one of these states; empty: any.
  virtual absl::StatusOr<JobRecord> Transition(const std::string& job_id, JobTrigger trigger,
                                               Reason reason, const std::string& message,
                                               const std::vector<JobState>& only_from = {}) = 0;

  virtual absl::Status UpdateJob(const std::string& job_id, const JobUpdate& update) = 0;

  // A user's pause, resume or cancel (kPauseRequested, kResumeRequested, kCancelRequested): judged
  // (JudgeRequest), applied and remembered under the request id in one transaction. A request id
  // that was served before changes nothing (`applied` false), with another digest it is
  // AlreadyExists.
  struct RequestKey {
    std::string user;
    std::string request_id;  // empty: not remembered
    std::string digest;      // of the whole payload
  };
  struct RequestResult {
    JobRecord job;
    bool applied = false;
  };
  virtual absl::StatusOr<RequestResult> ApplyRequest(const std::string& job_id, JobTrigger request,
                                                     const std::string& message,
                                                     const RequestKey& key) = 0;

  // For mutations that are idempotent by nature (cache): stores `digest` under (user, request id);
  // AlreadyExists when another one is there.
  virtual absl::Status RememberRequest(const std::string& user, const std::string& request_id,
                                       const std::string& digest) = 0;

  // `user` has uploaded the file whole.
  virtual absl::Status AddFileOwner(const std::string& user, const std::string& sha256,
                                    int64_t size_bytes) = 0;

  // ---- reads ----
  virtual absl::StatusOr<JobRecord> GetJob(const std::string& job_id) const = 0;
  virtual absl::StatusOr<JobRecord> NewestByName(const std::optional<std::string>& user,
                                                 const std::string& name) const = 0;
  // page_size jobs at most, and at most `max_bytes` of them serialised (one at least).
  virtual absl::StatusOr<JobPage> ListJobs(const JobFilter& filter, int page_size,
                                           const std::string& page_token,
                                           int64_t max_bytes) const = 0;
  // Every job that has not ended, oldest first. For the scheduler, and after a restart.
  virtual absl::StatusOr<std::vector<JobRecord>> ListUnfinished() const = 0;
  virtual absl::StatusOr<std::vector<soup::v1::JobEvent>> EventsAfter(const std::string& job_id,
                                                                      int64_t after_sequence,
                                                                      int limit) const = 0;
  virtual absl::StatusOr<std::map<JobState, int64_t>> CountByState() const = 0;
  virtual absl::StatusOr<bool> OwnsFile(const std::string& user, const std::string& sha256,
                                        int64_t* size_bytes = nullptr) const = 0;
  // Whether a job that has not ended needs this upload (files are not collected under its feet).
  virtual absl::StatusOr<bool> FileInUse(const std::string& sha256) const = 0;

  // OK, or why the last write failed (disk full…); OK again after the next write that succeeds.
  virtual absl::Status StorageStatus() const = 0;

  // One at a time; before jobs come in.
  virtual void SetListener(Listener listener) = 0;
};

struct JobStoreOptions {
  std::string path;                   // …/soupd.db
  int64_t reserve_bytes = 256 << 10;  // given up when the disk is full
  size_t max_pending_writes = 4096;   // beyond: ResourceExhausted at once
};
// Opens or creates; migrates an older schema; checks that the file is a whole database.
absl::StatusOr<std::unique_ptr<JobStore>> OpenJobStore(const JobStoreOptions& options,
                                                       const engine::Clock& clock);

// Makes what a worker found out about a user's data short and valid enough for records and
// messages: at most 100 warnings of 1 KiB, a short reason.
void CleanReport(soup::v1::DatasetReport* report);

// The record as the API shows it, without what the step log knows.
soup::v1::Job ToProto(const JobRecord& record);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_JOB_STORE_H_
