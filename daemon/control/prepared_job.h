// PreparedJob: all that soupd knows of a job once its data is tokenised, its numeric plan frozen
// and its base in host memory: enough to plan any of its passes. Immutable; shared between threads.
#ifndef SOUP_DAEMON_CONTROL_PREPARED_JOB_H_
#define SOUP_DAEMON_CONTROL_PREPARED_JOB_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cache/base_cache.h"
#include "engine/plan/batch_schedule.h"
#include "engine/plan/job_plan.h"
#include "soup/v1/job.pb.h"

namespace soup::daemon {

struct PreparedJob {
  std::string id;
  soup::v1::JobSpec spec;
  engine::JobShape shape;
  engine::NumericPlan numeric;
  engine::BatchSchedule train;
  std::optional<engine::BatchSchedule> validation;  // one "step" of all validation records
  std::string dataset_path;
  // Empty only while a plan is made without a base (Plan).
  std::string base_key;
  cache::BaseLease lease;

  int64_t steps_total() const { return train.steps(); }
  int32_t max_micro_batches() const {
    return std::max(train.max_micro_batches(),
                    validation.has_value() ? validation->max_micro_batches() : 0);
  }
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_PREPARED_JOB_H_
