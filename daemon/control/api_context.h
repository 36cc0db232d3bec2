// What the API's handlers work with: references to things that main() owns and that outlive the
// server, and the two helpers that every handler begins with (who calls; are we draining).
// Thread-safe.
#ifndef SOUP_DAEMON_CONTROL_API_CONTEXT_H_
#define SOUP_DAEMON_CONTROL_API_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/auth.h"
#include "daemon/control/config.h"
#include "daemon/control/event_hub.h"
#include "daemon/control/job_store.h"
#include "daemon/control/orchestrator.h"
#include "daemon/control/step_log.h"
#include "daemon/control/thread_pool.h"
#include "daemon/control/uploads.h"
#include "engine/base/clock.h"

namespace soup::daemon {

struct ApiContext {
  const Config& config;
  const engine::Clock& clock;
  JobStore& store;
  StepLogs& steps;
  EventHub& hub;
  Uploads& uploads;
  Orchestrator& orchestrator;
  const PeerTable& peers;
  const Admins& admins;
  TokenFile* tokens;      // null: no TCP endpoint, or mutual TLS only
  ThreadPool& pool;       // answers from records: milliseconds
  ThreadPool& slow_pool;  // plans, previews, prefetches, hashes: seconds and more
  int64_t heartbeat_ms = 5000;
  std::atomic<bool> draining{false};

  // Unauthenticated when the endpoint did not say who it is.
  absl::StatusOr<Principal> Authenticate(const grpc::ServerContextBase& call) const;
  // Unavailable while soupd stops.
  absl::Status CheckServing() const;

  // The job `name_or_id` if `who` may see it: an id, else the newest of the caller's with that name
  // (for an admin: of anybody's, when there is none of his own). NotFound otherwise, whatever the
  // cause.
  absl::StatusOr<JobRecord> FindJob(const Principal& who, const std::string& name_or_id) const;
  // The job with what the step log and the scheduler know.
  soup::v1::Job Complete(const JobRecord& record) const;
};

CallLimits LimitsOf(const grpc::CallbackServerContext& call);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_API_CONTEXT_H_
