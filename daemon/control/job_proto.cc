// A job's record as the API shows it.
#include <limits>

#include "daemon/control/job_store.h"

namespace soup::daemon {

soup::v1::Job ToProto(const JobRecord& record) {
  soup::v1::Job job;
  job.set_id(record.id);
  *job.mutable_spec() = record.spec;
  job.set_user(record.user);
  job.set_state(record.state);
  job.set_reason(record.reason);
  job.set_message(record.message);
  job.set_created_unix_ms(record.created_unix_ms);
  job.set_started_unix_ms(record.started_unix_ms);
  job.set_finished_unix_ms(record.finished_unix_ms);
  job.set_steps_total(record.steps_total);
  job.set_last_loss(std::numeric_limits<double>::quiet_NaN());
  job.set_last_sequence(record.last_sequence);
  job.set_attempts(record.attempts);
  job.set_base_fingerprint(record.base_fingerprint);
  *job.mutable_dataset() = record.dataset;
  job.set_planned_arena_bytes(record.planned_arena_bytes);
  for (const std::string& warning : record.warnings) job.add_warnings(warning);
  return job;
}

}  // namespace soup::daemon
