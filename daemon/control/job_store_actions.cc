#include "daemon/control/job_store_actions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/job_store_schema.h"
#include "daemon/control/text.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::JobEvent;

constexpr size_t kMaxMessageBytes = 16 << 10;
constexpr int64_t kRequestMemoryMs = int64_t{30} * 24 * 3600 * 1000;

}  // namespace

absl::Status TouchUser(SqliteDb& db, const std::string& user, int64_t now_ms) {
  SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("INSERT OR IGNORE INTO users VALUES (?,?)"));
  q.Text(user).Int(now_ms);
  return q.Run();
}

absl::StatusOr<std::optional<std::string>> RecallRequest(SqliteDb& db,
                                                         const JobStore::RequestKey& key) {
  if (key.request_id.empty()) return std::nullopt;
  SOUP_ASSIGN_OR_RETURN(
      Query q, db.Prepare("SELECT digest, job_id FROM requests WHERE user=? AND request_id=?"));
  q.Text(key.user).Text(key.request_id);
  SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
  if (!row) return std::nullopt;
  if (q.ColumnText(0) != key.digest) {
    return absl::AlreadyExistsError(absl::StrCat(
        "request id ", Quoted(key.request_id),
        " was used before with another payload; use a new request id for a new request"));
  }
  return q.ColumnText(1);
}

absl::Status StoreRequest(SqliteDb& db, const JobStore::RequestKey& key, const std::string& job_id,
                          int64_t now_ms) {
  if (key.request_id.empty()) return absl::OkStatus();
  {
    SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("INSERT INTO requests VALUES (?,?,?,?,?)"));
    q.Text(key.user).Text(key.request_id).Text(key.digest).Text(job_id).Int(now_ms);
    SOUP_RETURN_IF_ERROR(q.Run());
  }
  SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("DELETE FROM requests WHERE unix_ms < ?"));
  q.Int(now_ms - kRequestMemoryMs);
  return q.Run();
}

absl::Status ApplyTrigger(SqliteDb& db, JobRecord& record, JobTrigger trigger, Reason reason,
                          const std::string& message, int64_t now_ms, std::vector<Told>* told) {
  const JobState from = record.state;
  const std::optional<JobState> to = NextState(from, trigger);
  if (!to.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", record.id, " is ", JobStateName(from),
                                                      ", which ", JobTriggerName(trigger),
                                                      " does not allow"));
  }
  if (!ReasonAllowed(trigger, reason)) {
    return absl::InvalidArgumentError(absl::StrCat("job ", record.id, ": ", JobTriggerName(trigger),
                                                   " cannot have the reason \"", ReasonName(reason),
                                                   "\""));
  }
  record.state = *to;
  record.reason = reason;
  record.message = CleanText(message, kMaxMessageBytes);
  ++record.last_sequence;
  if (*to == soup::v1::QUEUED) record.queued_unix_ms = now_ms;
  if (HasEnded(*to)) record.finished_unix_ms = now_ms;
  if (trigger == JobTrigger::kInterrupted &&
      (reason == soup::v1::WORKER_LOST || reason == soup::v1::DEVICE_LOST) &&
      record.attempt_started_unix_ms != 0) {
    ++record.device_losses;
  }
  const bool attempt_goes_on = *to == soup::v1::RUNNING || *to == soup::v1::PAUSING ||
                               *to == soup::v1::CANCELLING || *to == soup::v1::FINALIZING;
  if (*to == soup::v1::RUNNING) {
    ++record.attempts;
    record.attempt_started_unix_ms = now_ms;
    if (record.started_unix_ms == 0) record.started_unix_ms = now_ms;
    SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("INSERT INTO attempts VALUES (?,?,?,0,0,0)"));
    q.Text(record.id).Int(record.attempts).Int(now_ms);
    SOUP_RETURN_IF_ERROR(q.Run());
  } else if (!attempt_goes_on && record.attempt_started_unix_ms != 0) {
    const bool end_unknown =
        trigger == JobTrigger::kInterrupted &&
        (reason == soup::v1::REASON_UNSPECIFIED || reason == soup::v1::USER_REQUEST);
    if (!end_unknown) {
      record.running_ms += std::max<int64_t>(0, now_ms - record.attempt_started_unix_ms);
    }
    record.attempt_started_unix_ms = 0;
    SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("UPDATE attempts SET ended_unix_ms=?, end_state=?, "
                                              "end_reason=? WHERE job_id=? AND attempt=?"));
    q.Int(now_ms).Int(*to).Int(reason).Text(record.id).Int(record.attempts);
    SOUP_RETURN_IF_ERROR(q.Run());
  }
  SOUP_RETURN_IF_ERROR(UpdateJobRow(db, record));
  JobEvent event;
  event.set_job_id(record.id);
  event.set_sequence(record.last_sequence);
  event.set_unix_ms(now_ms);
  event.set_state(*to);
  event.set_reason(reason);
  event.set_message(record.message);
  SOUP_RETURN_IF_ERROR(InsertEvent(db, event));
  told->push_back(Told{record, event, from});
  return absl::OkStatus();
}

}  // namespace soup::daemon
