// Between the worker protocol and the engine's types. Pure, but for the dataset that MakeJobSetup
// opens.
#ifndef SOUP_DAEMON_WORKER_TRANSLATE_H_
#define SOUP_DAEMON_WORKER_TRANSLATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/train/trainer.h"
#include "soup/v1/job.pb.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::worker {

// Errors: InvalidArgument (names the field), and those of PreparedDataset::Open.
absl::StatusOr<engine::JobSetup> MakeJobSetup(const soup::worker::v1::OpenJob& open,
                                              const engine::ModelSpec& model);
absl::StatusOr<engine::PassRequest> MakePassRequest(const soup::worker::v1::RunPass& pass);
soup::v1::StepRecord MakeStepRecord(const engine::StepStats& stats, int64_t unix_ms);

// What a job's own failure means for it.
enum class Doing { kOpen, kStep, kCheckpoint, kExport };
soup::v1::Reason ReasonOf(const absl::Status& status, Doing doing, bool storage);

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_TRANSLATE_H_
