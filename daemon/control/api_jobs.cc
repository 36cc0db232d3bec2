#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/common/data_files.h"
#include "daemon/control/api_reactors.h"
#include "daemon/control/api_service.h"
#include "daemon/control/sha256.h"
#include "daemon/control/spec_validator.h"
#include "daemon/control/text.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::Job;
using soup::v1::JobSpec;

// Replies stay under what a client takes by default (4 MiB).
constexpr int64_t kMaxReplyBytes = 3 << 20;
constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1000;
constexpr int kDefaultSteps = 1000;
constexpr int kMaxSteps = 10'000;
constexpr size_t kMaxRequestIdBytes = 128;

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes || HasControlCharacters(id)) {
    return absl::InvalidArgumentError(absl::StrCat("request_id ", Quoted(id), " has ", id.size(),
                                                   " bytes: at most ", kMaxRequestIdBytes,
                                                   " without control characters are taken"));
  }
  return absl::OkStatus();
}

// What Submit, Plan and PreviewData check alike; the base's real path.
absl::StatusOr<std::string> CheckSpec(const ApiContext& api, const Principal& who,
                                      const JobSpec& spec) {
  SOUP_RETURN_IF_ERROR(ValidateSpec(spec));
  SOUP_ASSIGN_OR_RETURN(std::string base,
                        ResolveBasePath(spec.base().path(), api.config.model_roots));
  for (const NamedFile& named : FilesOf(spec))
    SOUP_RETURN_IF_ERROR(api.uploads.CheckUsable(who.user, named.file, named.field));
  return base;
}

// In a list, long texts are cut: Get has them whole.
void Shorten(Job* job) {
  constexpr size_t kShortBytes = 256;
  constexpr int kFewWarnings = 3;
  job->set_message(CleanText(job->message(), kShortBytes));
  if (job->warnings_size() > kFewWarnings) {
    job->mutable_warnings()->DeleteSubrange(kFewWarnings, job->warnings_size() - kFewWarnings);
  }
  for (std::string& warning : *job->mutable_warnings()) warning = CleanText(warning, kShortBytes);
  job->mutable_dataset()->clear_warnings();
  job->mutable_dataset()->clear_format_reason();
  job->mutable_dataset()->clear_sources();
}

const char* Verb(JobTrigger trigger) {
  switch (trigger) {
    case JobTrigger::kPauseRequested:
      return "pause";
    case JobTrigger::kResumeRequested:
      return "resume";
    default:
      return "cancel";
  }
}

void Tell(Orchestrator& orchestrator, JobTrigger trigger, const std::string& job_id) {
  switch (trigger) {
    case JobTrigger::kPauseRequested:
      return orchestrator.PauseRequested(job_id);
    case JobTrigger::kResumeRequested:
      return orchestrator.ResumeRequested(job_id);
    default:
      return orchestrator.CancelRequested(job_id);
  }
}

absl::Status SubmitJob(ApiContext& api, const Principal& who,
                       const soup::v1::SubmitRequest& request, Job* reply) {
  SOUP_RETURN_IF_ERROR(api.CheckServing());
  SOUP_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  // A repeat gets the answer that its first got, whatever became of the base or the data since.
  SOUP_ASSIGN_OR_RETURN(const std::optional<JobRecord> before,
                        api.store.FindSubmitted(who.user, request.request_id(), request.spec()));
  if (before.has_value()) {
    // Told again: soupd may have died between the commit and the telling.
    api.orchestrator.JobSubmitted(before->id);
    *reply = api.Complete(*before);
    return absl::OkStatus();
  }
  SOUP_ASSIGN_OR_RETURN(const std::string base, CheckSpec(api, who, request.spec()));
  SOUP_RETURN_IF_ERROR(api.orchestrator.CheckSubmit(request.spec(), who.user, base));
  SOUP_ASSIGN_OR_RETURN(const JobStore::CreateResult made,
                        api.store.CreateJob(who.user, request.request_id(), request.spec(), base,
                                            api.config.quota_queued));
  if (made.created) {
    SOUP_LOG(kInfo, "api") << "job " << made.job.id << " of " << who.user << " submitted";
  }
  api.orchestrator.JobSubmitted(made.job.id);
  *reply = api.Complete(made.job);
  return absl::OkStatus();
}

absl::Status ListJobs(const ApiContext& api, const Principal& who,
                      const soup::v1::ListRequest& request, soup::v1::ListReply* reply) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", request.page_size(), ": give 0 to ", kMaxPage));
  }
  if (request.all_users() && !who.admin) {
    return absl::PermissionDeniedError("all_users is for admins; you see your own jobs without it");
  }
  if (request.name_prefix().size() > kMaxNameBytes) {
    return absl::InvalidArgumentError("name_prefix is longer than any name");
  }
  JobFilter filter;
  if (!request.all_users()) filter.user = who.user;
  filter.name_prefix = request.name_prefix();
  for (const int state : request.states()) {
    if (!soup::v1::JobState_IsValid(state) || state == soup::v1::JOB_STATE_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrCat("states: ", state, " is not a job state"));
    }
    filter.states.push_back(static_cast<JobState>(state));
  }
  const int page_size =
      request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMaxPage);
  SOUP_ASSIGN_OR_RETURN(
      const JobPage page,
      api.store.ListJobs(filter, page_size, request.page_token(), kMaxReplyBytes / 2));
  for (const JobRecord& record : page.jobs) {
    Job* job = reply->add_jobs();
    *job = api.Complete(record);
    Shorten(job);
  }
  reply->set_next_page_token(page.next_page_token);
  return absl::OkStatus();
}

absl::Status ReadMetrics(const ApiContext& api, const Principal& who,
                         const soup::v1::GetMetricsRequest& request,
                         soup::v1::GetMetricsReply* reply) {
  if (request.limit() < 0 || request.limit() > kMaxSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit is ", request.limit(), ": give 0 to ", kMaxSteps));
  }
  SOUP_ASSIGN_OR_RETURN(const JobRecord job, api.FindJob(who, request.job_id()));
  const int limit = request.limit() == 0 ? kDefaultSteps : request.limit();
  SOUP_ASSIGN_OR_RETURN(std::vector<soup::v1::StepRecord> steps,
                        api.steps.Read(job.id, request.after_step(), limit + 1));
  reply->set_more(static_cast<int>(steps.size()) > limit);
  if (reply->more()) steps.pop_back();
  for (soup::v1::StepRecord& step : steps) *reply->add_steps() = std::move(step);
  return absl::OkStatus();
}

// Drops records from the end until the reply fits a message.
void FitPreview(soup::v1::PreviewDataReply* reply) {
  while (reply->records_size() > 0 &&
         static_cast<int64_t>(reply->ByteSizeLong()) > kMaxReplyBytes) {
    reply->mutable_records()->RemoveLast();
    const std::string note = "the preview was cut: its records are too long for one answer";
    auto* warnings = reply->mutable_report()->mutable_warnings();
    if (std::find(warnings->begin(), warnings->end(), note) == warnings->end()) {
      *warnings->Add() = note;
    }
  }
}

}  // namespace

grpc::ServerUnaryReactor* SoupService::Submit(grpc::CallbackServerContext* call,
                                              const soup::v1::SubmitRequest* request, Job* reply) {
  return RunUnary(api_, call, api_.pool, [=, this](const Principal& who) {
    return SubmitJob(api_, who, *request, reply);
  });
}

grpc::ServerUnaryReactor* SoupService::Plan(grpc::CallbackServerContext* call,
                                            const soup::v1::PlanRequest* request,
                                            soup::v1::PlanReply* reply) {
  return RunUnary(api_, call, api_.slow_pool, [=, this](const Principal& who) -> absl::Status {
    SOUP_RETURN_IF_ERROR(api_.CheckServing());
    SOUP_ASSIGN_OR_RETURN(const std::string base, CheckSpec(api_, who, request->spec()));
    SOUP_ASSIGN_OR_RETURN(*reply,
                          api_.orchestrator.Plan(request->spec(), who.user, base, LimitsOf(*call)));
    if (reply->has_dataset()) CleanReport(reply->mutable_dataset());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SoupService::PreviewData(grpc::CallbackServerContext* call,
                                                   const soup::v1::PreviewDataRequest* request,
                                                   soup::v1::PreviewDataReply* reply) {
  return RunUnary(api_, call, api_.slow_pool, [=, this](const Principal& who) -> absl::Status {
    constexpr int kMaxRecords = 1000;
    SOUP_RETURN_IF_ERROR(api_.CheckServing());
    if (request->records() < 0 || request->records() > kMaxRecords) {
      return absl::InvalidArgumentError(
          absl::StrCat("records is ", request->records(), ": give 0 to ", kMaxRecords));
    }
    SOUP_ASSIGN_OR_RETURN(const std::string base, CheckSpec(api_, who, request->spec()));
    SOUP_ASSIGN_OR_RETURN(
        *reply, api_.orchestrator.PreviewData(request->spec(), who.user, base, request->records(),
                                              LimitsOf(*call)));
    CleanReport(reply->mutable_report());
    FitPreview(reply);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SoupService::Get(grpc::CallbackServerContext* call,
                                           const soup::v1::GetRequest* request, Job* reply) {
  return RunUnary(api_, call, api_.pool, [=, this](const Principal& who) -> absl::Status {
    SOUP_ASSIGN_OR_RETURN(const JobRecord job, api_.FindJob(who, request->job_id()));
    *reply = api_.Complete(job);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SoupService::List(grpc::CallbackServerContext* call,
                                            const soup::v1::ListRequest* request,
                                            soup::v1::ListReply* reply) {
  return RunUnary(api_, call, api_.pool,
                  [=, this](const Principal& who) { return ListJobs(api_, who, *request, reply); });
}

grpc::ServerUnaryReactor* SoupService::GetMetrics(grpc::CallbackServerContext* call,
                                                  const soup::v1::GetMetricsRequest* request,
                                                  soup::v1::GetMetricsReply* reply) {
  return RunUnary(api_, call, api_.pool, [=, this](const Principal& who) {
    return ReadMetrics(api_, who, *request, reply);
  });
}

grpc::ServerUnaryReactor* SoupService::Act(grpc::CallbackServerContext* call,
                                           const soup::v1::JobRequest* request, Job* reply,
                                           JobTrigger trigger) {
  return RunUnary(api_, call, api_.pool, [=, this](const Principal& who) -> absl::Status {
    SOUP_RETURN_IF_ERROR(api_.CheckServing());
    SOUP_RETURN_IF_ERROR(CheckRequestId(request->request_id()));
    SOUP_ASSIGN_OR_RETURN(const JobRecord job, api_.FindJob(who, request->job_id()));
    const JobStore::RequestKey key{who.user, request->request_id(),
                                   Sha256Hex(absl::StrCat(Verb(trigger), "\n", job.id))};
    const std::string message = absl::StrCat(Verb(trigger), " asked for by ", who.user);
    SOUP_ASSIGN_OR_RETURN(const JobStore::RequestResult result,
                          api_.store.ApplyRequest(job.id, trigger, message, key));
    Tell(api_.orchestrator, trigger, job.id);
    *reply = api_.Complete(result.job);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SoupService::Pause(grpc::CallbackServerContext* call,
                                             const soup::v1::JobRequest* request, Job* reply) {
  return Act(call, request, reply, JobTrigger::kPauseRequested);
}
grpc::ServerUnaryReactor* SoupService::Resume(grpc::CallbackServerContext* call,
                                              const soup::v1::JobRequest* request, Job* reply) {
  return Act(call, request, reply, JobTrigger::kResumeRequested);
}
grpc::ServerUnaryReactor* SoupService::Cancel(grpc::CallbackServerContext* call,
                                              const soup::v1::JobRequest* request, Job* reply) {
  return Act(call, request, reply, JobTrigger::kCancelRequested);
}

}  // namespace soup::daemon
