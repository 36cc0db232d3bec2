// What the API asks of the part of soupd that does the work: scheduler, preparation, base manager
// and workers. The API calls it; tests put a fake in its place.
//
// The division: the API writes the requests of users into the job store (Submit, PauseRequested,
// ResumeRequested, CancelRequested as transitions) and then tells the orchestrator, which acts
// and writes every other transition itself. A call that tells (JobSubmitted … CancelRequested) is
// quick, never blocks on work, and may come late or twice: the store is the truth.
//
// Threads: any, several at once; calls that answer may block (pool threads of the API) but observe
// `deadline` and `cancelled`.
#ifndef SOUP_DAEMON_CONTROL_ORCHESTRATOR_H_
#define SOUP_DAEMON_CONTROL_ORCHESTRATOR_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "soup/v1/job.pb.h"
#include "soup/v1/soup.pb.h"

namespace soup::daemon {

// How long an answer may take, and whether the caller is still there.
struct CallLimits {
  absl::Time deadline = absl::InfiniteFuture();
  std::function<bool()> cancelled = [] { return false; };
};

class Orchestrator {
 public:
  virtual ~Orchestrator() = default;

  // ---- life ----
  // Takes up the unfinished jobs of the store (applies Interrupted to those that were worked on),
  // starts workers. Called once, before the endpoints open.
  virtual absl::Status Start() = 0;
  // No new passes; running jobs are brought to a step boundary and checkpointed, and workers
  // stopped, by `deadline`; what is not done by then is cut (mirrors keep it). Called once.
  virtual void Drain(absl::Time deadline) = 0;
  // Grows while work advances or there is none to do; the systemd watchdog is fed only while it
  // does.
  virtual uint64_t ProgressTick() const = 0;

  // ---- told after the store has it ----
  virtual void JobSubmitted(const std::string& job_id) = 0;
  virtual void PauseRequested(const std::string& job_id) = 0;
  virtual void ResumeRequested(const std::string& job_id) = 0;
  virtual void CancelRequested(const std::string& job_id) = 0;

  // ---- asked ----
  // Cheap checks at submit, after spec_validator's: the base's config is parsed, its family and
  // format are supported, a given vram budget is not below the least possible. Reads only small
  // files under `base_real_path`. InvalidArgument, FailedPrecondition, ResourceExhausted with the
  // remedy.
  virtual absl::Status CheckSubmit(const soup::v1::JobSpec& spec, const std::string& user,
                                   const std::string& base_real_path) = 0;
  // Tokenises by a --prepare worker and plans; no state is left. The spec has been validated.
  virtual absl::StatusOr<soup::v1::PlanReply> Plan(const soup::v1::JobSpec& spec,
                                                   const std::string& user,
                                                   const std::string& base_real_path,
                                                   const CallLimits& limits) = 0;
  virtual absl::StatusOr<soup::v1::PreviewDataReply> PreviewData(const soup::v1::JobSpec& spec,
                                                                 const std::string& user,
                                                                 const std::string& base_real_path,
                                                                 int records,
                                                                 const CallLimits& limits) = 0;

  using ProgressFn = std::function<void(const soup::v1::Progress&)>;
  // Brings a base into the shard cache (not into the host store).
  virtual absl::StatusOr<soup::v1::CacheEntry> Prefetch(const soup::v1::BaseSpec& base,
                                                        const std::string& base_real_path,
                                                        const ProgressFn& progress,
                                                        const CallLimits& limits) = 0;
  virtual absl::StatusOr<soup::v1::ListCacheReply> ListCache() = 0;
  // Freed bytes, verified. FailedPrecondition when in use (names the jobs), NotFound.
  virtual absl::StatusOr<int64_t> Evict(const std::string& fingerprint,
                                        const std::string& format) = 0;

  // Fills devices, bases, workers, cache_bytes, cache_cap_bytes and, when its own storage (RocksDB)
  // is not healthy, storage_healthy = false with a message. Leaves the rest alone.
  virtual void FillNode(soup::v1::Node* node) = 0;
  // 1: next; 0: not queued.
  virtual int64_t QueuePosition(const std::string& job_id) = 0;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_ORCHESTRATOR_H_
