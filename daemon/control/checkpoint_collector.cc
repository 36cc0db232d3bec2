#include "daemon/control/checkpoint_collector.h"

#include <string>
#include <vector>

#include "daemon/control/job_state.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"

namespace soup::daemon {

void CollectCheckpoints(const Config& config, const JobStore& store, int64_t now_unix_ms,
                        int64_t age_seconds) {
  engine::FileSystem& fs = engine::RealFileSystem();
  const absl::StatusOr<std::vector<std::string>> ids = fs.ListDirectory(config.JobsDir());
  if (!ids.ok()) return;
  for (const std::string& id : *ids) {
    const std::string folder = config.JobDir(id) + "/checkpoints";
    if (!fs.Exists(folder)) continue;
    const absl::StatusOr<JobRecord> job = store.GetJob(id);
    if (!job.ok() || !HasEnded(job->state)) continue;
    if (now_unix_ms - job->finished_unix_ms < age_seconds * 1000) continue;
    const absl::Status removed = fs.RemoveTree(folder);
    if (!removed.ok()) {
      SOUP_LOG(kWarn, "jobs") << id << ": " << removed.message();
    }
  }
}

}  // namespace soup::daemon
