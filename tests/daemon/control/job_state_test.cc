#include "daemon/control/job_state.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

namespace soup::daemon {
namespace {

using namespace soup::v1;  // state names, as people write them
using T = JobTrigger;

// The whole table once more, written by state, as a reader of DESIGN.md would.
const std::map<std::pair<JobState, T>, JobState>& Expected() {
  static const auto* const kTable = new std::map<std::pair<JobState, T>, JobState>{
      {{QUEUED, T::kPrepareStarted}, PREPARING},
      {{QUEUED, T::kRunStarted}, RUNNING},
      {{QUEUED, T::kFailed}, FAILED},
      {{QUEUED, T::kPauseRequested}, PAUSED},
      {{QUEUED, T::kCancelRequested}, CANCELLED},
      {{PREPARING, T::kRunStarted}, RUNNING},
      {{PREPARING, T::kFailed}, FAILED},
      {{PREPARING, T::kRequeued}, QUEUED},
      {{PREPARING, T::kInterrupted}, QUEUED},
      {{PREPARING, T::kPauseRequested}, PAUSING},
      {{PREPARING, T::kPaused}, PAUSED},
      {{PREPARING, T::kCancelRequested}, CANCELLING},
      {{RUNNING, T::kFinalizeStarted}, FINALIZING},
      {{RUNNING, T::kFailed}, FAILED},
      {{RUNNING, T::kRequeued}, QUEUED},
      {{RUNNING, T::kInterrupted}, QUEUED},
      {{RUNNING, T::kPauseRequested}, PAUSING},
      {{RUNNING, T::kPaused}, PAUSED},
      {{RUNNING, T::kCancelRequested}, CANCELLING},
      {{PAUSING, T::kPaused}, PAUSED},
      {{PAUSING, T::kInterrupted}, PAUSED},
      {{PAUSING, T::kFailed}, FAILED},
      {{PAUSING, T::kCancelRequested}, CANCELLING},
      {{PAUSED, T::kResumeRequested}, QUEUED},
      {{PAUSED, T::kCancelRequested}, CANCELLED},
      {{CANCELLING, T::kCancelled}, CANCELLED},
      {{CANCELLING, T::kInterrupted}, CANCELLED},
      {{CANCELLING, T::kSucceeded}, SUCCEEDED},
      {{FINALIZING, T::kSucceeded}, SUCCEEDED},
      {{FINALIZING, T::kFailed}, FAILED},
      {{FINALIZING, T::kRequeued}, QUEUED},
      {{FINALIZING, T::kInterrupted}, QUEUED},
      {{FINALIZING, T::kPaused}, PAUSED},
      {{FINALIZING, T::kCancelRequested}, CANCELLING},
  };
  return *kTable;
}

TEST(JobState, EveryPairOfStateAndTriggerIsAsWritten) {
  for (const JobState from : kAllJobStates) {
    for (const JobTrigger trigger : kAllJobTriggers) {
      const auto it = Expected().find({from, trigger});
      const std::optional<JobState> want =
          it == Expected().end() ? std::nullopt : std::optional<JobState>(it->second);
      EXPECT_EQ(NextState(from, trigger), want)
          << JobStateName(from) << " + " << JobTriggerName(trigger);
    }
  }
  EXPECT_EQ(NextState(JOB_STATE_UNSPECIFIED, T::kRunStarted), std::nullopt);
}

TEST(JobState, EndedStatesLeadNowhereAndAllOthersCanEndAndBeCancelled) {
  for (const JobState start : kAllJobStates) {
    std::set<JobState> reached = {start};
    bool grew = true;
    while (grew) {
      grew = false;
      for (const JobState from : std::set<JobState>(reached)) {
        for (const JobTrigger trigger : kAllJobTriggers) {
          const auto to = NextState(from, trigger);
          if (to.has_value()) grew |= reached.insert(*to).second;
        }
      }
    }
    if (HasEnded(start)) {
      EXPECT_EQ(reached.size(), 1u) << JobStateName(start);
    } else {
      EXPECT_TRUE(reached.count(CANCELLED)) << JobStateName(start);
      EXPECT_TRUE(reached.count(SUCCEEDED)) << JobStateName(start);
    }
  }
}

TEST(JobState, ACancelledJobNeverEndsFailed) {
  for (const JobTrigger trigger : kAllJobTriggers) {
    EXPECT_NE(NextState(CANCELLING, trigger), std::optional<JobState>(FAILED));
    EXPECT_NE(NextState(CANCELLING, trigger), std::optional<JobState>(QUEUED));
  }
}

TEST(JobState, WhatIsWorkedOnCanBeInterrupted) {
  for (const JobState state : kAllJobStates) {
    EXPECT_EQ(NextState(state, T::kInterrupted).has_value(), IsWorkedOn(state))
        << JobStateName(state);
    EXPECT_FALSE(IsWorkedOn(state) && HasEnded(state));
  }
}

TEST(JobState, RequestsAreAppliedOnceThenAnsweredAlikeOrRefused) {
  for (const JobTrigger request : {T::kPauseRequested, T::kResumeRequested, T::kCancelRequested}) {
    for (const JobState from : kAllJobStates) {
      const RequestVerdict verdict = JudgeRequest(from, request);
      const auto to = NextState(from, request);
      EXPECT_EQ(verdict == RequestVerdict::kApply, to.has_value());
      if (to.has_value()) {
        EXPECT_EQ(JudgeRequest(*to, request), RequestVerdict::kAlready)
            << JobStateName(from) << " " << JobTriggerName(request);
      }
    }
  }
  EXPECT_EQ(JudgeRequest(SUCCEEDED, T::kCancelRequested), RequestVerdict::kRefused);
  EXPECT_EQ(JudgeRequest(CANCELLED, T::kCancelRequested), RequestVerdict::kAlready);
  EXPECT_EQ(JudgeRequest(PAUSING, T::kResumeRequested), RequestVerdict::kRefused);
  EXPECT_EQ(JudgeRequest(FINALIZING, T::kPauseRequested), RequestVerdict::kRefused);
  EXPECT_EQ(JudgeRequest(FAILED, T::kResumeRequested), RequestVerdict::kRefused);
  // A trigger that is no request of a user's is never one, where the table does not allow it.
  EXPECT_EQ(JudgeRequest(QUEUED, T::kSucceeded), RequestVerdict::kRefused);
}

TEST(JobState, ReasonsGoWithTheirTriggers) {
  EXPECT_FALSE(ReasonAllowed(T::kFailed, REASON_UNSPECIFIED));
  EXPECT_FALSE(ReasonAllowed(T::kFailed, STORAGE));  // a full disk pauses
  EXPECT_TRUE(ReasonAllowed(T::kPaused, STORAGE));
  EXPECT_TRUE(ReasonAllowed(T::kPaused, DEVICE_LOST));
  EXPECT_TRUE(ReasonAllowed(T::kPaused, INVALID_INPUT));
  EXPECT_TRUE(ReasonAllowed(T::kInterrupted, WORKER_LOST));
  EXPECT_TRUE(ReasonAllowed(T::kRequeued, PREEMPTED));
  EXPECT_FALSE(ReasonAllowed(T::kSucceeded, USER_REQUEST));
  EXPECT_FALSE(ReasonAllowed(T::kCancelRequested, REASON_UNSPECIFIED));
  for (const JobTrigger trigger : kAllJobTriggers) {
    bool any = false;
    for (int r = 0; r <= Reason_MAX; ++r) any |= ReasonAllowed(trigger, static_cast<Reason>(r));
    EXPECT_TRUE(any) << JobTriggerName(trigger);
  }
}

TEST(JobState, NamesAreThoseOfTheProto) {
  EXPECT_STREQ(JobStateName(RUNNING), "RUNNING");
  EXPECT_STREQ(ReasonName(STORAGE), "STORAGE");
  EXPECT_STREQ(ReasonName(REASON_UNSPECIFIED), "");
}

}  // namespace
}  // namespace soup::daemon
