// Matrix products are chosen before a run: which ones there are is told by a pass over items of the
// same row counts, on a backend that runs nothing.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "engine/base/status_macros.h"
#include "engine/device/gemm_recorder.h"
#include "engine/train/trainer_rep.h"

namespace soup::engine {
namespace {

constexpr size_t kProductsAtOnce = 16;

// A micro-batch of one record with these rows; its contents are not looked at.
ItemBatch BatchOf(const RowCounts& counts) {
  ItemBatch batch;
  batch.bucket = batch.tokens = counts.tokens;
  batch.ids.assign(counts.tokens, 0);
  batch.positions.assign(counts.tokens, 0);
  batch.rows.assign(counts.head_rows, 0);
  batch.targets.assign(counts.head_rows, 0);
  batch.row_record.assign(counts.head_rows, 0);
  batch.cu_seqlens = {0, static_cast<int32_t>(counts.tokens)};
  return batch;
}

// The items that are needed to meet each bucket once, for the layers and for the head.
PassShare ShareOf(JobRun* job, const std::set<RowCounts>& counts, bool train) {
  PassShare share;
  share.job = job;
  share.request.job_id = job->id();
  share.request.score = !train;
  share.plan.job_id = job->id();
  share.plan.lora = job->setup().shape.lora;
  share.plan.numeric = job->setup().numeric;
  share.targets = 1;
  std::set<int64_t> tokens, head_rows;
  for (const RowCounts& c : counts) {
    if (c.train != train) continue;
    const bool new_tokens = tokens.insert(c.tokens).second;
    const bool new_head_rows = head_rows.insert(c.head_rows).second;
    if (!new_tokens && !new_head_rows) continue;
    share.plan.items.push_back({c.tokens, 1, train});
    share.batches.push_back(BatchOf(c));
  }
  return share;
}

}  // namespace

absl::StatusOr<GemmPreparation> Trainer::Rep::PrepareGemms(std::unique_ptr<JobRun>& job,
                                                           const std::set<RowCounts>& counts) {
  if (!backend->chooses_gemms()) return GemmPreparation();
  SOUP_RETURN_IF_ERROR(backend->UseActivations(job->setup().numeric.activation_type(), nullptr));
  GemmRecorder recorder(*backend);
  {
    Rep dry(&recorder, base, options);
    JobRun* const run = job.get();
    dry.jobs.emplace(run->id(), std::move(job));
    const absl::Cleanup give_back = [&] { job = std::move(dry.jobs.begin()->second); };
    Placement placement;
    placement.slots = static_cast<int32_t>(std::min<int64_t>(2, base.spec.layers));
    for (const bool train : {true, false}) {
      const PassShare share = ShareOf(run, counts, train);
      if (share.batches.empty()) continue;
      std::vector<PassItemState> items;
      PassResult result;
      SOUP_RETURN_IF_ERROR(dry.RunShares({share}, placement, nullptr, items, result));
    }
  }
  // A few at a time: whoever watches over this process sees that it gets on.
  const absl::Span<const kernels::GemmArgs> products = recorder.products();
  GemmPreparation total;
  for (size_t first = 0; first < products.size(); first += kProductsAtOnce) {
    SOUP_ASSIGN_OR_RETURN(const GemmPreparation prepared,
                          PrepareOnDevice(products.subspan(first, kProductsAtOnce)));
    total.tuned += prepared.tuned;
    total.seconds += prepared.seconds;
    progress.fetch_add(1, std::memory_order_relaxed);
  }
  // All are known now: this tells their fingerprint.
  SOUP_ASSIGN_OR_RETURN(const GemmPreparation all, PrepareOnDevice(products));
  total.shapes = all.shapes;
  total.fingerprint = all.fingerprint;
  return total;
}

absl::StatusOr<GemmPreparation> Trainer::Rep::PrepareOnDevice(
    absl::Span<const kernels::GemmArgs> products) {
  if (memory.arena() == nullptr) return backend->PrepareGemms(products, nullptr);
  // Other jobs lie in the arena: it makes room, and is laid out anew by the next pass.
  return backend->PrepareGemms(products, [this]() -> absl::Status {
    for (const auto& [id, state] : HostStates()) {
      SOUP_RETURN_IF_ERROR(memory.Save(id, state));
    }
    memory.Release();
    return absl::OkStatus();
  });
}

}  // namespace soup::engine
