#include "daemon/control/job_state.h"

namespace soup::daemon {

using soup::v1::CANCELLED;
using soup::v1::CANCELLING;
using soup::v1::FAILED;
using soup::v1::FINALIZING;
using soup::v1::PAUSED;
using soup::v1::PAUSING;
using soup::v1::PREPARING;
using soup::v1::QUEUED;
using soup::v1::RUNNING;
using soup::v1::SUCCEEDED;

namespace {

struct Row {
  JobState from;
  JobTrigger trigger;
  JobState to;
};

// The table. What is not here is not allowed.
constexpr Row kTable[] = {
    {QUEUED, JobTrigger::kPrepareStarted, PREPARING},
    {QUEUED, JobTrigger::kRunStarted, RUNNING},
    {QUEUED, JobTrigger::kFailed, FAILED},
    {QUEUED, JobTrigger::kPauseRequested, PAUSED},
    {QUEUED, JobTrigger::kCancelRequested, CANCELLED},

    {PREPARING, JobTrigger::kRunStarted, RUNNING},
    {PREPARING, JobTrigger::kFailed, FAILED},
    {PREPARING, JobTrigger::kRequeued, QUEUED},
    {PREPARING, JobTrigger::kInterrupted, QUEUED},
    {PREPARING, JobTrigger::kPauseRequested, PAUSING},
    {PREPARING, JobTrigger::kPaused, PAUSED},
    {PREPARING, JobTrigger::kCancelRequested, CANCELLING},

    {RUNNING, JobTrigger::kFinalizeStarted, FINALIZING},
    {RUNNING, JobTrigger::kFailed, FAILED},
    {RUNNING, JobTrigger::kRequeued, QUEUED},
    {RUNNING, JobTrigger::kInterrupted, QUEUED},
    {RUNNING, JobTrigger::kPauseRequested, PAUSING},
    {RUNNING, JobTrigger::kPaused, PAUSED},
    {RUNNING, JobTrigger::kCancelRequested, CANCELLING},

    {PAUSING, JobTrigger::kPaused, PAUSED},
    {PAUSING, JobTrigger::kInterrupted, PAUSED},
    {PAUSING, JobTrigger::kFailed, FAILED},
    {PAUSING, JobTrigger::kCancelRequested, CANCELLING},

    {PAUSED, JobTrigger::kResumeRequested, QUEUED},
    {PAUSED, JobTrigger::kCancelRequested, CANCELLED},

    {CANCELLING, JobTrigger::kCancelled, CANCELLED},
    {CANCELLING, JobTrigger::kInterrupted, CANCELLED},
    {CANCELLING, JobTrigger::kSucceeded, SUCCEEDED},

    {FINALIZING, JobTrigger::kSucceeded, SUCCEEDED},
    {FINALIZING, JobTrigger::kFailed, FAILED},
    {FINALIZING, JobTrigger::kRequeued, QUEUED},
    {FINALIZING, JobTrigger::kInterrupted, QUEUED},
    {FINALIZING, JobTrigger::kPaused, PAUSED},
    {FINALIZING, JobTrigger::kCancelRequested, CANCELLING},
};

}  // namespace

const char* JobTriggerName(JobTrigger trigger) {
  switch (trigger) {
    case JobTrigger::kPrepareStarted:
      return "PrepareStarted";
    case JobTrigger::kRunStarted:
      return "RunStarted";
    case JobTrigger::kFinalizeStarted:
      return "FinalizeStarted";
    case JobTrigger::kSucceeded:
      return "Succeeded";
    case JobTrigger::kFailed:
      return "Failed";
    case JobTrigger::kRequeued:
      return "Requeued";
    case JobTrigger::kInterrupted:
      return "Interrupted";
    case JobTrigger::kPauseRequested:
      return "PauseRequested";
    case JobTrigger::kPaused:
      return "Paused";
    case JobTrigger::kResumeRequested:
      return "ResumeRequested";
    case JobTrigger::kCancelRequested:
      return "CancelRequested";
    case JobTrigger::kCancelled:
      return "Cancelled";
  }
  return "?";
}

const char* JobStateName(JobState state) {
  return soup::v1::JobState_IsValid(state) ? soup::v1::JobState_Name(state).c_str() : "?";
}

const char* ReasonName(Reason reason) {
  if (reason == soup::v1::REASON_UNSPECIFIED || !soup::v1::Reason_IsValid(reason)) return "";
  return soup::v1::Reason_Name(reason).c_str();
}

std::optional<JobState> NextState(JobState from, JobTrigger trigger) {
  for (const Row& row : kTable) {
    if (row.from == from && row.trigger == trigger) return row.to;
  }
  return std::nullopt;
}

bool ReasonAllowed(JobTrigger trigger, Reason reason) {
  switch (trigger) {
    case JobTrigger::kPrepareStarted:
    case JobTrigger::kRunStarted:
    case JobTrigger::kFinalizeStarted:
    case JobTrigger::kSucceeded:
      return reason == soup::v1::REASON_UNSPECIFIED;
    case JobTrigger::kFailed:
      return reason == soup::v1::INVALID_INPUT || reason == soup::v1::DATA ||
             reason == soup::v1::OUT_OF_MEMORY || reason == soup::v1::DEVICE_LOST ||
             reason == soup::v1::TIME_LIMIT || reason == soup::v1::INTERNAL;
    case JobTrigger::kRequeued:
      return reason == soup::v1::REASON_UNSPECIFIED || reason == soup::v1::PREEMPTED ||
             reason == soup::v1::OUT_OF_MEMORY;
    case JobTrigger::kInterrupted:
      return reason == soup::v1::REASON_UNSPECIFIED || reason == soup::v1::WORKER_LOST ||
             reason == soup::v1::DEVICE_LOST || reason == soup::v1::USER_REQUEST;
    case JobTrigger::kPaused:  // INVALID_INPUT: files of a job that has begun, away or changed
      return reason == soup::v1::USER_REQUEST || reason == soup::v1::STORAGE ||
             reason == soup::v1::DEVICE_LOST || reason == soup::v1::INVALID_INPUT;
    case JobTrigger::kPauseRequested:
    case JobTrigger::kResumeRequested:
    case JobTrigger::kCancelRequested:
    case JobTrigger::kCancelled:
      return reason == soup::v1::USER_REQUEST;
  }
  return false;
}

bool HasEnded(JobState state) {
  return state == SUCCEEDED || state == FAILED || state == CANCELLED;
}

bool IsWorkedOn(JobState state) {
  return state == PREPARING || state == RUNNING || state == PAUSING || state == CANCELLING ||
         state == FINALIZING;
}

RequestVerdict JudgeRequest(JobState from, JobTrigger request) {
  if (NextState(from, request).has_value()) return RequestVerdict::kApply;
  switch (request) {
    case JobTrigger::kPauseRequested:
      return from == PAUSING || from == PAUSED ? RequestVerdict::kAlready
                                               : RequestVerdict::kRefused;
    case JobTrigger::kResumeRequested:
      return from == QUEUED || from == PREPARING || from == RUNNING || from == FINALIZING
                 ? RequestVerdict::kAlready
                 : RequestVerdict::kRefused;
    case JobTrigger::kCancelRequested:
      return from == CANCELLING || from == CANCELLED ? RequestVerdict::kAlready
                                                     : RequestVerdict::kRefused;
    default:
      return RequestVerdict::kRefused;
  }
}

}  // namespace soup::daemon
