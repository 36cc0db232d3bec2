// Who runs next: pure decisions about admission and passes, without I/O or clocks.
//
// Two decisions. AdmitJobs: which QUEUED jobs may begin to prepare, under the quotas. NextPass:
// which of the prepared jobs make up the next pass over a base's weights. Both rest on one fair
// order:
//   - between users: the user with the least service goes first, service being device seconds
//     divided by the weight of the priority they were used at (FairShare);
//   - within a user: higher priority first, and a job that has waited `aging_seconds` counts one
//     priority higher for each such span, so that nothing waits for ever;
//   - within a user and priority: in the order of submission.
// The head of the order chooses the base; further jobs on that base join in the same order as long
// as their joint plan fits. A base that is loaded keeps its turn for at most `base_quantum_seconds`
// while others wait, so that two users on two bases do not pay a reload of the slots every step.
//
// Plain values, deterministic; any thread.
#ifndef SOUP_DAEMON_CONTROL_SCHEDULER_H_
#define SOUP_DAEMON_CONTROL_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace soup::daemon {

enum class Priority : uint8_t { kLow, kNormal, kHigh };

// "low" | "normal" | "high"; anything else, and empty, is normal (validated at submit).
Priority ParsePriority(absl::string_view name);
double PriorityWeight(Priority priority);  // 0.5, 1, 2

// Service that users have had. A user who comes back after a pause does not get the time of the
// pause as credit: on joining, service is lifted to the least of those who are active.
class FairShare {
 public:
  // Makes `active` (users with work) current: joiners are lifted, the absent are kept for their
  // return but forgotten when `max_idle_users` others have left after them.
  void SetActive(const std::vector<std::string>& active);
  void Charge(const std::string& user, Priority priority, double device_seconds);
  double Service(const std::string& user) const;

 private:
  struct Account {
    double service = 0;
    bool active = false;
    int64_t left_at = 0;  // counts departures
  };
  static constexpr size_t kMaxIdleUsers = 1024;
  std::map<std::string, Account> accounts_;
  int64_t departures_ = 0;
};

struct SchedulerJob {
  std::string id;
  std::string user;
  Priority priority = Priority::kNormal;
  std::string base_key;
  int64_t order = 0;           // of submission; unique
  double waited_seconds = 0;   // since its last pass, or since it became runnable
  double cost_seconds = 0.01;  // what its share of a pass is thought to take
};

struct AdmissionLimits {
  int32_t running_per_user = 4;  // jobs in PREPARING .. FINALIZING
  int32_t running = 64;          // of all users
  double aging_seconds = 600;
};

// Ids of queued jobs to admit now, in order. `active_per_user`: jobs that hold a place already.
std::vector<std::string> AdmitJobs(const std::vector<SchedulerJob>& queued,
                                   const std::map<std::string, int32_t>& active_per_user,
                                   const FairShare& share, const AdmissionLimits& limits);

// All queued jobs in the order in which they would be admitted were there no limits.
std::vector<std::string> QueueOrder(const std::vector<SchedulerJob>& queued, const FairShare& share,
                                    double aging_seconds);

struct PassLimits {
  int32_t jobs_per_pass = 16;
  double base_quantum_seconds = 5;
  double aging_seconds = 600;
};

struct PassChoice {
  std::string base_key;
  std::vector<std::string> job_ids;  // the first is the one whose turn it is
  // Jobs that came first in the order but do not fit the device even alone, now.
  std::vector<std::string> unfit;
  bool empty() const { return job_ids.empty(); }
};

// `fits`: whether the joint plan of these jobs (same base, not empty) fits the budget. Asked once a
// candidate; must be monotone: no set fits of which a subset does not.
// `loaded_base`: empty when none; `loaded_seconds`: how long it has had its turn.
PassChoice NextPass(const std::vector<SchedulerJob>& runnable, const FairShare& share,
                    const PassLimits& limits, const std::string& loaded_base, double loaded_seconds,
                    const std::function<bool(const std::vector<std::string>&)>& fits);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_SCHEDULER_H_
