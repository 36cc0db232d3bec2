// The exit codes of soupctl, and the one place that decides which error gets which.
//
//   0 done                     3 the job FAILED            6 a wait ran out of time
//   1 any other error          4 not allowed (no or wrong  7 no such job, artifact or base
//   2 the command line or the    token, not the owner)     8 soupd cannot be reached, or is
//     job file is wrong        5 the job was CANCELLED       draining
//   130, 143: ended by SIGINT, SIGTERM (a watch has detached: the job goes on)
//
// An absl::Status alone does not tell a file of the caller's that is missing from a job that is,
// so errors carry where they come from as a payload: made by UsageError, FromGrpc, and the others
// below. Pure functions; thread-safe.
#ifndef SOUP_CLIENT_EXIT_CODES_H_
#define SOUP_CLIENT_EXIT_CODES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"
#include "soup/v1/job.pb.h"

namespace soup::client {

enum class ExitCode : int {
  kOk = 0,
  kError = 1,
  kUsage = 2,
  kJobFailed = 3,
  kAuth = 4,
  kCancelled = 5,
  kWaitTimeout = 6,
  kNotFound = 7,
  kUnavailable = 8,
  kPaused = 9,  // by soupd: it stands still until somebody acts
  kInterrupted = 130,
  kTerminated = 143,
};

// The command line or the job file is wrong; nothing was sent.
absl::Status UsageError(absl::string_view message);
// An answer of soupd. `doing` says what was asked ("get notes-8b") and opens the message.
absl::Status FromGrpc(const grpc::Status& status, absl::string_view doing);
// An error with an exit code of its own.
absl::Status ErrorWithExitCode(ExitCode code, absl::string_view message);
// A signal ended the work: 130 for SIGINT, 143 for SIGTERM.
absl::Status InterruptedError(int signal_number, absl::string_view message);

// True for errors that came over the wire (made by FromGrpc).
bool IsRemote(const absl::Status& status);
// True when the same call may be made again: soupd was not reached, is draining, or the
// connection broke.
bool IsRetriable(const absl::Status& status);

ExitCode ExitCodeOf(const absl::Status& status);
// Of a job that has ended; kError for a state that is not an end.
ExitCode ExitCodeOf(soup::v1::JobState state);
// OK for SUCCEEDED, otherwise an error with the state's exit code, the reason and the message.
absl::Status JobOutcome(const soup::v1::Job& job);
// PAUSED, and not because somebody asked for it: it stands still until somebody acts.
bool IsPausedBySystem(const soup::v1::Job& job);
// SUCCEEDED, FAILED or CANCELLED.
bool IsTerminal(soup::v1::JobState state);

}  // namespace soup::client

#endif  // SOUP_CLIENT_EXIT_CODES_H_
