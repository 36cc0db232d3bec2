// JobPreparer: from a job's record to a PreparedJob. Reads headers and config, tokenises the data
// in a --prepare worker, makes the numeric plan (or takes the one frozen in the record), and brings
// the base into host memory.
//
// What it learns is kept beside the job (dataset.sds, prepared.bin), so that a job is prepared
// once: after a restart, only the base is fetched again. Blocking; thread-safe: call it on threads
// of your own. Cancellation is obeyed within a second, or when the file is through whose
// SHA-256 is being taken.
#ifndef SOUP_DAEMON_CONTROL_JOB_PREPARER_H_
#define SOUP_DAEMON_CONTROL_JOB_PREPARER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache/base_cache.h"
#include "daemon/control/cancellation.h"
#include "daemon/control/config.h"
#include "daemon/control/job_store.h"
#include "daemon/control/prepare_runner.h"
#include "daemon/control/prepared_job.h"
#include "engine/base/machine_profile.h"
#include "soup/v1/soup.pb.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::daemon {

// Why a job could not be prepared, as its state will tell it.
struct PrepareFailure {
  enum class Then {
    kFail,
    kPause,      // STORAGE
    kWait,       // no room in host memory or no descriptors just now: others hold them
    kCancelled,  // as asked
  };
  Then then = Then::kFail;
  soup::v1::Reason reason = soup::v1::INTERNAL;
  std::string message;
};

struct PrepareOutcome {
  std::shared_ptr<const PreparedJob> job;  // null: `failure` says why
  PrepareFailure failure;
  // Learned on the way; also when a later step failed, where not empty.
  soup::v1::DatasetReport dataset;
  std::vector<std::string> warnings;
  bool imported = false;  // the base was not in the shard store
};

// What a base's folder holds. A folder that is there (its path was checked) and lacks a file is
// InvalidArgument: the spec's fault, not a thing that the caller asked for by name.
absl::StatusOr<cache::InspectedModel> InspectBase(cache::BaseCache* cache,
                                                  const std::string& base_real_path,
                                                  engine::BaseFormat format);

class JobPreparer {
 public:
  using ProgressFn = std::function<void(const soup::v1::Progress&)>;
  // The machine profile of a worker; waits for one. Errors: Cancelled, Unavailable.
  using ProfileFn = std::function<absl::StatusOr<engine::MachineProfile>(Cancellation*)>;

  // Borrows all of it.
  JobPreparer(const Config* config, cache::BaseCache* cache, PrepareRunner* runner,
              ProfileFn profile);

  // `store_numeric_plan`: freezes the plan in the record before anything is run with it.
  PrepareOutcome Prepare(const JobRecord& record, Cancellation* cancel, const ProgressFn& progress,
                         const std::function<absl::Status(const std::string&)>& store_numeric_plan);

  // Everything but the base, and nothing kept: what Plan answers with. The reply of the tokeniser
  // is left in `reply`.
  absl::StatusOr<std::shared_ptr<const PreparedJob>> PlanOnly(
      const soup::v1::JobSpec& spec, const std::string& base_real_path, Cancellation* cancel,
      absl::Time deadline, soup::worker::v1::PrepareReply* reply);

  // The request for a --prepare worker; output_path stays empty.
  absl::StatusOr<soup::worker::v1::PrepareRequest> MakeRequest(const soup::v1::JobSpec& spec,
                                                               const std::string& base_real_path,
                                                               engine::ModelSpec* model);

 private:
  PrepareOutcome PrepareOnce(
      const JobRecord& record, Cancellation* cancel, const ProgressFn& progress,
      const std::function<absl::Status(const std::string&)>& store_numeric_plan);
  struct Data {
    engine::ModelSpec model;
    soup::worker::v1::PrepareReply reply;
  };
  // What was learned of the job's data (prepared.bin).
  absl::StatusOr<soup::worker::v1::PrepareReply> ReadReply(const std::string& id);
  // Errors: whatever is wrong; the data is prepared anew then.
  absl::StatusOr<Data> LoadPrepared(const JobRecord& record);
  absl::StatusOr<Data> MakePrepared(const JobRecord& record, Cancellation* cancel,
                                    const ProgressFn& progress, PrepareFailure* failure);
  absl::StatusOr<cache::BaseLease> AcquireBase(const JobRecord& record, Cancellation* cancel,
                                               const ProgressFn& progress, PrepareFailure* failure);

  const Config* const config_;
  cache::BaseCache* const cache_;
  PrepareRunner* const runner_;
  const ProfileFn profile_;
};

// The reason that a status of the cache or the planner stands for.
soup::v1::Reason ReasonOf(const absl::Status& status);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_JOB_PREPARER_H_
