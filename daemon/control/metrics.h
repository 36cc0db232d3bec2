// soupd's metrics, exactly the names of DESIGN.md "Metrics", `promtool check metrics` clean. Labels
// are bounded: state, direction, device, backend, version, and `job` (the job's id) on gauges of
// jobs that are active only. Counters are totals over all jobs and never go down.
//
// Threads: any.
#ifndef SOUP_DAEMON_CONTROL_METRICS_H_
#define SOUP_DAEMON_CONTROL_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "daemon/control/job_state.h"
#include "soup/v1/job.pb.h"

namespace prometheus {
class Registry;
}

namespace soup::daemon {

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // ---- a worker's reports ----
  // tokens_total, supervised_tokens_total, padding_tokens_total, bucket_tail_tokens_total,
  // step_duration_seconds, skipped_steps_total, loss{job}.
  // A step that is replayed after a resume must not be reported twice: call it after
  // StepLogs::Append said OK or exhausted.
  void StepDone(const std::string& job_id, const soup::v1::StepRecord& step);
  // stall_seconds_total, step_seconds_total, copy_bytes_total{direction="h2d"},
  // copy_busy_seconds_total.
  struct Pass {
    double seconds = 0;
    double stall_seconds = 0;
    int64_t copy_bytes = 0;
    double copy_busy_seconds = 0;
    int64_t offload_out_bytes = 0;
    int64_t offload_in_bytes = 0;
  };
  void PassDone(const Pass& pass);
  // device_memory_planned_bytes{device} (an arena), device_memory_peak_bytes{device} (the process:
  // its overhead too); device: "0", "1"…
  void SetDeviceMemory(int device, int64_t planned_bytes, int64_t peak_bytes);
  // device_memory_overhead_bytes{device}
  void SetDeviceOverhead(int device, int64_t bytes);
  // link_bytes_per_second{device}: what the machine profile measured, to hold the copy rate
  // against.
  void SetLinkRate(int device, double bytes_per_second);
  void SetWorkerUp(int device, bool up);
  void WorkerRestarted();
  void CheckpointDone(const std::string& job_id, int64_t unix_ms);

  // ---- host store and shard cache ----
  void SetPinned(int64_t bytes, int64_t limit_bytes);
  void CacheHit();
  void CacheMiss();
  void CacheEvictions(int64_t count);
  void CacheCorruptions(int64_t count);

  // storage_healthy: job store, step logs and shard cache can be written. main() keeps it current.
  void SetStorageHealthy(bool healthy);

  // ---- jobs: told by the job store's listener (store_listener.h) ----
  void SetJobCounts(const std::map<JobState, int64_t>& counts);
  // A job left QUEUED for PREPARING or RUNNING after waiting so long (told by the orchestrator).
  void QueueWaited(double seconds);
  // Series with a job's label exist between these two (told by the job store's listener); a late
  // StepDone or CheckpointDone of an inactive job makes none.
  void JobActive(const std::string& job_id);
  void JobInactive(const std::string& job_id);

  std::shared_ptr<prometheus::Registry> registry() const;
  // The text that /metrics answers with.
  std::string Render() const;

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_METRICS_H_
