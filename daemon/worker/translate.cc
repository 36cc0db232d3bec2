#include "daemon/worker/translate.h"

#include <utility>

#include "daemon/common/job_shape.h"
#include "engine/base/status_macros.h"

namespace soup::worker {

absl::StatusOr<engine::JobSetup> MakeJobSetup(const soup::worker::v1::OpenJob& open,
                                              const engine::ModelSpec& model) {
  engine::JobSetup setup;
  setup.job_id = open.job_id();
  SOUP_ASSIGN_OR_RETURN(std::unique_ptr<engine::PreparedDataset> dataset,
                        engine::PreparedDataset::Open(open.dataset_path()));
  SOUP_ASSIGN_OR_RETURN(setup.shape, daemon::JobShapeOf(open.spec(), model, dataset->TrainLengths(),
                                                        dataset->ValidationLengths()));
  setup.dataset = std::move(dataset);
  SOUP_ASSIGN_OR_RETURN(setup.numeric, engine::NumericPlan::FromText(open.numeric_plan()));
  const soup::v1::LoraSpec& lora = open.spec().lora();
  setup.lora.alpha = lora.alpha();
  setup.lora.dropout = lora.dropout();
  setup.lora.rslora = lora.rslora();
  const soup::v1::TrainingSpec& training = open.spec().training();
  setup.training.learning_rate = training.learning_rate();
  SOUP_ASSIGN_OR_RETURN(setup.training.scheduler, engine::ParseLrScheduler(training.scheduler()));
  setup.training.warmup_ratio = training.warmup_ratio();
  setup.training.weight_decay = training.weight_decay();
  setup.training.max_grad_norm = training.max_grad_norm();
  setup.training.adam_beta1 = training.adam_beta1();
  setup.training.adam_beta2 = training.adam_beta2();
  setup.training.adam_epsilon = training.adam_epsilon();
  setup.training.keep_last = training.keep_last();
  setup.mirror_dir = open.mirror_dir();
  setup.checkpoint_dir = open.job_dir() + "/checkpoints";
  setup.init_adapter_path = open.init_adapter_path();
  setup.init_adapter_config_path = open.init_adapter_config_path();
  return setup;
}

absl::StatusOr<engine::PassRequest> MakePassRequest(const soup::worker::v1::RunPass& pass) {
  engine::PassRequest request;
  SOUP_ASSIGN_OR_RETURN(request.placement, engine::ParsePlacement(pass.placement().text()));
  request.hold_bytes = pass.placement().hold_bytes();
  request.hold_host_bytes = pass.placement().hold_host_bytes();
  for (const soup::worker::v1::WorkItem& item : pass.items()) {
    engine::WorkRequest work;
    work.job_id = item.job_id();
    work.step = item.step();
    work.first_micro_batch = item.first_micro_batch();
    work.micro_batches = item.micro_batches();
    work.score = item.score();
    request.items.push_back(std::move(work));
  }
  return request;
}

soup::v1::StepRecord MakeStepRecord(const engine::StepStats& stats, int64_t unix_ms) {
  soup::v1::StepRecord record;
  record.set_step(stats.step);
  record.set_loss(stats.loss);
  record.set_grad_norm(stats.grad_norm);
  record.set_learning_rate(stats.learning_rate);
  record.set_tokens(stats.tokens);
  record.set_supervised_tokens(stats.supervised_tokens);
  record.set_step_seconds(stats.seconds);
  record.set_stall_seconds(stats.stall_seconds);
  record.set_unix_ms(unix_ms);
  record.set_skipped(stats.skipped);
  record.set_copy_bytes(stats.copy_bytes);
  record.set_copy_seconds(stats.copy_seconds);
  record.set_bucket_tail_tokens(stats.bucket_tail_tokens);
  record.set_padding_tokens(stats.padding_tokens);
  return record;
}

soup::v1::Reason ReasonOf(const absl::Status& status, Doing doing, bool storage) {
  if (storage || absl::IsResourceExhausted(status)) return soup::v1::STORAGE;
  switch (doing) {
    case Doing::kOpen:
      // Its plan, or the state it has, is of another device or library: soupd pauses it.
      if (absl::IsFailedPrecondition(status)) return soup::v1::DEVICE_LOST;
      return absl::IsInvalidArgument(status) ? soup::v1::INVALID_INPUT : soup::v1::INTERNAL;
    case Doing::kStep:
      return absl::IsInvalidArgument(status) ? soup::v1::DATA : soup::v1::INTERNAL;
    case Doing::kCheckpoint:
    case Doing::kExport:
      // What is wrong with the adapter itself; everything else is the disk's fault.
      return absl::IsFailedPrecondition(status) ? soup::v1::INTERNAL : soup::v1::STORAGE;
  }
  return soup::v1::INTERNAL;
}

}  // namespace soup::worker
