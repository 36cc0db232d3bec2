#include "daemon/control/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace soup::daemon {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

Family<Counter>& MakeCounters(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter()
      .Name(absl::StrCat("soupd_", name))
      .Help(help)
      .Register(registry);
}
Family<Gauge>& MakeGauges(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(absl::StrCat("soupd_", name)).Help(help).Register(registry);
}
Counter& MakeCounter(Registry& registry, const char* name, const char* help) {
  return MakeCounters(registry, name, help).Add({});
}
Gauge& MakeGauge(Registry& registry, const char* name, const char* help) {
  return MakeGauges(registry, name, help).Add({});
}
Histogram& MakeHistogram(Registry& registry, const char* name, const char* help,
                         const std::vector<double>& bounds) {
  return prometheus::BuildHistogram()
      .Name(absl::StrCat("soupd_", name))
      .Help(help)
      .Register(registry)
      .Add({}, bounds);
}

// Counters and sums never go down and never become NaN, whatever a worker reports.
double Sane(double value) { return value > 0 && value < 1e18 ? value : 0; }
void Add(Counter& counter, double value) { counter.Increment(Sane(value)); }

const std::vector<double>& StepBounds() {
  static const auto* const kBounds = new std::vector<double>{
      0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600};
  return *kBounds;
}
const std::vector<double>& WaitBounds() {
  static const auto* const kBounds =
      new std::vector<double>{0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 7200, 21600, 86400};
  return *kBounds;
}

}  // namespace

// Every series that exists from the start, and the families of those that come and go.
struct Metrics::Series {
  std::shared_ptr<Registry> registry = std::make_shared<Registry>();
  Registry& r = *registry;

  Histogram& step_duration =
      MakeHistogram(r, "step_duration_seconds", "Duration of optimizer steps.", StepBounds());
  Counter& step_seconds = MakeCounter(r, "step_seconds_total", "Time that passes took.");
  Counter& stall_seconds = MakeCounter(r, "stall_seconds_total",
                                       "Time in which compute waited for weights to be copied.");
  Family<Counter>& copies =
      MakeCounters(r, "copy_bytes_total", "Bytes copied between host store and device.");
  Counter& copy_h2d = copies.Add({{"direction", "h2d"}});
  Counter& copy_d2h = copies.Add({{"direction", "d2h"}});
  Counter& copy_busy_seconds =
      MakeCounter(r, "copy_busy_seconds_total", "Time in which the copy stream was copying.");
  Family<Gauge>& device_peak =
      MakeGauges(r, "device_memory_peak_bytes",
                 "Device memory that the worker's process held in the last pass: its overhead and "
                 "the arena held.");
  Family<Gauge>& device_planned =
      MakeGauges(r, "device_memory_planned_bytes",
                 "Arena that the plan of the last pass named; the worker's overhead is not in it.");
  Family<Gauge>& device_overhead =
      MakeGauges(r, "device_memory_overhead_bytes",
                 "Device memory of the worker's process beside any arena: context, modules, fixed "
                 "blocks.");
  Family<Gauge>& link_rate = MakeGauges(r, "link_bytes_per_second",
                                        "Measured rate of the link from host store to device.");
  Gauge& pinned = MakeGauge(r, "pinned_bytes", "Bytes of frozen bases held in the host store.");
  Gauge& pinned_limit =
      MakeGauge(r, "pinned_limit_bytes", "Most bytes that the host store may hold.");
  Counter& tokens = MakeCounter(r, "tokens_total", "Tokens trained on.");
  Counter& supervised =
      MakeCounter(r, "supervised_tokens_total", "Tokens trained on that count in the loss.");
  Counter& padding =
      MakeCounter(r, "padding_tokens_total", "Rows of padding between the records of a batch.");
  Counter& bucket_tails = MakeCounter(r, "bucket_tail_tokens_total",
                                      "Masked rows that round work items up to their buckets.");
  Counter& skipped_steps = MakeCounter(r, "skipped_steps_total",
                                       "Steps not applied because their gradient was not finite.");
  Family<Gauge>& loss = MakeGauges(r, "loss", "Loss of the last step of an active job.");
  Family<Gauge>& jobs = MakeGauges(r, "jobs", "Jobs by state.");
  Histogram& queue_wait =
      MakeHistogram(r, "queue_wait_seconds", "Time that jobs waited in the queue.", WaitBounds());
  Counter& cache_hits =
      MakeCounter(r, "shard_cache_hits_total", "Bases that were found in the shard cache.");
  Counter& cache_misses =
      MakeCounter(r, "shard_cache_misses_total", "Bases that had to be imported.");
  Counter& cache_evictions =
      MakeCounter(r, "shard_cache_evictions_total", "Bases evicted from the shard cache.");
  Counter& cache_corruptions = MakeCounter(r, "shard_cache_corruptions_total",
                                           "Chunks whose checksum was wrong and were rebuilt.");
  Counter& worker_restarts =
      MakeCounter(r, "worker_restarts_total", "Workers that died and were started again.");
  Family<Gauge>& worker_up = MakeGauges(
      r, "worker_up", "1 when the device's worker is there, 0 while none can be started.");
  Gauge& storage_healthy = MakeGauge(
      r, "storage_healthy", "1 when the last writes to disk succeeded, 0 when they failed.");
  Family<Gauge>& checkpoint =
      MakeGauges(r, "checkpoint_last_success_timestamp_seconds",
                 "When an active job's last checkpoint was written, Unix time.");
  Family<Gauge>& build_info =
      MakeGauges(r, "build_info", "Always 1; the labels tell what is running.");

  absl::Mutex mutex;
  std::set<std::string> active ABSL_GUARDED_BY(mutex);
  std::map<std::string, Gauge*> loss_of ABSL_GUARDED_BY(mutex);
  std::map<std::string, Gauge*> checkpoint_of ABSL_GUARDED_BY(mutex);

  // Sets the gauge of an active job in `family`.
  void SetOfJob(Family<Gauge>& family, std::map<std::string, Gauge*>& gauges,
                const std::string& job_id, double value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (active.count(job_id) == 0) return;
    Gauge*& gauge = gauges[job_id];
    if (gauge == nullptr) gauge = &family.Add({{"job", job_id}});
    gauge->Set(value);
  }
  static void Drop(Family<Gauge>& family, std::map<std::string, Gauge*>& gauges,
                   const std::string& job_id) {
    const auto it = gauges.find(job_id);
    if (it == gauges.end()) return;
    family.Remove(it->second);
    gauges.erase(it);
  }
};

Metrics::Metrics() : series_(std::make_unique<Series>()) {
  series_->build_info.Add({{"version", SOUP_VERSION}}).Set(1);
  SetJobCounts({});
  SetStorageHealthy(true);
}
Metrics::~Metrics() = default;

void Metrics::StepDone(const std::string& job_id, const soup::v1::StepRecord& step) {
  Series& s = *series_;
  s.step_duration.Observe(Sane(step.step_seconds()));
  Add(s.tokens, static_cast<double>(step.tokens()));
  Add(s.supervised, static_cast<double>(step.supervised_tokens()));
  Add(s.padding, static_cast<double>(step.padding_tokens()));
  Add(s.bucket_tails, static_cast<double>(step.bucket_tail_tokens()));
  if (step.skipped()) s.skipped_steps.Increment();
  absl::MutexLock lock(&s.mutex);
  s.SetOfJob(s.loss, s.loss_of, job_id, step.loss());
}

void Metrics::PassDone(const Pass& pass) {
  Add(series_->step_seconds, pass.seconds);
  Add(series_->stall_seconds, pass.stall_seconds);
  Add(series_->copy_h2d, static_cast<double>(pass.copy_bytes + pass.offload_in_bytes));
  Add(series_->copy_d2h, static_cast<double>(pass.offload_out_bytes));
  Add(series_->copy_busy_seconds, pass.copy_busy_seconds);
}

void Metrics::SetDeviceMemory(int device, int64_t planned_bytes, int64_t peak_bytes) {
  const prometheus::Labels labels{{"device", absl::StrCat(device)}};
  series_->device_planned.Add(labels).Set(static_cast<double>(planned_bytes));
  series_->device_peak.Add(labels).Set(static_cast<double>(peak_bytes));
}

void Metrics::SetDeviceOverhead(int device, int64_t bytes) {
  series_->device_overhead.Add({{"device", absl::StrCat(device)}}).Set(static_cast<double>(bytes));
}

void Metrics::SetLinkRate(int device, double bytes_per_second) {
  series_->link_rate.Add({{"device", absl::StrCat(device)}}).Set(bytes_per_second);
}

void Metrics::SetWorkerUp(int device, bool up) {
  series_->worker_up.Add({{"device", absl::StrCat(device)}}).Set(up ? 1 : 0);
}

void Metrics::SetStorageHealthy(bool healthy) { series_->storage_healthy.Set(healthy ? 1 : 0); }

void Metrics::WorkerRestarted() { series_->worker_restarts.Increment(); }

void Metrics::CheckpointDone(const std::string& job_id, int64_t unix_ms) {
  Series& s = *series_;
  absl::MutexLock lock(&s.mutex);
  s.SetOfJob(s.checkpoint, s.checkpoint_of, job_id, static_cast<double>(unix_ms) / 1000.0);
}

void Metrics::SetPinned(int64_t bytes, int64_t limit_bytes) {
  series_->pinned.Set(static_cast<double>(bytes));
  series_->pinned_limit.Set(static_cast<double>(limit_bytes));
}

void Metrics::CacheHit() { series_->cache_hits.Increment(); }
void Metrics::CacheMiss() { series_->cache_misses.Increment(); }
void Metrics::CacheEvictions(int64_t count) {
  Add(series_->cache_evictions, static_cast<double>(count));
}
void Metrics::CacheCorruptions(int64_t count) {
  Add(series_->cache_corruptions, static_cast<double>(count));
}

void Metrics::SetJobCounts(const std::map<JobState, int64_t>& counts) {
  for (const JobState state : kAllJobStates) {
    const auto it = counts.find(state);
    series_->jobs.Add({{"state", JobStateName(state)}})
        .Set(it == counts.end() ? 0.0 : static_cast<double>(it->second));
  }
}

void Metrics::QueueWaited(double seconds) { series_->queue_wait.Observe(Sane(seconds)); }

void Metrics::JobActive(const std::string& job_id) {
  absl::MutexLock lock(&series_->mutex);
  series_->active.insert(job_id);
}

void Metrics::JobInactive(const std::string& job_id) {
  Series& s = *series_;
  absl::MutexLock lock(&s.mutex);
  s.active.erase(job_id);
  Series::Drop(s.loss, s.loss_of, job_id);
  Series::Drop(s.checkpoint, s.checkpoint_of, job_id);
}

std::shared_ptr<prometheus::Registry> Metrics::registry() const { return series_->registry; }

std::string Metrics::Render() const {
  return prometheus::TextSerializer().Serialize(series_->registry->Collect());
}

}  // namespace soup::daemon
