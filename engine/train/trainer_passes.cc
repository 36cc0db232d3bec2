// Passes: from a request to rows, memory and items, and through the device.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"
#include "engine/train/trainer_rep.h"

namespace soup::engine {

namespace {
constexpr int64_t kF32Bytes = 4;
}

absl::StatusOr<PassShare> Trainer::Rep::MakeShare(const WorkRequest& request) const {
  PassShare share;
  share.request = request;
  SOUP_ASSIGN_OR_RETURN(share.job, Find(request.job_id));
  SOUP_ASSIGN_OR_RETURN(share.plan, share.job->MakePassJob(request));
  return share;
}

// The rows of a share. An error is the job's own: its data.
absl::Status Trainer::Rep::FillShare(PassShare& share) const {
  const JobRun& job = *share.job;
  const bool score = share.request.score;
  const std::vector<MicroBatch> micro_batches =
      score ? job.ValidationMicroBatches() : job.StepMicroBatches(share.request.step);
  share.micro_batches_in_step = static_cast<int32_t>(micro_batches.size());
  share.targets = job.CountStepTargets(micro_batches, score);
  if (share.targets == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", job.id(), ", step ", share.request.step,
                     ": no record of it has a supervised token; nothing can be learned"));
  }
  for (const MicroBatch& micro_batch : micro_batches) {
    share.step_records.insert(share.step_records.end(), micro_batch.records.begin(),
                              micro_batch.records.end());
  }
  for (size_t i = 0; i < share.plan.items.size(); ++i) {
    SOUP_ASSIGN_OR_RETURN(ItemBatch batch,
                          MakeItemBatch(*job.setup().dataset, score,
                                        micro_batches[share.request.first_micro_batch + i],
                                        share.plan.items[i].tokens, base.spec.vocab));
    share.batches.push_back(std::move(batch));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PassShare>> Trainer::Rep::MakeShares(const PassRequest& request,
                                                                PassResult& result) {
  std::vector<PassShare> shares;
  for (const WorkRequest& work : request.items) {
    SOUP_ASSIGN_OR_RETURN(PassShare share, MakeShare(work));
    const absl::Status filled = FillShare(share);
    if (filled.ok()) {
      shares.push_back(std::move(share));
    } else {
      result.faults.push_back({work.job_id, work.step, filled, false});
    }
  }
  return shares;
}

absl::StatusOr<MemoryPlan> Trainer::Plan(const PassRequest& request) const {
  std::vector<PassJob> jobs;
  for (const WorkRequest& work : request.items) {
    SOUP_ASSIGN_OR_RETURN(PassShare share, rep_->MakeShare(work));
    jobs.push_back(std::move(share.plan));
  }
  return PlanMemory(rep_->base.spec, rep_->base.format, jobs, request.placement);
}

PassEnv Trainer::Rep::Env() {
  PassEnv env;
  env.backend = backend;
  env.arena = memory.arena();
  env.host_arena = memory.host_arena();
  env.spec = base.spec;
  env.format = base.format;
  for (int64_t l = 0; l < base.spec.layers; ++l) {
    env.layouts[base.spec.kind(l).sparse] = MakeLayerLayout(base.spec, base.format, l);
  }
  env.act_bytes = DTypeBytes(backend->activation_type());
  env.wt_bytes = DTypeBytes(backend->weight_type());
  env.inverse_frequencies = memory.inverse_frequencies();
  env.progress = &progress;
  return env;
}

std::vector<PassItemState> Trainer::Rep::MakeItems(
    const std::vector<PassShare>& shares, const std::vector<LoraOnDevice>& adapters) const {
  std::vector<PassItemState> items;
  for (size_t s = 0; s < shares.size(); ++s) {
    const PassShare& share = shares[s];
    for (size_t i = 0; i < share.batches.size(); ++i) {
      PassItemState item;
      item.index = static_cast<int32_t>(items.size());
      item.lora = &adapters[s];
      item.train = !share.request.score;
      item.step = share.request.step;
      item.micro_batch = share.request.first_micro_batch + static_cast<int32_t>(i);
      item.loss_scale = static_cast<float>(1.0 / static_cast<double>(share.targets));
      item.batch = share.batches[i];
      item.T = item.batch.bucket;
      item.attention = share.plan.numeric.attention;
      item.attention_workspace =
          AttentionWorkspaceBytes(item.T, AttentionWidthsOf(base.spec), item.attention);
      item.head_rows = share.plan.numeric.HeadRows(item.supervised());
      items.push_back(std::move(item));
    }
  }
  return items;
}

absl::Status Trainer::Rep::RunShares(const std::vector<PassShare>& shares,
                                     const Placement& placement, const LogitsHook& hook,
                                     std::vector<PassItemState>& items, PassResult& result) {
  std::vector<PassJob> plans;
  for (const PassShare& share : shares) plans.push_back(share.plan);
  SOUP_ASSIGN_OR_RETURN(const MemoryPlan plan,
                        PlanMemory(base.spec, base.format, plans, placement));
  SOUP_RETURN_IF_ERROR(memory.Configure(plan, plans, HostStates(), options.always_relayout));
  SOUP_RETURN_IF_ERROR(
      backend->UseActivations(plans.front().numeric.activation_type(), memory.product_scratch()));
  std::vector<LoraOnDevice> adapters;
  for (const PassShare& share : shares) {
    const DeviceState state = memory.state(share.job->id());
    adapters.push_back(share.job->OnDevice(state));
    if (!share.request.score && share.request.first_micro_batch == 0) {
      backend->FillZero(state.gradients, share.job->layout().elements() * kF32Bytes);
    }
  }
  items = MakeItems(shares, adapters);
  PassInputs inputs;
  inputs.ring = memory.ring();
  inputs.head = memory.head();
  inputs.final_norm = memory.final_norm();
  inputs.embedding = base.globals().data() + MakeGlobalsLayout(base.spec).embedding_offset;
  inputs.placement = placement;
  inputs.head_slice_rows = plans.front().numeric.head_slice_rows;
  inputs.logits_hook = hook;
  const PassEnv env = Env();
  broken = true;  // until the pass has run through
  const absl::Status ran = RunItems(env, inputs, &items);
  for (PassItemState& item : items) item.lora = nullptr;
  SOUP_RETURN_IF_ERROR(ran);
  const bool trains = std::any_of(shares.begin(), shares.end(),
                                  [](const PassShare& share) { return !share.request.score; });
  if (placement.optimizer_host && trains) {
    SOUP_ASSIGN_OR_RETURN(moment_chunks, memory.arena()->Take(kUpdateMoments));
  }
  result.arena_planned_bytes = plan.arena_bytes();
  result.arena_measured_bytes = memory.arena()->high_water_bytes();
  if (result.arena_planned_bytes != result.arena_measured_bytes) {
    return absl::InternalError(absl::StrCat("the plan of the pass says ", plan.arena_bytes(),
                                            " bytes of arena and the pass took ",
                                            result.arena_measured_bytes));
  }
  const int64_t host = memory.host_arena() == nullptr ? 0 : memory.host_arena()->high_water_bytes();
  if (plan.host_bytes() != host) {
    return absl::InternalError(absl::StrCat("the plan of the pass says ", plan.host_bytes(),
                                            " bytes of host memory and the pass took ", host));
  }
  broken = false;
  return absl::OkStatus();
}

absl::StatusOr<PassResult> Trainer::RunPass(const PassRequest& request) {
  if (rep_->broken) {
    return absl::FailedPreconditionError(
        "the last pass has failed: close every job and open it again, it goes on from its mirror");
  }
  if (request.items.empty()) return absl::InvalidArgumentError("a pass needs a work item");
  const int64_t start_ns = rep_->options.clock->MonotonicNs();
  const BackendCounters before = rep_->backend->counters();
  PassResult result;
  SOUP_ASSIGN_OR_RETURN(const std::vector<PassShare> shares, rep_->MakeShares(request, result));
  if (shares.empty()) return result;
  std::vector<PassItemState> items;
  rep_->memory.HoldAtLeast(request.hold_bytes, request.hold_host_bytes);
  absl::Status status = rep_->RunShares(shares, request.placement, nullptr, items, result);
  if (status.ok()) {
    rep_->broken = true;  // until every step is whole
    status = rep_->FinishShares(shares, items, start_ns, before, result);
    if (status.ok()) rep_->broken = false;
  }
  rep_->moment_chunks.Reset();
  if (!status.ok()) {
    // A plan that was refused has left all states as they were; a pass that broke off has not.
    if (rep_->broken) rep_->memory.DropAll();
    return status;
  }
  const PassTimes taken = rep_->Since(start_ns, before);
  result.seconds = taken.seconds;
  result.stall_seconds = taken.stall_seconds;
  result.copy_bytes = taken.copy_bytes;
  result.copy_busy_seconds = taken.copy_seconds;
  const BackendCounters after = rep_->backend->counters();
  result.offload_out_bytes = after.offload_out_bytes - before.offload_out_bytes;
  result.offload_in_bytes = after.offload_in_bytes - before.offload_in_bytes;
  return result;
}

}  // namespace soup::engine
