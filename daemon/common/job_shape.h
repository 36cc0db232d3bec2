// From a job's spec to what the engine plans with. soupd and the worker both go through here, so
// that they plan the same job. Pure functions; any thread.
#ifndef SOUP_DAEMON_COMMON_JOB_SHAPE_H_
#define SOUP_DAEMON_COMMON_JOB_SHAPE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"
#include "engine/plan/job_plan.h"
#include "soup/v1/job.pb.h"

namespace soup::daemon {

// The storage format that a base spec asks for: bf16, nf4, or nf4 with double quantisation.
// Errors: InvalidArgument (names the value).
absl::StatusOr<engine::BaseFormat> FormatOf(const soup::v1::BaseSpec& base);

// Modules that the adapter covers; "all-linear" is all that adapters of the model may have. Sorted,
// unique. Errors: InvalidArgument (no target, one that is unknown or that the model lacks, rank
// below 1).
absl::StatusOr<engine::LoraShape> LoraShapeOf(const soup::v1::LoraSpec& lora,
                                              const engine::ModelSpec& model);

// Errors: InvalidArgument (names the value).
absl::StatusOr<engine::Precision> PrecisionOf(const soup::v1::TrainingSpec& training);

// What of a job decides which records make which step.
engine::BatchParams BatchParamsOf(const soup::v1::JobSpec& spec);

// `lengths`, `validation_lengths`: tokens of each record, as prepared.
absl::StatusOr<engine::JobShape> JobShapeOf(const soup::v1::JobSpec& spec,
                                            const engine::ModelSpec& model,
                                            std::vector<int32_t> lengths,
                                            std::vector<int32_t> validation_lengths);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_COMMON_JOB_SHAPE_H_
