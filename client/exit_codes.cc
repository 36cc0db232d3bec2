#include "client/exit_codes.h"

#include <csignal>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/terminal.h"

namespace soup::client {
namespace {

constexpr char kExitCodeUrl[] = "soup.client/exit_code";
constexpr char kRemoteUrl[] = "soup.client/remote";

absl::StatusCode ToAbsl(grpc::StatusCode code) {
  // The two enumerations share their numbers (grpc/status.h, absl/status/status.h).
  return static_cast<absl::StatusCode>(static_cast<int>(code));
}

ExitCode ForRemoteCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kAuth;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kUnavailable;
    default:
      return ExitCode::kError;
  }
}

}  // namespace

absl::Status ErrorWithExitCode(ExitCode code, absl::string_view message) {
  absl::Status status = absl::UnknownError(message);
  status.SetPayload(kExitCodeUrl, absl::Cord(absl::StrCat(static_cast<int>(code))));
  return status;
}

absl::Status UsageError(absl::string_view message) {
  return ErrorWithExitCode(ExitCode::kUsage, message);
}

absl::Status FromGrpc(const grpc::Status& status, absl::string_view doing) {
  if (status.ok()) return absl::OkStatus();
  std::string message = status.error_message();
  if (message.empty()) {
    message = absl::StrCat("soupd answered ", absl::StatusCodeToString(ToAbsl(status.error_code())),
                           " without a message");
  }
  // Errors of data quote it.
  absl::Status out(ToAbsl(status.error_code()), absl::StrCat(doing, ": ", PrintableLines(message)));
  out.SetPayload(kRemoteUrl, absl::Cord("1"));
  return out;
}

absl::Status InterruptedError(int signal_number, absl::string_view message) {
  return ErrorWithExitCode(
      signal_number == SIGTERM ? ExitCode::kTerminated : ExitCode::kInterrupted, message);
}

bool IsRemote(const absl::Status& status) { return status.GetPayload(kRemoteUrl).has_value(); }

bool IsRetriable(const absl::Status& status) {
  return IsRemote(status) && status.code() == absl::StatusCode::kUnavailable;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return ExitCode::kOk;
  if (const auto payload = status.GetPayload(kExitCodeUrl)) {
    int code = 0;
    if (absl::SimpleAtoi(std::string(*payload), &code)) return static_cast<ExitCode>(code);
  }
  return IsRemote(status) ? ForRemoteCode(status.code()) : ExitCode::kError;
}

ExitCode ExitCodeOf(soup::v1::JobState state) {
  switch (state) {
    case soup::v1::SUCCEEDED:
      return ExitCode::kOk;
    case soup::v1::FAILED:
      return ExitCode::kJobFailed;
    case soup::v1::CANCELLED:
      return ExitCode::kCancelled;
    case soup::v1::PAUSED:
      return ExitCode::kPaused;
    default:
      return ExitCode::kError;
  }
}

absl::Status JobOutcome(const soup::v1::Job& job) {
  if (job.state() == soup::v1::SUCCEEDED) return absl::OkStatus();
  std::string message = absl::StrCat("job ", job.id(), " is ", JobState_Name(job.state()));
  if (job.reason() != soup::v1::REASON_UNSPECIFIED) {
    absl::StrAppend(&message, " (", Reason_Name(job.reason()), ")");
  }
  if (!job.message().empty()) absl::StrAppend(&message, ": ", job.message());
  if (job.state() == soup::v1::PAUSED)
    absl::StrAppend(&message, "; to let it go on: soupctl resume ", job.id());
  return ErrorWithExitCode(ExitCodeOf(job.state()), message);
}

bool IsPausedBySystem(const soup::v1::Job& job) {
  return job.state() == soup::v1::PAUSED && job.reason() != soup::v1::USER_REQUEST;
}

bool IsTerminal(soup::v1::JobState state) {
  return state == soup::v1::SUCCEEDED || state == soup::v1::FAILED || state == soup::v1::CANCELLED;
}

}  // namespace soup::client
