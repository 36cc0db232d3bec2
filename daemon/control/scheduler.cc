#include "daemon/control/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace soup::daemon {
namespace {

int EffectivePriority(const SchedulerJob& job, double aging_seconds) {
  int p = static_cast<int>(job.priority);
  if (aging_seconds > 0) p += static_cast<int>(std::min(job.waited_seconds / aging_seconds, 1e6));
  return p;
}

// The fair order of jobs: users take turns by service, each turn adding the cost of the job taken.
std::vector<const SchedulerJob*> FairOrder(const std::vector<SchedulerJob>& jobs,
                                           const FairShare& share, double aging_seconds) {
  struct Turn {
    double service = 0;
    std::vector<const SchedulerJob*> jobs;
    size_t next = 0;
  };
  std::map<std::string, Turn> users;
  for (const SchedulerJob& job : jobs) {
    Turn& turn = users[job.user];
    turn.service = share.Service(job.user);
    turn.jobs.push_back(&job);
  }
  for (auto& [name, turn] : users) {
    std::sort(turn.jobs.begin(), turn.jobs.end(),
              [&](const SchedulerJob* a, const SchedulerJob* b) {
                const int pa = EffectivePriority(*a, aging_seconds);
                const int pb = EffectivePriority(*b, aging_seconds);
                return pa != pb ? pa > pb : a->order < b->order;
              });
  }
  std::vector<const SchedulerJob*> order;
  order.reserve(jobs.size());
  while (order.size() < jobs.size()) {
    Turn* best = nullptr;
    for (auto& [name, turn] : users) {
      if (turn.next == turn.jobs.size()) continue;
      // Equal service: whoever submitted first.
      if (best == nullptr || turn.service < best->service ||
          (turn.service == best->service &&
           turn.jobs[turn.next]->order < best->jobs[best->next]->order))
        best = &turn;
    }
    const SchedulerJob* job = best->jobs[best->next++];
    best->service += std::max(job->cost_seconds, 1e-6) / PriorityWeight(job->priority);
    order.push_back(job);
  }
  return order;
}

}  // namespace

Priority ParsePriority(absl::string_view name) {
  if (name == "low") return Priority::kLow;
  if (name == "high") return Priority::kHigh;
  return Priority::kNormal;
}

double PriorityWeight(Priority priority) {
  switch (priority) {
    case Priority::kLow:
      return 0.5;
    case Priority::kNormal:
      return 1;
    case Priority::kHigh:
      return 2;
  }
  return 1;
}

void FairShare::SetActive(const std::vector<std::string>& active) {
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& user : active) {
    auto it = accounts_.find(user);
    if (it != accounts_.end() && it->second.active) least = std::min(least, it->second.service);
  }
  if (!std::isfinite(least)) least = 0;  // nobody stayed: everybody starts with what they had
  for (auto& [user, account] : accounts_) {
    if (account.active && std::find(active.begin(), active.end(), user) == active.end()) {
      account.active = false;
      account.left_at = ++departures_;
    }
  }
  for (const std::string& user : active) {
    Account& account = accounts_[user];
    if (!account.active) account.service = std::max(account.service, least);
    account.active = true;
  }
  size_t idle = 0;
  for (const auto& [user, account] : accounts_) idle += !account.active;
  while (idle > kMaxIdleUsers) {
    auto oldest = accounts_.end();
    for (auto it = accounts_.begin(); it != accounts_.end(); ++it) {
      if (it->second.active) continue;
      if (oldest == accounts_.end() || it->second.left_at < oldest->second.left_at) oldest = it;
    }
    accounts_.erase(oldest);
    --idle;
  }
}

void FairShare::Charge(const std::string& user, Priority priority, double device_seconds) {
  if (!(device_seconds > 0)) return;
  accounts_[user].service += device_seconds / PriorityWeight(priority);
}

double FairShare::Service(const std::string& user) const {
  auto it = accounts_.find(user);
  return it == accounts_.end() ? 0 : it->second.service;
}

std::vector<std::string> QueueOrder(const std::vector<SchedulerJob>& queued, const FairShare& share,
                                    double aging_seconds) {
  std::vector<std::string> ids;
  for (const SchedulerJob* job : FairOrder(queued, share, aging_seconds)) ids.push_back(job->id);
  return ids;
}

std::vector<std::string> AdmitJobs(const std::vector<SchedulerJob>& queued,
                                   const std::map<std::string, int32_t>& active_per_user,
                                   const FairShare& share, const AdmissionLimits& limits) {
  std::map<std::string, int32_t> active = active_per_user;
  int32_t total = 0;
  for (const auto& [user, n] : active) total += n;
  std::vector<std::string> admitted;
  for (const SchedulerJob* job : FairOrder(queued, share, limits.aging_seconds)) {
    if (total >= limits.running) break;
    int32_t& mine = active[job->user];
    if (mine >= limits.running_per_user) continue;
    ++mine;
    ++total;
    admitted.push_back(job->id);
  }
  return admitted;
}

PassChoice NextPass(const std::vector<SchedulerJob>& runnable, const FairShare& share,
                    const PassLimits& limits, const std::string& loaded_base, double loaded_seconds,
                    const std::function<bool(const std::vector<std::string>&)>& fits) {
  PassChoice choice;
  std::vector<const SchedulerJob*> order = FairOrder(runnable, share, limits.aging_seconds);
  // While the loaded base still has its turn, its jobs go first, in the same order.
  if (!loaded_base.empty() && loaded_seconds < limits.base_quantum_seconds)
    std::stable_partition(order.begin(), order.end(),
                          [&](const SchedulerJob* job) { return job->base_key == loaded_base; });
  for (const SchedulerJob* job : order) {
    if (static_cast<int32_t>(choice.job_ids.size()) >= limits.jobs_per_pass) break;
    if (choice.empty()) {
      if (fits({job->id})) {
        choice.base_key = job->base_key;
        choice.job_ids.push_back(job->id);
      } else {
        choice.unfit.push_back(job->id);
      }
      continue;
    }
    if (job->base_key != choice.base_key) continue;
    choice.job_ids.push_back(job->id);
    if (!fits(choice.job_ids)) choice.job_ids.pop_back();
  }
  return choice;
}

}  // namespace soup::daemon
