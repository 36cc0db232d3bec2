// What writes of the job store do inside their transaction. Internal to job_store.cc.
// Not thread-safe: as the connection they are given.
#ifndef SOUP_DAEMON_CONTROL_JOB_STORE_ACTIONS_H_
#define SOUP_DAEMON_CONTROL_JOB_STORE_ACTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/job_store.h"
#include "daemon/control/sqlite_db.h"
#include "daemon/control/store_writer.h"

namespace soup::daemon {

// Moves `record` (as it is in the database) by the transition table: state, times, attempts, event.
// FailedPrecondition, InvalidArgument (a reason that does not go with the trigger).
absl::Status ApplyTrigger(SqliteDb& db, JobRecord& record, JobTrigger trigger, Reason reason,
                          const std::string& message, int64_t now_ms, std::vector<Told>* told);

absl::Status TouchUser(SqliteDb& db, const std::string& user, int64_t now_ms);

// The job id stored with the request before ("" for other mutations); nullopt: a new request.
// AlreadyExists when its digest was another.
absl::StatusOr<std::optional<std::string>> RecallRequest(SqliteDb& db,
                                                         const JobStore::RequestKey& key);
// Remembers the request for 30 days.
absl::Status StoreRequest(SqliteDb& db, const JobStore::RequestKey& key, const std::string& job_id,
                          int64_t now_ms);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_JOB_STORE_ACTIONS_H_
