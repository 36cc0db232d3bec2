#include "daemon/control/job_store_schema.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr int64_t kSchemaVersion = 1;

constexpr char kSchemaV1[] = R"sql(
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  user TEXT NOT NULL,
  name TEXT NOT NULL,
  state INTEGER NOT NULL,
  ended INTEGER NOT NULL,
  reason INTEGER NOT NULL,
  message TEXT NOT NULL,
  created_unix_ms INTEGER NOT NULL,
  queued_unix_ms INTEGER NOT NULL,
  started_unix_ms INTEGER NOT NULL,
  finished_unix_ms INTEGER NOT NULL,
  last_sequence INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  device_losses INTEGER NOT NULL,
  running_ms INTEGER NOT NULL,
  attempt_started_unix_ms INTEGER NOT NULL,
  base_real_path TEXT NOT NULL,
  base_fingerprint TEXT NOT NULL,
  base_key TEXT NOT NULL,
  numeric_plan TEXT NOT NULL,
  steps_total INTEGER NOT NULL,
  planned_arena_bytes INTEGER NOT NULL,
  spec BLOB NOT NULL,
  dataset BLOB NOT NULL,
  warnings BLOB NOT NULL,
  orchestration BLOB NOT NULL
);
CREATE INDEX jobs_by_user ON jobs(user, seq);
CREATE INDEX jobs_by_name ON jobs(name, seq);
CREATE INDEX jobs_unfinished ON jobs(seq) WHERE ended = 0;
CREATE TABLE attempts (
  job_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  started_unix_ms INTEGER NOT NULL,
  ended_unix_ms INTEGER NOT NULL,
  end_state INTEGER NOT NULL,
  end_reason INTEGER NOT NULL,
  PRIMARY KEY (job_id, attempt)
) WITHOUT ROWID;
CREATE TABLE events (
  job_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  unix_ms INTEGER NOT NULL,
  state INTEGER NOT NULL,
  reason INTEGER NOT NULL,
  message TEXT NOT NULL,
  PRIMARY KEY (job_id, sequence)
) WITHOUT ROWID;
CREATE TABLE users (user TEXT PRIMARY KEY, first_seen_unix_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE files (
  sha256 TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL, created_unix_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE file_owners (
  user TEXT NOT NULL, sha256 TEXT NOT NULL, completed_unix_ms INTEGER NOT NULL,
  PRIMARY KEY (user, sha256)
) WITHOUT ROWID;
CREATE TABLE job_files (
  sha256 TEXT NOT NULL, job_id TEXT NOT NULL, PRIMARY KEY (sha256, job_id)
) WITHOUT ROWID;
CREATE TABLE requests (
  user TEXT NOT NULL, request_id TEXT NOT NULL, digest TEXT NOT NULL, job_id TEXT NOT NULL,
  unix_ms INTEGER NOT NULL, PRIMARY KEY (user, request_id)
) WITHOUT ROWID;
CREATE INDEX requests_by_time ON requests(unix_ms);
)sql";

// Warnings and the like as one blob: a DatasetReport holds a repeated string already.
std::string PackWarnings(const std::vector<std::string>& warnings) {
  soup::v1::DatasetReport box;
  for (const std::string& w : warnings) box.add_warnings(w);
  return box.SerializeAsString();
}

}  // namespace

const char kJobColumns[] =
    "seq, id, user, state, reason, message, created_unix_ms, queued_unix_ms, started_unix_ms, "
    "finished_unix_ms, last_sequence, attempts, device_losses, running_ms, "
    "attempt_started_unix_ms, base_real_path, base_fingerprint, base_key, numeric_plan, "
    "steps_total, planned_arena_bytes, spec, dataset, warnings, orchestration";

absl::Status MigrateJobStore(SqliteDb& db) {
  int64_t version = 0;
  {
    SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("PRAGMA user_version"));
    SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
    if (row) version = q.ColumnInt(0);
  }
  if (version == kSchemaVersion) return absl::OkStatus();
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job store has schema ", version, ", this soupd knows ", kSchemaVersion,
                     ": it was written by a newer soupd; run that one"));
  }
  const std::string sql = absl::StrCat("BEGIN IMMEDIATE;", kSchemaV1,
                                       "PRAGMA user_version = ", kSchemaVersion, "; COMMIT;");
  const absl::Status status = db.Exec(sql.c_str());
  if (!status.ok() && db.InTransaction()) (void)db.Exec("ROLLBACK");
  return status;
}

absl::StatusOr<JobRecord> ReadJobRow(const Query& q, int64_t* row) {
  JobRecord r;
  int c = 0;
  if (row != nullptr) *row = q.ColumnInt(c);
  ++c;
  r.id = q.ColumnText(c++);
  r.user = q.ColumnText(c++);
  r.state = static_cast<JobState>(q.ColumnInt(c++));
  r.reason = static_cast<Reason>(q.ColumnInt(c++));
  r.message = q.ColumnText(c++);
  r.created_unix_ms = q.ColumnInt(c++);
  r.queued_unix_ms = q.ColumnInt(c++);
  r.started_unix_ms = q.ColumnInt(c++);
  r.finished_unix_ms = q.ColumnInt(c++);
  r.last_sequence = q.ColumnInt(c++);
  r.attempts = static_cast<int32_t>(q.ColumnInt(c++));
  r.device_losses = static_cast<int32_t>(q.ColumnInt(c++));
  r.running_ms = q.ColumnInt(c++);
  r.attempt_started_unix_ms = q.ColumnInt(c++);
  r.base_real_path = q.ColumnText(c++);
  r.base_fingerprint = q.ColumnText(c++);
  r.base_key = q.ColumnText(c++);
  r.numeric_plan = q.ColumnText(c++);
  r.steps_total = q.ColumnInt(c++);
  r.planned_arena_bytes = q.ColumnInt(c++);
  soup::v1::DatasetReport box;
  if (!r.spec.ParseFromString(q.ColumnText(c++)) || !r.dataset.ParseFromString(q.ColumnText(c++)) ||
      !box.ParseFromString(q.ColumnText(c++))) {
    return absl::DataLossError(absl::StrCat("job store: the record of job ", r.id, " is damaged"));
  }
  r.warnings.assign(box.warnings().begin(), box.warnings().end());
  r.orchestration = q.ColumnText(c++);
  return r;
}

absl::Status InsertJobRow(SqliteDb& db, const JobRecord& r) {
  SOUP_ASSIGN_OR_RETURN(
      Query q,
      db.Prepare(
          "INSERT INTO jobs(id, user, name, state, ended, reason, message, created_unix_ms, "
          "queued_unix_ms, started_unix_ms, finished_unix_ms, last_sequence, attempts, "
          "device_losses, running_ms, attempt_started_unix_ms, base_real_path, base_fingerprint, "
          "base_key, numeric_plan, steps_total, planned_arena_bytes, spec, dataset, warnings, "
          "orchestration) VALUES "
          "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"));
  q.Text(r.id).Text(r.user).Text(r.spec.name()).Int(r.state).Int(HasEnded(r.state) ? 1 : 0);
  q.Int(r.reason).Text(r.message).Int(r.created_unix_ms).Int(r.queued_unix_ms);
  q.Int(r.started_unix_ms).Int(r.finished_unix_ms).Int(r.last_sequence).Int(r.attempts);
  q.Int(r.device_losses).Int(r.running_ms).Int(r.attempt_started_unix_ms).Text(r.base_real_path);
  q.Text(r.base_fingerprint).Text(r.base_key).Text(r.numeric_plan).Int(r.steps_total);
  q.Int(r.planned_arena_bytes).Blob(r.spec.SerializeAsString());
  q.Blob(r.dataset.SerializeAsString()).Blob(PackWarnings(r.warnings)).Blob(r.orchestration);
  return q.Run();
}

absl::Status UpdateJobRow(SqliteDb& db, const JobRecord& r) {
  SOUP_ASSIGN_OR_RETURN(
      Query q, db.Prepare("UPDATE jobs SET state=?, ended=?, reason=?, message=?, "
                          "queued_unix_ms=?, started_unix_ms=?, finished_unix_ms=?, "
                          "last_sequence=?, attempts=?, device_losses=?, running_ms=?, "
                          "attempt_started_unix_ms=?, base_fingerprint=?, base_key=?, "
                          "numeric_plan=?, steps_total=?, planned_arena_bytes=?, dataset=?, "
                          "warnings=?, orchestration=? WHERE id=?"));
  q.Int(r.state).Int(HasEnded(r.state) ? 1 : 0).Int(r.reason).Text(r.message);
  q.Int(r.queued_unix_ms).Int(r.started_unix_ms).Int(r.finished_unix_ms).Int(r.last_sequence);
  q.Int(r.attempts).Int(r.device_losses).Int(r.running_ms).Int(r.attempt_started_unix_ms);
  q.Text(r.base_fingerprint).Text(r.base_key).Text(r.numeric_plan).Int(r.steps_total);
  q.Int(r.planned_arena_bytes).Blob(r.dataset.SerializeAsString()).Blob(PackWarnings(r.warnings));
  q.Blob(r.orchestration).Text(r.id);
  return q.Run();
}

absl::StatusOr<JobRecord> SelectJob(SqliteDb& db, const std::string& job_id) {
  static const std::string* const kSql =
      new std::string(absl::StrCat("SELECT ", kJobColumns, " FROM jobs WHERE id=?"));
  SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare(*kSql));
  q.Text(job_id);
  SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
  if (!row) return absl::NotFoundError(absl::StrCat("no job ", job_id));
  return ReadJobRow(q);
}

absl::Status InsertEvent(SqliteDb& db, const soup::v1::JobEvent& event) {
  SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("INSERT INTO events VALUES (?,?,?,?,?,?)"));
  q.Text(event.job_id()).Int(event.sequence()).Int(event.unix_ms()).Int(event.state());
  q.Int(event.reason()).Text(event.message());
  return q.Run();
}

}  // namespace soup::daemon
