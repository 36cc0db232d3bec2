// What the API asks: checks at submit, Plan, PreviewData, the cache, the node.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/common/job_shape.h"
#include "daemon/control/daemon_orchestrator.h"
#include "daemon/control/text.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr absl::Duration kLookAtCaller = absl::Milliseconds(100);
constexpr double kHostShare = 0.5;  // of available memory, for what passes keep on the host

// Turns "is the caller still there" into a Cancellation, for as long as it lives.
class CallWatch {
 public:
  explicit CallWatch(const CallLimits& limits) : limits_(limits) {
    thread_ = std::thread([this] {
      absl::MutexLock lock(&mu_);
      while (!mu_.AwaitWithTimeout(absl::Condition(&done_), kLookAtCaller)) {
        if (!limits_.cancelled() && absl::Now() < limits_.deadline) continue;
        cancellation_.Cancel();
        return;
      }
    });
  }
  ~CallWatch() {
    {
      absl::MutexLock lock(&mu_);
      done_ = true;
    }
    thread_.join();
  }
  Cancellation* cancellation() { return &cancellation_; }

 private:
  const CallLimits limits_;
  Cancellation cancellation_;
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Bytes by class: what each takes in the arena's fullest moment (buffers share bytes over time),
// and in its own. `table_bytes`: of what is pinned whatever the placement.
void AddRows(const engine::MemoryPlan& plan, int64_t table_bytes, soup::v1::PlanReply* reply) {
  std::map<int32_t, int64_t> all;
  std::map<std::string, std::map<int32_t, int64_t>> changes;
  std::vector<std::string> order;
  for (const engine::BufferPlacement& b : plan.arena.buffers) {
    if (b.bytes == 0) continue;
    if (changes.find(b.what) == changes.end()) order.push_back(b.what);
    for (auto* line : {&all, &changes[b.what]}) {
      (*line)[b.first] += b.bytes;
      (*line)[b.last + 1] -= b.bytes;
    }
  }
  int32_t fullest = 0;
  int64_t live = 0, most = -1;
  for (const auto& [at, change] : all) {
    if ((live += change) <= most) continue;
    most = live;
    fullest = at;
  }
  for (const std::string& what : order) {
    int64_t now = 0, peak = 0, then = 0;
    for (const auto& [at, change] : changes[what]) {
      peak = std::max(peak, now += change);
      if (at <= fullest) then = now;
    }
    soup::v1::PlanRow* row = reply->add_rows();
    row->set_what(what);
    row->set_bytes(then);
    row->set_peak_bytes(peak);
    row->set_where("device");
  }
  if (const int64_t tables = table_bytes + plan.table_bytes; tables > 0) {
    soup::v1::PlanRow* row = reply->add_rows();
    row->set_what("page tables of pinned memory");
    row->set_bytes(tables);
    row->set_peak_bytes(tables);
    row->set_where("device");
  }
  // What no order of the buffers could avoid; none as a rule.
  if (plan.arena_bytes() > most) {
    soup::v1::PlanRow* row = reply->add_rows();
    row->set_what("gaps");
    row->set_bytes(plan.arena_bytes() - most);
    row->set_peak_bytes(row->bytes());
    row->set_where("device");
  }
}

void AddHostRow(const std::string& what, int64_t bytes, soup::v1::PlanReply* reply) {
  if (bytes == 0) return;
  soup::v1::PlanRow* row = reply->add_rows();
  row->set_what(what);
  row->set_bytes(bytes);
  row->set_where("host");
}

void AddHostRows(const engine::MemoryPlan& plan, int64_t slab_bytes, int64_t adapter_elements,
                 soup::v1::PlanReply* reply) {
  AddHostRow("base in the host store", slab_bytes, reply);
  // Weights, gradients and both moments, fp32.
  AddHostRow("adapter state", 16 * adapter_elements, reply);
  std::map<std::string, int64_t> kept;
  for (const engine::BufferPlacement& b : plan.host.buffers) kept[b.what] += b.bytes;
  for (const auto& [what, bytes] : kept) AddHostRow(what, bytes, reply);
}

soup::v1::CacheEntry EntryOf(const cache::BaseManifest& manifest) {
  soup::v1::CacheEntry entry;
  entry.set_fingerprint(manifest.key.fingerprint);
  entry.set_format(engine::BaseFormatName(manifest.key.format));
  entry.set_source_path(manifest.source_folder);
  entry.set_bytes(manifest.total_bytes());
  return entry;
}

}  // namespace

DeviceMemoryView DaemonOrchestrator::DeviceMemory() const {
  const WorkerSupervisor::Info worker = supervisor_->info();
  DeviceMemoryView memory;
  {
    absl::MutexLock lock(&mu_);
    memory.apart = device_.memory_apart;
    memory.total_bytes = device_.profile.device_memory_bytes;
    memory.overhead_bytes = device_.overhead_bytes;
    memory.arena_bytes = device_.arena_bytes;
  }
  if (memory.apart) {
    memory.free_bytes = worker.device_free_bytes;
    memory.arena_bytes = worker.arena_bytes;
  } else {
    const auto available = cache::RealHostMemory().Available();
    memory.free_bytes = available.ok() ? available->bytes : 0;
    // A cgroup may allow less than the host has.
    if (available.ok() && available->total_bytes > 0)
      memory.total_bytes = std::min(memory.total_bytes, available->total_bytes);
  }
  return memory;
}

std::string DaemonOrchestrator::BackendName() const {
  if (config_.backend != "auto") return config_.backend;
  absl::MutexLock lock(&mu_);
  return device_.backend;
}

int64_t DaemonOrchestrator::HostBudget() const {
  const auto available = cache::RealHostMemory().Available();
  return available.ok() ? static_cast<int64_t>(kHostShare * available->bytes) : 0;
}

absl::Status DaemonOrchestrator::CheckBaseFits(const cache::InspectedModel& model,
                                               engine::BaseFormat format,
                                               const std::string& user) const {
  const int64_t bytes = model.slab_bytes;
  const char* smaller = format == engine::BaseFormat::kBf16 ? "use format nf4, or " : "";
  if (pinned_limit_ > 0 && bytes > pinned_limit_)
    return absl::ResourceExhaustedError(absl::StrCat(
        "base: the model takes ", bytes, " bytes of host memory (", HumanBytes(bytes),
        "), soupd may pin ", pinned_limit_, " (--host-store-limit); ", smaller, "raise the limit"));
  if (config_.quota_pinned_bytes > 0 && bytes > config_.quota_pinned_bytes)
    return absl::ResourceExhaustedError(
        absl::StrCat("base: the model takes ", bytes, " bytes of host memory, the quota of ", user,
                     " is ", config_.quota_pinned_bytes, " (--quota-pinned)"));
  const int64_t cap = config_.cache_cap_bytes;
  if (cap <= 0 || bytes <= cap) return absl::OkStatus();
  // One that was stored under a larger cap is there, perhaps this one.
  for (const cache::StoredBase& stored : cache_->shards().List()) {
    if (stored.manifest.key.format == format && stored.manifest.total_bytes() == bytes)
      return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "base: the model takes ", bytes, " bytes of the shard cache (", HumanBytes(bytes),
      "), which may hold ", cap, " (--cache-cap); ", smaller, "raise the cap"));
}

absl::Status DaemonOrchestrator::CheckSubmit(const soup::v1::JobSpec& spec, const std::string& user,
                                             const std::string& base_real_path) {
  SOUP_ASSIGN_OR_RETURN(const engine::BaseFormat format, FormatOf(spec.base()));
  SOUP_ASSIGN_OR_RETURN(const cache::InspectedModel model,
                        InspectBase(cache_.get(), base_real_path, format));
  SOUP_RETURN_IF_ERROR(LoraShapeOf(spec.lora(), model.spec).status());
  SOUP_RETURN_IF_ERROR(CheckBaseFits(model, format, user));
  engine::MachineProfile profile;
  profile.backend = BackendName();
  // Not known yet: told when the job is planned.
  if (profile.backend.empty()) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(const engine::Precision precision, PrecisionOf(spec.training()));
  SOUP_RETURN_IF_ERROR(engine::ChoosePrecision(precision, model.spec, profile.backend).status());
  const int64_t asked = spec.resources().vram_bytes();
  if (asked <= 0) return absl::OkStatus();
  // The least that any data could need: one record of one token.
  SOUP_ASSIGN_OR_RETURN(engine::JobShape shape, JobShapeOf(spec, model.spec, {1}, {}));
  SOUP_ASSIGN_OR_RETURN(const engine::NumericPlan numeric, engine::MakeNumericPlan(shape, profile));
  SOUP_ASSIGN_OR_RETURN(const int64_t least,
                        engine::MinimumArenaBytes(
                            model.spec, format, {engine::LargestPass("check", shape, numeric, 1)}));
  int64_t needed = least;
  if (profile.backend == "cuda" && !supervisor_->info().host_memory_pageable) {
    needed += engine::PinnedTableBytes(engine::PinnedByJobs(model.spec, format, {shape.lora}));
  }
  {
    absl::MutexLock lock(&mu_);
    needed += device_.overhead_bytes;
  }
  if (asked < needed)
    return absl::ResourceExhaustedError(
        absl::StrCat("resources.vram is ", asked, " bytes; this base and adapter need at least ",
                     needed, " (", HumanBytes(needed), ") before any data: raise it, or use auto"));
  return absl::OkStatus();
}

absl::StatusOr<soup::v1::PlanReply> DaemonOrchestrator::Plan(const soup::v1::JobSpec& spec,
                                                             const std::string& user,
                                                             const std::string& base_real_path,
                                                             const CallLimits& limits) {
  CallWatch watch(limits);
  SOUP_ASSIGN_OR_RETURN(const engine::BaseFormat format, FormatOf(spec.base()));
  SOUP_ASSIGN_OR_RETURN(const cache::InspectedModel model,
                        InspectBase(cache_.get(), base_real_path, format));
  SOUP_RETURN_IF_ERROR(CheckBaseFits(model, format, user));
  soup::worker::v1::PrepareReply prepared;
  SOUP_ASSIGN_OR_RETURN(
      const std::shared_ptr<const PreparedJob> job,
      preparer_->PlanOnly(spec, base_real_path, watch.cancellation(), limits.deadline, &prepared));
  engine::MachineProfile profile;
  int64_t overhead = 0;
  {
    absl::MutexLock lock(&mu_);
    profile = device_.profile;
    overhead = device_.overhead_bytes;
  }
  const int64_t tables = TableBytes({job});
  const int64_t beside = overhead + tables;
  soup::v1::PlanReply reply;
  *reply.mutable_dataset() = prepared.report();
  reply.set_host_store_bytes(model.slab_bytes);
  reply.set_steps_total(job->steps_total());
  reply.set_micro_batches(job->train.max_micro_batches());
  SOUP_ASSIGN_OR_RETURN(
      const engine::PrecisionChoice precision,
      engine::ChoosePrecision(job->shape.precision, job->shape.model, job->numeric.backend));
  reply.set_precision(engine::PrecisionName(precision.precision));
  reply.set_precision_reason(precision.why);
  const int64_t budget = SetBudget({job}, DeviceBudget(), overhead, tables);
  const int64_t host_budget = HostBudget();
  reply.set_budget_bytes(budget + beside);
  SOUP_ASSIGN_OR_RETURN(const int64_t least, LeastBudget(*job));
  reply.set_minimum_bytes(least + beside);
  const absl::StatusOr<SetPlan> set = PlanSet({job}, budget, profile, host_budget);
  if (absl::IsResourceExhausted(set.status())) {
    reply.set_fits(false);
    const std::string never =
        NeverFits(DeviceMemory(), Limits(), least + beside, job->spec.resources().vram_bytes());
    reply.set_verdict(absl::StrCat(
        "does not fit: the job needs at least ", HumanBytes(least + beside), " (", least + beside,
        " bytes) on the device",
        never.empty()
            ? absl::StrCat(", it may have ", HumanBytes(budget + beside), " (", budget + beside,
                           " bytes) now: it would wait for others to leave it more; "
                           "lower data.max_length or lora.r to run now")
            : absl::StrCat("; ", never)));
    return reply;
  }
  SOUP_RETURN_IF_ERROR(set.status());
  const engine::PassJob largest =
      engine::LargestPass(job->id, job->shape, job->numeric,
                          std::min(set->micro_batches_a_pass, job->max_micro_batches()));
  SOUP_ASSIGN_OR_RETURN(
      const engine::MemoryPlan memory,
      engine::PlanMemory(job->shape.model, job->shape.format, {largest}, set->placement));
  reply.set_fits(true);
  reply.set_arena_bytes(memory.arena_bytes());
  reply.set_slots(set->placement.slots);
  reply.set_resident_layers(set->placement.resident_layers);
  reply.set_retention(engine::RetentionText(set->placement));
  reply.set_predicted_step_seconds(set->step.step_seconds);
  reply.set_predicted_copy_seconds(set->step.copy_seconds);
  reply.set_predicted_stall_seconds(set->step.stall_seconds);
  reply.set_predicted_tokens_per_second(set->step.tokens_per_second);
  reply.set_placement(engine::PlacementText(set->placement));
  reply.set_pass_host_bytes(memory.host_bytes());
  reply.set_predicted_offload_bytes(set->step.offload_bytes);
  reply.set_passes_a_step((job->train.max_micro_batches() + set->micro_batches_a_pass - 1) /
                          set->micro_batches_a_pass);
  AddRows(memory, tables, &reply);
  AddHostRows(memory, model.slab_bytes, engine::AdapterElements(job->shape.model, job->shape.lora),
              &reply);
  SOUP_ASSIGN_OR_RETURN(const engine::RunPasses run, PassesOfSet({job}, set->micro_batches_a_pass));
  SOUP_ASSIGN_OR_RETURN(const auto next,
                        engine::NextUsefulBudget(job->shape.model, job->shape.format, run,
                                                 {budget, host_budget}, profile));
  if (next.has_value()) {
    reply.set_next_budget_bytes(next->device_bytes + beside);
    reply.set_next_step_seconds(next->step_seconds);
  }
  reply.set_verdict(absl::StrCat("fits: ", HumanBytes(memory.device_bytes() + beside), " of ",
                                 HumanBytes(budget + beside), " on the device, ",
                                 set->placement.slots, " slots for ", job->shape.model.layers,
                                 " layers, activations: ", reply.retention()));
  return reply;
}

absl::StatusOr<soup::v1::PreviewDataReply> DaemonOrchestrator::PreviewData(
    const soup::v1::JobSpec& spec, const std::string& user, const std::string& base_real_path,
    int records, const CallLimits& limits) {
  CallWatch watch(limits);
  engine::ModelSpec model;
  SOUP_ASSIGN_OR_RETURN(soup::worker::v1::PrepareRequest request,
                        preparer_->MakeRequest(spec, base_real_path, &model));
  request.set_preview(true);
  request.set_preview_records(records);
  SOUP_ASSIGN_OR_RETURN(soup::worker::v1::PrepareReply reply,
                        runner_->Run(std::move(request), watch.cancellation(), limits.deadline));
  if (!reply.ok()) return absl::InvalidArgumentError(reply.error());
  soup::v1::PreviewDataReply preview = std::move(*reply.mutable_preview());
  *preview.mutable_report() = reply.report();
  return preview;
}

// ---- cache ----

absl::StatusOr<soup::v1::CacheEntry> DaemonOrchestrator::Prefetch(const soup::v1::BaseSpec& base,
                                                                  const std::string& base_real_path,
                                                                  const ProgressFn& progress,
                                                                  const CallLimits& limits) {
  SOUP_ASSIGN_OR_RETURN(const engine::BaseFormat format, FormatOf(base));
  cache::TaskControl control;
  control.cancelled = [&limits] { return limits.cancelled() || absl::Now() >= limits.deadline; };
  control.progress = [this, &progress](absl::string_view stage, int64_t done, int64_t total) {
    ++work_;
    soup::v1::Progress p;
    p.set_stage(std::string(stage));
    p.set_done(done);
    p.set_total(total);
    p.set_unit("bytes");
    if (progress) progress(p);
  };
  auto manifest = cache_->Import(base_real_path, format, control);
  loop_.Post([this] { PublishCacheMetrics(); });
  SOUP_RETURN_IF_ERROR(manifest.status());
  soup::v1::CacheEntry entry = EntryOf(*manifest);
  entry.set_last_used_unix_ms(parts_.clock->UnixNs() / 1'000'000);
  return entry;
}

absl::StatusOr<soup::v1::ListCacheReply> DaemonOrchestrator::ListCache() {
  soup::v1::ListCacheReply reply;
  std::map<cache::BaseKey, const cache::HostedBase*> hosted;
  const std::vector<cache::HostedBase> in_memory = cache_->host().List();
  for (const cache::HostedBase& base : in_memory) hosted[base.key] = &base;
  for (const cache::StoredBase& stored : cache_->shards().List()) {
    soup::v1::CacheEntry entry = EntryOf(stored.manifest);
    entry.set_last_used_unix_ms(stored.last_used_unix_ms);
    entry.set_in_use(stored.in_use);
    entry.set_in_host_store(hosted.count(stored.manifest.key) > 0);
    *reply.add_entries() = std::move(entry);
  }
  reply.set_total_bytes(cache_->shards().total_bytes());
  reply.set_cap_bytes(cache_->shards().cap_bytes());
  return reply;
}

absl::StatusOr<int64_t> DaemonOrchestrator::Evict(const std::string& fingerprint,
                                                  const std::string& format) {
  std::optional<engine::BaseFormat> one;
  if (!format.empty()) {
    SOUP_ASSIGN_OR_RETURN(one, engine::ParseBaseFormat(format));
  }
  auto freed = cache_->Evict(fingerprint, one);
  loop_.Post([this] { PublishCacheMetrics(); });
  if (!absl::IsFailedPrecondition(freed.status())) return freed;
  std::vector<std::string> users;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [key, ids] : jobs_on_base_)
      if (absl::StartsWith(key, fingerprint)) users.insert(users.end(), ids.begin(), ids.end());
  }
  if (users.empty()) return freed;
  return absl::FailedPreconditionError(absl::StrCat(freed.status().message(), "; used by ",
                                                    absl::StrJoin(users, ", "),
                                                    ": wait for them, or cancel them"));
}

void DaemonOrchestrator::PublishCacheMetrics() {
  const cache::CacheCounters now = cache_->shards().counters();
  for (int64_t i = told_counters_.hits; i < now.hits; ++i) parts_.metrics->CacheHit();
  for (int64_t i = told_counters_.misses; i < now.misses; ++i) parts_.metrics->CacheMiss();
  if (now.evictions > told_counters_.evictions)
    parts_.metrics->CacheEvictions(now.evictions - told_counters_.evictions);
  if (now.corruptions > told_counters_.corruptions)
    parts_.metrics->CacheCorruptions(now.corruptions - told_counters_.corruptions);
  told_counters_ = now;
  parts_.metrics->SetPinned(cache_->host().pinned_bytes(), pinned_limit_);
}

// ---- node ----

void DaemonOrchestrator::FillNode(soup::v1::Node* node) {
  const WorkerSupervisor::Info worker = supervisor_->info();
  std::map<std::string, std::vector<std::string>> jobs;
  bool known = false;  // what the worker said of its device has been taken in
  {
    absl::MutexLock lock(&mu_);
    jobs = jobs_on_base_;
    known = device_.up;
  }
  soup::v1::Device* device = node->add_devices();
  device->set_index(config_.device);
  device->set_name(worker.device);
  device->set_memory_bytes(worker.device_memory_bytes);
  device->set_free_bytes(worker.device_free_bytes);
  device->set_arena_bytes(worker.arena_bytes);
  device->set_host_memory_pageable(worker.host_memory_pageable);
  device->set_backend(BackendName());
  {
    absl::MutexLock lock(&mu_);
    device->set_overhead_bytes(device_.overhead_bytes);
    device->set_copy_bytes_per_second(device_.profile.copy_bytes_per_second);
    device->set_gemm_flops(device_.profile.gemm_flops);
    device->set_dequant_bytes_per_second(device_.profile.dequant_bytes_per_second);
    device->set_backend_reason(device_.backend_reason);
  }
  for (const cache::HostedBase& hosted : cache_->host().List()) {
    soup::v1::HostBase* base = node->add_bases();
    base->set_fingerprint(hosted.key.fingerprint);
    base->set_format(engine::BaseFormatName(hosted.key.format));
    base->set_bytes(hosted.bytes);
    base->set_tier(cache::MemoryTierName(hosted.tier));
    auto it = jobs.find(hosted.key.ToString());
    base->set_jobs(it == jobs.end() ? 0 : static_cast<int32_t>(it->second.size()));
  }
  soup::v1::WorkerInfo* info = node->add_workers();
  info->set_pid(worker.pid);
  info->set_state(worker.state);
  info->set_up(worker.up && known);
  info->set_restarts(worker.restarts);
  info->set_device(worker.device);
  info->set_heartbeat_age_ms(worker.heartbeat_age_ms);
  node->set_cache_bytes(cache_->shards().total_bytes());
  node->set_cache_cap_bytes(cache_->shards().cap_bytes());
  if (const absl::Status storage = parts_.storage->status(); !storage.ok()) {
    node->set_storage_healthy(false);
    node->set_storage_message(std::string(storage.message()));
  }
  const cache::StorageHealth health = cache_->shards().Health();
  if (!health.healthy) {
    node->set_storage_healthy(false);
    node->set_storage_message(health.message);
  }
}

}  // namespace soup::daemon
