// PrepareRunner: runs `soup-worker --prepare`, which reads, tokenises and packs a user's data apart
// from soupd, with limited memory and time.
//
// Run() blocks until the reply, the deadline or a cancellation; at most `max_at_once` children live
// at a time, others wait their turn. A child that is killed from outside (by the kernel, for want
// of memory) is started again, twice at most. A child that dies without a reply, or is ended since
// it gave no sign of life for `silence_limit`, becomes a reply with ok = false and a reason.
// Thread-safe.
#ifndef SOUP_DAEMON_CONTROL_PREPARE_RUNNER_H_
#define SOUP_DAEMON_CONTROL_PREPARE_RUNNER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/control/cancellation.h"
#include "soup/v1/soup.pb.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::daemon {

struct PrepareRunnerOptions {
  std::string binary;
  int32_t max_at_once = 2;
  int64_t memory_limit_bytes = int64_t{4} << 30;
  int64_t cpu_limit_seconds = 600;
  // A child tells of its progress all the time while it reads; one that waits for a file system
  // that does not answer uses no CPU time either, and holds a place of `max_at_once`.
  absl::Duration silence_limit = absl::Minutes(15);
};

class PrepareRunner {
 public:
  explicit PrepareRunner(PrepareRunnerOptions options);
  PrepareRunner(const PrepareRunner&) = delete;
  PrepareRunner& operator=(const PrepareRunner&) = delete;

  // Limits of memory and time are filled in here. Errors: Cancelled, DeadlineExceeded, Unavailable
  // (no descriptors just now), others (no child could be started). What is wrong with the data is
  // in the reply.
  absl::StatusOr<soup::worker::v1::PrepareReply> Run(
      soup::worker::v1::PrepareRequest request, Cancellation* cancel, absl::Time deadline,
      const std::function<void(const soup::v1::Progress&)>& progress = nullptr);

 private:
  absl::Status AwaitTurn(Cancellation* cancel, absl::Time deadline);
  // One child. `killed`: it died of SIGKILL.
  absl::StatusOr<soup::worker::v1::PrepareReply> RunOnce(
      const soup::worker::v1::PrepareRequest& request, Cancellation* cancel, absl::Time deadline,
      const std::function<void(const soup::v1::Progress&)>& progress, bool* killed);

  const PrepareRunnerOptions options_;
  absl::Mutex mu_;
  int32_t running_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_PREPARE_RUNNER_H_
