// The life of a job as one pure table: (state, event) -> state. Nothing else in soupd decides what
// state may follow what. States and reasons are soup.v1's (job.proto).
//
//   QUEUED ──PrepareStarted──▶ PREPARING ──RunStarted──▶ RUNNING ──FinalizeStarted──▶ FINALIZING
//     ▲  └─────RunStarted (prepared before)──────────────▲                              │Succeeded
//     └──Requeued / Interrupted── PREPARING, RUNNING, FINALIZING                      SUCCEEDED
//   PauseRequested: QUEUED ▶ PAUSED; PREPARING, RUNNING ▶ PAUSING ──Paused──▶ PAUSED
//   Paused (by the system: STORAGE, DEVICE_LOST): PREPARING, RUNNING, FINALIZING ▶ PAUSED
//   ResumeRequested: PAUSED ▶ QUEUED
//   CancelRequested: QUEUED, PAUSED ▶ CANCELLED; PREPARING, RUNNING, PAUSING, FINALIZING ▶
//   CANCELLING Cancelled: CANCELLING ▶ CANCELLED; Succeeded: CANCELLING ▶ SUCCEEDED (the artifact
//   was whole first) Failed: every state that has not ended, but CANCELLING (a cancelled job never
//   ends FAILED) and PAUSED Interrupted (worker or soupd died): PREPARING, RUNNING, FINALIZING ▶
//   QUEUED; PAUSING ▶ PAUSED;
//                                       CANCELLING ▶ CANCELLED
//
// Pure functions; any thread.
#ifndef SOUP_DAEMON_CONTROL_JOB_STATE_H_
#define SOUP_DAEMON_CONTROL_JOB_STATE_H_

#include <array>
#include <optional>

#include "soup/v1/job.pb.h"

namespace soup::daemon {

using soup::v1::JobState;
using soup::v1::Reason;

enum class JobTrigger {
  kPrepareStarted,
  kRunStarted,
  kFinalizeStarted,
  kSucceeded,
  kFailed,
  kRequeued,  // given back in good order: preempted, no memory just now, prepared but no room yet
  kInterrupted,  // its worker or soupd died
  kPauseRequested,
  kPaused,
  kResumeRequested,
  kCancelRequested,
  kCancelled,
};

inline constexpr std::array<JobTrigger, 12> kAllJobTriggers = {
    JobTrigger::kPrepareStarted,  JobTrigger::kRunStarted,      JobTrigger::kFinalizeStarted,
    JobTrigger::kSucceeded,       JobTrigger::kFailed,          JobTrigger::kRequeued,
    JobTrigger::kInterrupted,     JobTrigger::kPauseRequested,  JobTrigger::kPaused,
    JobTrigger::kResumeRequested, JobTrigger::kCancelRequested, JobTrigger::kCancelled,
};

inline constexpr std::array<JobState, 10> kAllJobStates = {
    soup::v1::QUEUED,    soup::v1::PREPARING,  soup::v1::RUNNING,   soup::v1::PAUSING,
    soup::v1::PAUSED,    soup::v1::CANCELLING, soup::v1::CANCELLED, soup::v1::FINALIZING,
    soup::v1::SUCCEEDED, soup::v1::FAILED,
};

const char* JobTriggerName(JobTrigger trigger);  // "RunStarted"
const char* JobStateName(JobState state);        // "RUNNING"
const char* ReasonName(Reason reason);           // "STORAGE"; "" for unspecified

// The state that `trigger` leads to from `from`; nullopt when the table does not allow it.
std::optional<JobState> NextState(JobState from, JobTrigger trigger);

// Whether an event of this trigger may carry this reason (FAILED needs one; SUCCEEDED takes none…).
bool ReasonAllowed(JobTrigger trigger, Reason reason);

// SUCCEEDED, FAILED, CANCELLED: nothing follows.
bool HasEnded(JobState state);
// PREPARING, RUNNING, PAUSING, CANCELLING, FINALIZING: somebody works on it.
bool IsWorkedOn(JobState state);

// What a request of a user means in a state. kAlready: the job is there or on the way, so the
// request is answered with the job as it is (idempotence). kRefused: FAILED_PRECONDITION.
enum class RequestVerdict { kApply, kAlready, kRefused };
RequestVerdict JudgeRequest(JobState from, JobTrigger request);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_JOB_STATE_H_
