// PassPlanner: which placement a set of jobs of one base runs under, and what the next pass holds.
//
// A set is planned once, for room for the largest pass that its jobs can make and the shortest mean
// step, and keeps that placement while it stays the same: the slots are not laid anew every step.
// Smaller passes keep more in the room that the largest needs (engine::KeepMore). As many
// micro-batches go into a pass as make the step shortest (more share one stream of weights, fewer
// leave room to keep more of each), at most kMaxMicroBatchesAPass a job; a step with more takes
// several passes. Remembers the last sets. Not thread-safe: one thread plans.
#ifndef SOUP_DAEMON_CONTROL_PASS_PLANNER_H_
#define SOUP_DAEMON_CONTROL_PASS_PLANNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/control/prepared_job.h"
#include "engine/base/machine_profile.h"
#include "engine/plan/job_plan.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::daemon {

inline constexpr int32_t kMaxMicroBatchesAPass = 64;

struct SetPlan {
  engine::Placement placement;       // the least that every pass keeps
  int32_t micro_batches_a_pass = 1;  // a job
  int64_t arena_bytes = 0;           // of the largest pass: held throughout
  int64_t host_bytes = 0;            // that it keeps in pinned host memory: held too
  engine::Forecast step;             // predicted, mean of steps as the jobs make them
};

// Where a job stands: the next micro-batch of its next step, or of the validation after `step`.
struct JobCursor {
  int64_t step = 1;
  int32_t micro_batch = 0;
  bool score = false;
};

struct PassMember {
  std::shared_ptr<const PreparedJob> job;
  JobCursor cursor;
};

// Bytes of the device that map the host memory which the set pins whatever its placement: its base
// and its jobs' states (engine/plan/job_plan.h). 0 on the CPU, and where the worker could not pin.
int64_t SetTableBytes(const std::vector<std::shared_ptr<const PreparedJob>>& jobs, bool pinned);

// The most that each job of the set allows a pass to take on the device, and the device: the least
// of all. `overhead_bytes`: the process's own there, which job budgets include and the device's
// does not; `table_bytes`: SetTableBytes, which both include. Tables of a base that is pinned
// already are gone from the device's budget and are taken off it once more: 2 MB a GB too little.
int64_t SetBudget(const std::vector<std::shared_ptr<const PreparedJob>>& jobs,
                  int64_t device_budget_bytes, int64_t overhead_bytes, int64_t table_bytes);

// The plan of a set under a budget (`host_budget_bytes`: for what passes keep in host memory); not
// remembered. Errors: ResourceExhausted with both numbers.
absl::StatusOr<SetPlan> PlanSet(const std::vector<std::shared_ptr<const PreparedJob>>& jobs,
                                int64_t budget_bytes, const engine::MachineProfile& profile,
                                int64_t host_budget_bytes = INT64_MAX);
// The passes that the set makes with so many micro-batches of each job in one: the largest, and
// those of some steps spread over the jobs' training.
absl::StatusOr<engine::RunPasses> PassesOfSet(
    const std::vector<std::shared_ptr<const PreparedJob>>& jobs, int32_t micro_batches);
// The least budget of a job alone.
absl::StatusOr<int64_t> LeastBudget(const PreparedJob& job);

class PassPlanner {
 public:
  // A placement already chosen for the set stands, whatever the budget has become since: its arena
  // is held. Forget() makes the next call choose anew.
  absl::StatusOr<SetPlan> Plan(const std::vector<std::shared_ptr<const PreparedJob>>& jobs,
                               int64_t budget_bytes, const engine::MachineProfile& profile,
                               int64_t host_budget_bytes = INT64_MAX);
  void Forget() { sets_.clear(); }

  // The pass: each member's items from its cursor on, with the arena's exact bytes.
  static absl::StatusOr<soup::worker::v1::RunPass> MakePass(const std::vector<PassMember>& members,
                                                            const SetPlan& plan);

 private:
  static constexpr size_t kMaxSets = 64;
  struct Known {
    absl::StatusOr<SetPlan> plan;
    int64_t budget_bytes = 0;  // a failure holds for budgets up to this one
  };
  std::map<std::string, Known> sets_;  // by the jobs' ids
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_PASS_PLANNER_H_
