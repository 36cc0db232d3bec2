// Logits of every row of a micro-batch, for checkers: a score pass whose head is overheard.
#include <algorithm>
#include <cmath>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/train/trainer_rep.h"

namespace soup::engine {

namespace {
constexpr absl::Duration kWait = absl::Minutes(5);
constexpr int64_t kF32Bytes = 4;
}  // namespace

absl::StatusOr<std::vector<float>> Trainer::Logits(const std::string& job_id,
                                                   const MicroBatch& micro_batch,
                                                   const Placement& placement) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  const NumericPlan& numeric = job->setup().numeric;
  const int64_t bucket = numeric.BucketFor(micro_batch.tokens);
  SOUP_RETURN_IF_ERROR(
      rep_->PrepareGemms(rep_->jobs.at(job_id), {{bucket, bucket, false}}).status());
  PassShare share;
  share.job = job;
  share.request.job_id = job_id;
  share.request.score = true;
  share.plan.job_id = job_id;
  share.plan.lora = job->setup().shape.lora;
  share.plan.numeric = numeric;
  SOUP_ASSIGN_OR_RETURN(share.plan.items, MakePassItems({micro_batch}, numeric, 0, 1, false));
  const int64_t vocab = rep_->base.spec.vocab;
  SOUP_ASSIGN_OR_RETURN(ItemBatch batch, MakeItemBatch(*job->setup().dataset, false, micro_batch,
                                                       share.plan.items[0].tokens, vocab));
  batch.rows.clear();
  for (int32_t row = 0; row < batch.tokens; ++row) batch.rows.push_back(row);
  batch.targets.assign(batch.tokens, 0);  // the loss of this pass is not read
  batch.row_record.assign(batch.tokens, 0);
  share.targets = batch.tokens;
  share.micro_batches_in_step = 1;
  const int64_t tokens = batch.tokens;
  share.batches.push_back(std::move(batch));

  std::vector<float> logits(tokens * vocab);
  std::vector<float> slice;
  const auto hook = [&](const LogitsSlice& s) -> absl::Status {
    slice.resize(s.rows * s.columns);
    SOUP_RETURN_IF_ERROR(
        rep_->backend->CopyToHostAsync(slice.data(), s.logits, s.rows * s.columns * kF32Bytes));
    SOUP_RETURN_IF_ERROR(rep_->backend->Synchronize(kWait));
    if (const double cap = rep_->base.spec.final_soft_cap; cap > 0) {
      for (float& x : slice) x = static_cast<float>(cap * std::tanh(static_cast<double>(x) / cap));
    }
    for (int64_t r = 0; r < s.rows; ++r) {
      std::copy_n(slice.data() + r * s.columns, s.columns,
                  logits.data() + r * vocab + s.first_column);
    }
    return absl::OkStatus();
  };
  std::vector<PassItemState> items;
  PassResult result;
  SOUP_RETURN_IF_ERROR(rep_->RunShares({std::move(share)}, placement, hook, items, result));
  return logits;
}

}  // namespace soup::engine
