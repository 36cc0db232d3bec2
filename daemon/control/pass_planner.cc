#include "daemon/control/pass_planner.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

// A pass with fewer micro-batches must make the step so much shorter.
constexpr double kShorter = 0.99;
// Steps that are looked at to see how a set's passes are; fewer where a step has many.
constexpr int64_t kSampledSteps = 8, kSampledPasses = 16;

std::vector<engine::PassJob> LargestPasses(
    const std::vector<std::shared_ptr<const PreparedJob>>& jobs, int32_t micro_batches) {
  std::vector<engine::PassJob> passes;
  passes.reserve(jobs.size());
  for (const auto& job : jobs)
    passes.push_back(engine::LargestPass(job->id, job->shape, job->numeric,
                                         std::min(micro_batches, job->max_micro_batches())));
  return passes;
}

// So many of a step's micro-batches, from `first` on, at most those that are left.
absl::StatusOr<engine::PassJob> ShareOf(const PreparedJob& job,
                                        const std::vector<engine::MicroBatch>& step, int32_t first,
                                        int32_t most, bool train) {
  engine::PassJob share;
  share.job_id = job.id;
  share.lora = job.shape.lora;
  share.numeric = job.numeric;
  const int32_t left = static_cast<int32_t>(step.size()) - first;
  SOUP_ASSIGN_OR_RETURN(
      share.items, engine::MakePassItems(step, job.numeric, first, std::min(most, left), train));
  return share;
}

std::vector<engine::MicroBatch> MicroBatchesAt(const PreparedJob& job, const JobCursor& cursor) {
  return cursor.score ? job.validation->Step(1) : job.train.Step(cursor.step);
}

}  // namespace

int64_t SetTableBytes(const std::vector<std::shared_ptr<const PreparedJob>>& jobs, bool pinned) {
  const PreparedJob& first = *jobs.front();
  if (!pinned || first.numeric.backend != "cuda") return 0;
  std::vector<engine::LoraShape> adapters;
  adapters.reserve(jobs.size());
  for (const auto& job : jobs) adapters.push_back(job->shape.lora);
  return engine::PinnedTableBytes(
      engine::PinnedByJobs(first.shape.model, first.shape.format, adapters));
}

int64_t SetBudget(const std::vector<std::shared_ptr<const PreparedJob>>& jobs,
                  int64_t device_budget_bytes, int64_t overhead_bytes, int64_t table_bytes) {
  int64_t budget = device_budget_bytes - table_bytes;
  for (const auto& job : jobs) {
    const int64_t asked = job->spec.resources().vram_bytes();
    if (asked > 0) budget = std::min(budget, asked - overhead_bytes - table_bytes);
  }
  return std::max<int64_t>(budget, 0);
}

absl::StatusOr<engine::RunPasses> PassesOfSet(
    const std::vector<std::shared_ptr<const PreparedJob>>& jobs, int32_t micro_batches) {
  engine::RunPasses run;
  run.largest = LargestPasses(jobs, micro_batches);
  int64_t longest = 1, passes = 1;
  for (const auto& job : jobs) {
    longest = std::max(longest, job->steps_total());
    passes = std::max<int64_t>(passes, job->train.max_micro_batches() / micro_batches);
  }
  run.steps = std::clamp<int64_t>(kSampledPasses / passes, 1, std::min(kSampledSteps, longest));
  for (int64_t i = 0; i < run.steps; ++i) {
    for (int32_t first = 0;; first += micro_batches) {
      std::vector<engine::PassJob> pass;
      for (const auto& job : jobs) {
        // The same part of every job's way; one that has fewer steps is sampled more than once.
        const auto step = job->train.Step(1 + (2 * i + 1) * job->steps_total() / (2 * run.steps));
        if (first >= static_cast<int32_t>(step.size())) continue;
        SOUP_ASSIGN_OR_RETURN(engine::PassJob share,
                              ShareOf(*job, step, first, micro_batches, /*train=*/true));
        pass.push_back(std::move(share));
      }
      if (pass.empty()) break;
      run.sampled.push_back(std::move(pass));
    }
  }
  return run;
}

absl::StatusOr<SetPlan> PlanSet(const std::vector<std::shared_ptr<const PreparedJob>>& jobs,
                                int64_t budget_bytes, const engine::MachineProfile& profile,
                                int64_t host_budget_bytes) {
  const engine::ModelSpec& model = jobs.front()->shape.model;
  const engine::BaseFormat format = jobs.front()->shape.format;
  int32_t most = 1;
  for (const auto& job : jobs) most = std::max(most, job->max_micro_batches());
  absl::StatusOr<SetPlan> best = absl::InternalError("no pass was planned");
  for (int32_t m = std::min(most, kMaxMicroBatchesAPass); m >= 1; m /= 2) {
    SOUP_ASSIGN_OR_RETURN(const engine::RunPasses run, PassesOfSet(jobs, m));
    const auto plan = engine::ChoosePlacementForRun(
        model, format, run, engine::PlacementLimits{budget_bytes, host_budget_bytes}, profile);
    if (!plan.ok()) {
      if (!absl::IsResourceExhausted(plan.status())) return plan.status();
      if (!best.ok()) best = plan.status();
      continue;
    }
    if (best.ok() && plan->step.step_seconds >= best->step.step_seconds * kShorter) continue;
    best = SetPlan{plan->largest.placement, m, plan->largest.arena_bytes(),
                   plan->largest.host_bytes(), plan->step};
  }
  return best;
}

absl::StatusOr<int64_t> LeastBudget(const PreparedJob& job) {
  return engine::MinimumArenaBytes(job.shape.model, job.shape.format,
                                   {engine::LargestPass(job.id, job.shape, job.numeric, 1)});
}

absl::StatusOr<SetPlan> PassPlanner::Plan(
    const std::vector<std::shared_ptr<const PreparedJob>>& jobs, int64_t budget_bytes,
    const engine::MachineProfile& profile, int64_t host_budget_bytes) {
  std::vector<std::string> ids;
  for (const auto& job : jobs) ids.push_back(job->id);
  std::sort(ids.begin(), ids.end());
  const std::string key = absl::StrJoin(ids, ",");
  auto it = sets_.find(key);
  if (it != sets_.end() && (it->second.plan.ok() || budget_bytes <= it->second.budget_bytes))
    return it->second.plan;
  if (it == sets_.end() && sets_.size() >= kMaxSets) sets_.clear();
  return sets_
      .insert_or_assign(
          key, Known{PlanSet(jobs, budget_bytes, profile, host_budget_bytes), budget_bytes})
      .first->second.plan;
}

absl::StatusOr<soup::worker::v1::RunPass> PassPlanner::MakePass(
    const std::vector<PassMember>& members, const SetPlan& plan) {
  soup::worker::v1::RunPass pass;
  std::vector<engine::PassJob> jobs;
  for (const PassMember& member : members) {
    const PreparedJob& job = *member.job;
    SOUP_ASSIGN_OR_RETURN(
        engine::PassJob share,
        ShareOf(job, MicroBatchesAt(job, member.cursor), member.cursor.micro_batch,
                plan.micro_batches_a_pass, /*train=*/!member.cursor.score));
    soup::worker::v1::WorkItem* item = pass.add_items();
    item->set_job_id(job.id);
    item->set_step(member.cursor.step);
    item->set_first_micro_batch(member.cursor.micro_batch);
    item->set_micro_batches(static_cast<int32_t>(share.items.size()));
    item->set_score(member.cursor.score);
    jobs.push_back(std::move(share));
  }
  const PreparedJob& first = *members.front().job;
  pass.set_base_key(first.base_key);
  SOUP_ASSIGN_OR_RETURN(const engine::MemoryPlan memory,
                        engine::KeepMore(first.shape.model, first.shape.format, jobs,
                                         plan.placement, plan.arena_bytes));
  soup::worker::v1::Placement* placement = pass.mutable_placement();
  placement->set_text(engine::PlacementText(memory.placement));
  placement->set_arena_bytes(memory.arena_bytes());
  placement->set_hold_bytes(plan.arena_bytes);
  placement->set_hold_host_bytes(plan.host_bytes);
  return pass;
}

}  // namespace soup::daemon
