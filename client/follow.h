// Following a job to its end as the verbs submit --wait, submit --watch, watch and wait do it:
// shows it, fills the caller's output folder when it SUCCEEDED, and ends with its outcome.
#ifndef SOUP_CLIENT_FOLLOW_H_
#define SOUP_CLIENT_FOLLOW_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli.h"

namespace soup::client {

struct FollowFlags {
  bool show_steps = true;  // watch; false: wait
  int64_t every = 1;       // on a non-terminal: every n-th step
  int64_t after_step = 0;  // steps up to this one are not shown
  int64_t after_sequence = 0;
  std::string timeout;  // "10m"; empty: none
  std::string output;   // instead of the job's own
  bool no_fetch = false;
};

// --timeout, --output, --no-fetch, and with `steps` also --every, --after-step, --after-sequence.
void AddFollowFlags(CLI::App* verb, FollowFlags* flags, bool steps);

// `job` as Get or Submit gave it. OK when it SUCCEEDED and its adapter is in the output folder;
// otherwise JobOutcome, a wait's timeout (exit code 6), a detach (130, 143) or an error.
absl::Status Follow(Cli* cli, Api* api, const soup::v1::Job& job, const FollowFlags& flags);

// Downloads the adapter to `output` (absolute or from the current folder), else the job's own.
absl::Status FetchTo(Cli* cli, Api* api, const soup::v1::Job& job, const std::string& output);

}  // namespace soup::client

#endif  // SOUP_CLIENT_FOLLOW_H_
