#include "daemon/control/api_context.h"

#include "absl/strings/str_cat.h"
#include "daemon/control/endpoint_tcp.h"
#include "daemon/control/text.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {

absl::StatusOr<Principal> ApiContext::Authenticate(const grpc::ServerContextBase& call) const {
  if (const std::optional<uid_t> uid = peers.Find(call.peer()); uid.has_value()) {
    return PrincipalOfUid(*uid, admins);
  }
  return PrincipalOfTls(call, tokens);
}

absl::Status ApiContext::CheckServing() const {
  return draining ? absl::UnavailableError("soupd is stopping; try again when it is back")
                  : absl::OkStatus();
}

absl::StatusOr<JobRecord> ApiContext::FindJob(const Principal& who,
                                              const std::string& name_or_id) const {
  const absl::Status none =
      absl::NotFoundError(absl::StrCat("no job ", Quoted(name_or_id), " of yours"));
  if (name_or_id.empty()) {
    return absl::InvalidArgumentError("job_id is missing: give a job's id or name");
  }
  if (name_or_id.size() > 256) return none;
  absl::StatusOr<JobRecord> job = store.GetJob(name_or_id);
  if (job.ok() && (who.admin || job->user == who.user)) return job;
  if (!job.ok() && !absl::IsNotFound(job.status())) return job;
  job = store.NewestByName(who.user, name_or_id);
  if (absl::IsNotFound(job.status()) && who.admin) {
    job = store.NewestByName(std::nullopt, name_or_id);
  }
  return absl::IsNotFound(job.status()) ? absl::StatusOr<JobRecord>(none) : job;
}

soup::v1::Job ApiContext::Complete(const JobRecord& record) const {
  soup::v1::Job job = ToProto(record);
  const absl::StatusOr<StepSummary> summary = steps.Summary(record.id);
  if (summary.ok()) {
    job.set_steps_done(summary->steps_done);
    job.set_last_loss(summary->last_loss);
  } else {
    SOUP_LOG(kWarn, "api") << summary.status().message();
  }
  if (record.state == soup::v1::QUEUED) {
    job.set_queue_position(orchestrator.QueuePosition(record.id));
  }
  return job;
}

CallLimits LimitsOf(const grpc::CallbackServerContext& call) {
  CallLimits limits;
  limits.deadline = absl::FromChrono(call.deadline());
  limits.cancelled = [&call] { return call.IsCancelled(); };
  return limits;
}

}  // namespace soup::daemon
