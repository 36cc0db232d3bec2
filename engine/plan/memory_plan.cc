// The exact memory of a pass: its buffers (pass_requests.h), laid out by LayOutArena.
#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/rope_table.h"
#include "engine/model/slab_contents.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/pass_buffers.h"
#include "engine/plan/pass_requests.h"

namespace soup::engine {
namespace {

absl::Status CheckPlacement(const ModelSpec& model, const Placement& placement,
                            int64_t slice_rows) {
  const int64_t layers = model.layers;
  const int64_t slices = (model.vocab + slice_rows - 1) / std::max<int64_t>(slice_rows, 1);
  if (placement.head_slices < 0 ||
      (placement.head_slices > 0 &&
       (placement.head_resident || placement.head_slices > slices - kHeadRingSlices))) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: ", placement.head_slices, " slices of the head's ", slices,
                     " cannot stay on the device beside a ring of ", kHeadRingSlices));
  }
  if (placement.slots < std::min<int64_t>(2, layers) || placement.slots > layers) {
    return absl::InvalidArgumentError(absl::StrCat("placement: ", placement.slots,
                                                   " slots; this model of ", layers,
                                                   " layers takes 2 to ", layers));
  }
  const bool all = placement.slots == layers;
  if (placement.resident_layers < 0 || placement.resident_layers > placement.slots ||
      (!all && placement.slots - placement.resident_layers < 2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "placement: ", placement.resident_layers, " resident layers in ", placement.slots,
        " slots; two slots must stay free for the others unless all layers fit"));
  }
  return absl::OkStatus();
}

absl::Status CheckJobs(const std::vector<PassJob>& jobs) {
  if (jobs.empty()) return absl::InvalidArgumentError("a pass needs at least one job");
  std::set<std::string> ids;
  for (const PassJob& job : jobs) {
    if (!ids.insert(job.job_id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("job ", job.job_id, " stands in a pass twice"));
    }
    if (job.items.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("job ", job.job_id, " has no work item"));
    }
    if (job.numeric.backend != "cpu" && job.numeric.backend != "cuda") {
      return absl::UnimplementedError(absl::StrCat("job ", job.job_id, ": backend \"",
                                                   job.numeric.backend,
                                                   "\" has no memory plan; supported: cpu, cuda"));
    }
    if (job.numeric.backend != jobs.front().numeric.backend) {
      return absl::InvalidArgumentError(
          absl::StrCat("jobs ", jobs.front().job_id, " and ", job.job_id,
                       " were planned for different backends and cannot share a pass"));
    }
    if (job.numeric.head_slice_rows != jobs.front().numeric.head_slice_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("jobs ", jobs.front().job_id, " and ", job.job_id,
                       " have numeric plans with different head slices and cannot share a pass"));
    }
    if (job.numeric.activation_type() != jobs.front().numeric.activation_type()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "jobs ", jobs.front().job_id, " and ", job.job_id,
          " were planned with activations of different types and cannot share a pass"));
    }
    for (const PassItem& item : job.items) {
      if (item.tokens <= 0 || item.sequences <= 0) {
        return absl::InvalidArgumentError(absl::StrCat("job ", job.job_id, ": an item of ",
                                                       item.tokens, " tokens in ", item.sequences,
                                                       " sequences"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

AttentionWidths AttentionWidthsOf(const ModelSpec& model) {
  return {model.heads, model.kv_heads, model.head_dim};
}

int64_t ModuleInput(const ModelSpec& model, Module module) {
  switch (module) {
    case Module::kQ:
    case Module::kK:
    case Module::kV:
    case Module::kGate:
    case Module::kUp:
    case Module::kQkv:
    case Module::kGateUp:
      return model.hidden;
    case Module::kO:
      return model.q_width();
    case Module::kDown:
      return model.intermediate;
  }
  return 0;
}

int64_t ModuleOutput(const ModelSpec& model, Module module) {
  switch (module) {
    case Module::kQ:
      return model.q_width();
    case Module::kK:
    case Module::kV:
      return model.kv_width();
    case Module::kO:
    case Module::kDown:
      return model.hidden;
    case Module::kGate:
    case Module::kUp:
      return model.intermediate;
    case Module::kQkv:
      return model.qkv_width();
    case Module::kGateUp:
      return 2 * model.intermediate;
  }
  return 0;
}

int64_t LowRankWidth(const LoraShape& lora) {
  int64_t count[kGroups] = {};
  int64_t most = 0;
  for (const Module m : lora.targets) {
    most = std::max(most, ++count[static_cast<int>(ModuleGroup(m))]);
  }
  return most * LowRankColumns(lora.r);
}

bool AdaptersTurn(const ModelSpec& model, const LoraShape& lora) {
  if (model.qk_norm || model.qkv_bias || model.head_dim % 64 != 0) return false;
  if (model.rotary() != model.head_dim) return false;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (RopeLengthLimit(model, layer) > 0) return false;
  }
  if (lora.r != 8 && lora.r != 16 && lora.r != 24) return false;  // LoraKernelRank
  bool any = false;
  for (const Module m : lora.targets) {
    if (m == Module::kQkv) return false;  // its columns are not whole heads that turn
    any |= ModuleGroup(m) == Group::kQkv;
  }
  return any;
}

int64_t AdapterElements(const ModelSpec& model, const LoraShape& lora) {
  int64_t n = 0;
  for (Module m : lora.targets) n += lora.r * (ModuleInput(model, m) + ModuleOutput(model, m));
  return n * model.layers;
}

int64_t PinnedTableBytes(int64_t pinned_bytes) {
  constexpr int64_t kMapped = int64_t{2} << 20, kPage = 4096, kEntry = 8;
  return (pinned_bytes + kMapped - 1) / kMapped * (kMapped / kPage * kEntry);
}

int64_t PinnedByJobs(const ModelSpec& model, BaseFormat format,
                     const std::vector<LoraShape>& adapters) {
  constexpr int64_t kState = 4 * sizeof(float);  // weights, gradients, two moments
  int64_t bytes = 0;
  for (int64_t slab = 0; slab < SlabCount(model); ++slab) bytes += SlabBytes(model, format, slab);
  for (const LoraShape& lora : adapters) bytes += kState * AdapterElements(model, lora);
  return bytes;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& model, BaseFormat format,
                                      const std::vector<PassJob>& jobs, const Placement& wanted) {
  const Placement placement = NormalPlacement(wanted, model.layers);
  if (absl::Status s = CheckJobs(jobs); !s.ok()) return s;
  const int64_t slice_rows = jobs.front().numeric.head_slice_rows;
  if (absl::Status s = CheckPlacement(model, placement, slice_rows); !s.ok()) return s;
  const PassRequests requests = MakePassRequests(model, format, jobs, placement, /*named=*/true);
  MemoryPlan plan;
  plan.persistent_bytes = requests.persistent_bytes;
  plan.arena = LayOutArena(requests.device);
  plan.host = LayOutArena(requests.host);
  if (jobs.front().numeric.backend == "cuda") plan.table_bytes = PinnedTableBytes(plan.host.bytes);
  plan.placement = wanted;
  plan.placement.slots = placement.slots;
  plan.placement.resident_layers = placement.resident_layers;
  return plan;
}

}  // namespace soup::engine
