// Tables of the job store, and the row of a job <-> JobRecord. Internal to job_store.cc.
// Not thread-safe: as the connection it is given.
#ifndef SOUP_DAEMON_CONTROL_JOB_STORE_SCHEMA_H_
#define SOUP_DAEMON_CONTROL_JOB_STORE_SCHEMA_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/job_store.h"
#include "daemon/control/sqlite_db.h"

namespace soup::daemon {

// Creates or migrates the schema (PRAGMA user_version). FailedPrecondition when a newer soupd wrote
// it.
absl::Status MigrateJobStore(SqliteDb& db);

// SELECT list in the order that ReadJobRow expects; the rowid (creation order) comes first.
extern const char kJobColumns[];
// Column 0 is the rowid; `*row` gets it when not null. DataLoss when a proto does not parse.
absl::StatusOr<JobRecord> ReadJobRow(const Query& query, int64_t* row = nullptr);
// Inserts a new row.
absl::Status InsertJobRow(SqliteDb& db, const JobRecord& record);
// Writes everything that may change back.
absl::Status UpdateJobRow(SqliteDb& db, const JobRecord& record);
absl::StatusOr<JobRecord> SelectJob(SqliteDb& db, const std::string& job_id);
absl::Status InsertEvent(SqliteDb& db, const soup::v1::JobEvent& event);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_JOB_STORE_SCHEMA_H_
