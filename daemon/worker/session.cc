#include "daemon/worker/session.h"

#include <signal.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "kernels/ops.h"

namespace soup::worker {

using soup::worker::v1::FromWorker;
using soup::worker::v1::ToWorker;

namespace {

constexpr int kDeviceFailed = 4;  // exit status

int64_t UnixMs() { return engine::RealClock().UnixNs() / 1'000'000; }

}  // namespace

Session::Session(SessionOptions options, Device* device, daemon::Link* link)
    : options_(options), device_(device), backend_(device->backend.get()), link_(link) {}

Session::~Session() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  if (heart_.joinable()) heart_.join();
}

int Session::Run() {
  FromWorker hello;
  soup::worker::v1::Hello* h = hello.mutable_hello();
  h->set_pid(::getpid());
  h->set_backend(backend_->name());
  const engine::MachineProfile& profile = device_->profile;
  h->set_device_name(profile.device_name);
  h->set_device_memory_bytes(profile.device_memory_bytes);
  h->set_device_free_bytes(device_->free_bytes());
  h->set_overhead_bytes(profile.overhead_bytes);
  h->set_machine_profile(profile.ToText());
  h->set_device_memory_apart(device_->memory_apart);
  h->set_backend_reason(device_->why);
  Send(hello);
  heart_ = std::thread([this] { Beat(); });
  for (;;) {
    absl::StatusOr<daemon::Frame> frame = link_->Receive();
    if (!frame.ok()) {
      const bool closed = absl::IsOutOfRange(frame.status());
      SOUP_LOG(kInfo, "worker") << "link ended: " << frame.status().message();
      return closed ? 0 : 1;
    }
    ToWorker message;
    if (!message.ParseFromString(frame->bytes)) {
      SOUP_LOG(kError, "worker") << "an order that is no message";
      return 1;
    }
    if (message.item_case() == ToWorker::kShutdown) return 0;
    Serve(message, std::move(frame->fds));
    ++orders_;
  }
}

void Session::Beat() {
  for (;;) {
    FromWorker m;
    {
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&ending_), options_.heartbeat)) return;
      m.mutable_heartbeat()->set_progress(orders_ + progress_before_ +
                                          (trainer_ == nullptr ? 0 : trainer_->progress()));
    }
    FillMemory(m.mutable_heartbeat());
    // soupd is gone: so are we, in the middle of a pass too. The mirror is whole at any instant.
    if (absl::IsUnavailable(link_->Send(m))) ::_exit(1);
  }
}

void Session::FillMemory(soup::worker::v1::WorkerHeartbeat* heartbeat) const {
  // An arena that came or went between two looks would be counted twice, or not at all.
  constexpr int kLooks = 5;
  engine::BackendCounters counters = backend_->counters();
  for (int look = 0; look < kLooks; ++look) {
    heartbeat->set_device_free_bytes(device_->free_bytes());
    heartbeat->set_arena_bytes(counters.arena_bytes);
    heartbeat->set_host_memory_pageable(counters.pageable_bytes > 0);
    counters = backend_->counters();
    if (counters.arena_bytes == heartbeat->arena_bytes()) return;
  }
}

void Session::Send(const FromWorker& message) {
  const absl::Status sent = link_->Send(message);
  if (sent.ok()) return;
  // What cannot be told must not be done either: soupd takes the jobs up with the next worker.
  SOUP_LOG(kError, "worker") << "cannot talk to soupd: " << sent.message();
  ::_exit(1);
}

void Session::Serve(const ToWorker& message, std::vector<engine::UniqueFd> fds) {
  switch (message.item_case()) {
    case ToWorker::kLoadBase:
      LoadBase(message.load_base(), std::move(fds));
      break;
    case ToWorker::kDropBase:
      DropBase(message.drop_base().base_key());
      break;
    case ToWorker::kOpenJob:
      OpenJob(message.open_job());
      break;
    case ToWorker::kCloseJob:
      CloseJob(message.close_job());
      break;
    case ToWorker::kRunPass:
      RunPass(message.run_pass());
      break;
    case ToWorker::kSaveCheckpoint:
      SaveCheckpoint(message.save_checkpoint().job_id(), /*ordered=*/true);
      break;
    case ToWorker::kFinalize:
      Finalize(message.finalize());
      break;
    default:
      SOUP_LOG(kWarn, "worker") << "an order that this worker does not know: "
                                << message.item_case();
  }
}

// ---- bases ----

void Session::LoadBase(const soup::worker::v1::LoadBase& load, std::vector<engine::UniqueFd> fds) {
  FromWorker m;
  soup::worker::v1::BaseLoaded* loaded = m.mutable_base_loaded();
  loaded->set_base_key(load.base_key());
  auto mapped = MappedBase::Map(load, std::move(fds));
  if (!mapped.ok()) {
    loaded->set_error(std::string(mapped.status().message()));
  } else {
    loaded->set_read_only((*mapped)->read_only());
    if (load.verify())
      for (int32_t slab : (*mapped)->BadSlabs(load)) loaded->add_bad_slabs(slab);
    if (loaded->bad_slabs_size() > 0) {
      loaded->set_error(absl::StrCat("slabs ", absl::StrJoin(loaded->bad_slabs(), ", "),
                                     " do not have their checksums: their memory was damaged"));
    } else {
      loaded->set_ok(true);
      bases_[load.base_key()] = *std::move(mapped);
    }
  }
  Send(m);
}

void Session::DropBase(const std::string& base_key) {
  if (device_base_ == base_key) ReleaseDevice("its base was dropped");
  bases_.erase(base_key);
  FromWorker m;
  m.mutable_base_dropped()->set_base_key(base_key);
  Send(m);
}

absl::Status Session::TakeDevice(const std::string& base_key) {
  if (device_base_ == base_key) return absl::OkStatus();
  const auto base = bases_.find(base_key);
  if (base == bases_.end())
    return absl::FailedPreconditionError(absl::StrCat("base ", base_key, " is not loaded"));
  ReleaseDevice("another base has its turn");
  engine::TrainerOptions options;
  options.profile = device_->profile;
  const absl::Time start = absl::Now();
  SOUP_ASSIGN_OR_RETURN(std::unique_ptr<engine::Trainer> trainer,
                        engine::Trainer::Create(backend_, base->second->base(), options));
  int64_t bytes = 0;
  for (const auto& slab : base->second->base().slabs) bytes += static_cast<int64_t>(slab.size());
  SOUP_LOG(kInfo, "worker") << base_key << " has the device: " << bytes << " bytes of store "
                            << (backend_->counters().pageable_bytes > 0 ? "NOT pinned" : "ready")
                            << " after " << absl::FormatDuration(absl::Now() - start);
  engine_ = trainer.get();
  device_base_ = base_key;
  absl::MutexLock lock(&mu_);
  trainer_ = std::move(trainer);
  return absl::OkStatus();
}

void Session::ReleaseDevice(const std::string& why) {
  std::vector<std::string> open;
  for (const auto& [id, job] : jobs_) open.push_back(id);
  for (const std::string& id : open) Fault(id, soup::v1::PREEMPTED, why, 0, /*ordered=*/false);
  engine_ = nullptr;
  device_base_.clear();
  absl::MutexLock lock(&mu_);
  if (trainer_ != nullptr) progress_before_ += trainer_->progress();
  trainer_.reset();
}

// ---- jobs ----

void Session::Fault(const std::string& job_id, soup::v1::Reason reason, const std::string& message,
                    int64_t step, bool ordered) {
  if (engine_ != nullptr && jobs_.erase(job_id) > 0) {
    const absl::Status closed = engine_->CloseJob(job_id);
    if (!closed.ok()) {
      SOUP_LOG(kWarn, "worker") << job_id << ": " << closed.message();
    }
  }
  FromWorker m;
  soup::worker::v1::JobFault* fault = m.mutable_job_fault();
  fault->set_job_id(job_id);
  fault->set_reason(reason);
  fault->set_message(message);
  fault->set_step(step);
  fault->set_ordered(ordered);
  Send(m);
}

void Session::OpenJob(const soup::worker::v1::OpenJob& open) {
  const std::string& id = open.job_id();
  auto fault = [&](const absl::Status& status) {
    Fault(id, ReasonOf(status, Doing::kOpen, false), std::string(status.message()), 0, true);
  };
  if (const absl::Status taken = TakeDevice(open.base_key()); !taken.ok()) return fault(taken);
  auto setup = MakeJobSetup(open, bases_[open.base_key()]->base().spec);
  if (!setup.ok()) return fault(setup.status());
  auto opened = engine_->OpenJob(*std::move(setup));
  if (!opened.ok()) return fault(opened.status());
  jobs_[id] = OpenedJob{open.spec().name(), open.spec().training().save_every(),
                        opened->steps_total, opened->steps_done, open.artifact_dir()};
  FromWorker m;
  soup::worker::v1::JobOpened* reply = m.mutable_job_opened();
  reply->set_job_id(id);
  reply->set_steps_done(opened->steps_done);
  reply->set_steps_total(opened->steps_total);
  reply->set_from_mirror(opened->from_mirror);
  reply->set_from_checkpoint(opened->from_checkpoint);
  for (const std::string& warning : opened->warnings) reply->add_warnings(warning);
  if (opened->last_step.has_value())
    *reply->mutable_last_step() = MakeStepRecord(*opened->last_step, UnixMs());
  Send(m);
}

void Session::CloseJob(const soup::worker::v1::CloseJob& close) {
  if (engine_ != nullptr && jobs_.erase(close.job_id()) > 0) {
    const absl::Status closed = engine_->CloseJob(close.job_id(), close.remove_mirror());
    if (!closed.ok()) {
      SOUP_LOG(kWarn, "worker") << close.job_id() << ": " << closed.message();
    }
  }
  FromWorker m;
  m.mutable_job_closed()->set_job_id(close.job_id());
  Send(m);
}

void Session::SaveCheckpoint(const std::string& job_id, bool ordered) {
  const absl::StatusOr<std::string> path =
      engine_ == nullptr ? absl::FailedPreconditionError("the job is not open")
                         : engine_->SaveCheckpoint(job_id);
  if (!path.ok()) {
    Fault(job_id, ReasonOf(path.status(), Doing::kCheckpoint, false),
          absl::StrCat("no checkpoint could be written: ", path.status().message()), 0, ordered);
    return;
  }
  FromWorker m;
  soup::worker::v1::CheckpointDone* done = m.mutable_checkpoint_done();
  done->set_job_id(job_id);
  done->set_path(*path);
  const size_t dash = path->rfind('-');
  if (dash != std::string::npos) done->set_step(std::atoll(path->c_str() + dash + 1));
  done->set_ordered(ordered);
  Send(m);
}

void Session::Finalize(const soup::worker::v1::Finalize& finalize) {
  const std::string& id = finalize.job_id();
  const auto job = jobs_.find(id);
  const absl::Status exported =
      engine_ == nullptr || job == jobs_.end()
          ? absl::FailedPreconditionError("the job is not open")
          : engine_->ExportAdapter(id, job->second.artifact_dir, finalize.base_model_name());
  if (!exported.ok()) {
    Fault(id, ReasonOf(exported, Doing::kExport, false),
          absl::StrCat("the adapter could not be written: ", exported.message()), 0, true);
    return;
  }
  FromWorker m;
  m.mutable_finalized()->set_job_id(id);
  Send(m);
}

// ---- passes ----

// The plan made here is the one that soupd made, to the byte.
absl::Status Session::CheckPlan(const engine::PassRequest& request,
                                const soup::worker::v1::RunPass& pass) const {
  SOUP_ASSIGN_OR_RETURN(const engine::MemoryPlan plan, engine_->Plan(request));
  if (plan.arena_bytes() == pass.placement().arena_bytes()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("soupd planned ", pass.placement().arena_bytes(),
                                          " bytes of arena for pass ", pass.pass_id(),
                                          ", the worker plans ", plan.arena_bytes()));
}

absl::StatusOr<TestDeath> TestDeath::Parse(const std::string& text) {
  static const std::map<std::string, How> kHows = {{"before", How::kBefore},
                                                   {"committed", How::kCommitted},
                                                   {"fault", How::kFault},
                                                   {"fault-once", How::kFaultOnce}};
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  TestDeath death;
  if (parts.size() != 3 || parts[0].empty() || !absl::SimpleAtoi(parts[1], &death.step) ||
      kHows.count(parts[2]) == 0)
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not NAME:STEP:before|committed|fault|fault-once"));
  death.job_name = parts[0];
  death.how = kHows.at(parts[2]);
  return death;
}

void Session::DieInTest(const soup::worker::v1::RunPass& pass, bool committed) {
  const TestDeath& death = options_.test_death;
  if (death.job_name.empty() || (death.how == TestDeath::How::kCommitted) != committed) return;
  for (const soup::worker::v1::WorkItem& item : pass.items()) {
    const auto job = jobs_.find(item.job_id());
    if (job == jobs_.end() || job->second.name != death.job_name || item.step() != death.step ||
        item.score())
      continue;
    if (death.how == TestDeath::How::kBefore || death.how == TestDeath::How::kCommitted)
      ::raise(SIGKILL);
    if (death.how == TestDeath::How::kFaultOnce && job->second.steps_at_open == death.step - 1)
      continue;
    kernels::GatherActRowsArgs nowhere{};
    nowhere.x = nowhere.y = reinterpret_cast<void*>(0x1000);
    nowhere.rows = reinterpret_cast<const int32_t*>(0x1000);
    nowhere.n = 1;
    nowhere.H = 8;
    backend_->GatherActRows(nowhere);
  }
}

void Session::RunPass(const soup::worker::v1::RunPass& pass) {
  absl::StatusOr<engine::PassResult> result = absl::FailedPreconditionError(
      absl::StrCat("base ", pass.base_key(), " does not have the device"));
  absl::StatusOr<engine::PassRequest> request = MakePassRequest(pass);
  absl::Status ready = request.status();
  if (ready.ok() && device_base_ == pass.base_key()) {
    ready = CheckPlan(*request, pass);
    DieInTest(pass, /*committed=*/false);
    if (ready.ok()) result = engine_->RunPass(*request);
    DieInTest(pass, /*committed=*/true);
  }
  if (!ready.ok()) result = ready;
  FromWorker m;
  soup::worker::v1::PassDone* done = m.mutable_pass_done();
  done->set_pass_id(pass.pass_id());
  if (result.ok()) {
    TellSteps(*result);
    done->set_seconds(result->seconds);
    done->set_stall_seconds(result->stall_seconds);
    done->set_copy_bytes(result->copy_bytes);
    done->set_copy_busy_seconds(result->copy_busy_seconds);
    done->set_offload_out_bytes(result->offload_out_bytes);
    done->set_offload_in_bytes(result->offload_in_bytes);
    done->set_arena_planned_bytes(result->arena_planned_bytes);
    done->set_arena_measured_bytes(result->arena_measured_bytes);
    done->set_device_peak_bytes(device_->profile.overhead_bytes + backend_->counters().arena_bytes);
    done->set_tokens(result->tokens);
  } else {
    TellFailedPass(pass, result.status());
  }
  Send(m);
}

void Session::TellSteps(const engine::PassResult& result) {
  for (const engine::StepStats& step : result.steps) {
    FromWorker m;
    m.mutable_step_done()->set_job_id(step.job_id);
    *m.mutable_step_done()->mutable_step() = MakeStepRecord(step, UnixMs());
    m.mutable_step_done()->set_warning(step.warning);
    Send(m);
  }
  for (const engine::ValidationStats& validation : result.validations) {
    FromWorker m;
    m.mutable_validation_done()->set_job_id(validation.job_id);
    m.mutable_validation_done()->set_step(validation.step);
    m.mutable_validation_done()->set_loss(validation.loss);
    m.mutable_validation_done()->set_warning(validation.warning);
    Send(m);
  }
  for (const engine::JobFaultInfo& fault : result.faults)
    Fault(fault.job_id, ReasonOf(fault.status, Doing::kStep, fault.storage),
          std::string(fault.status.message()), fault.step, /*ordered=*/false);
  for (const engine::StepStats& step : result.steps) {
    const auto job = jobs_.find(step.job_id);
    if (job == jobs_.end()) continue;
    const bool due = job->second.save_every > 0 && step.step % job->second.save_every == 0;
    if (due || step.step == job->second.steps_total) SaveCheckpoint(step.job_id, /*ordered=*/false);
  }
}

// Every job is closed: what was on the device is not to be trusted. Jobs of the pass are told the
// reason, the others only that they must be opened again.
void Session::TellFailedPass(const soup::worker::v1::RunPass& pass, const absl::Status& status) {
  SOUP_LOG(kError, "worker") << "pass " << pass.pass_id() << ": " << status.ToString();
  const bool memory = absl::IsResourceExhausted(status);
  if (memory) {
    // What soupd plans with next is what is free now.
    FromWorker m;
    m.mutable_heartbeat()->set_progress(++orders_);
    FillMemory(m.mutable_heartbeat());
    Send(m);
  }
  for (const soup::worker::v1::WorkItem& item : pass.items())
    Fault(item.job_id(), memory ? soup::v1::OUT_OF_MEMORY : soup::v1::DEVICE_LOST,
          std::string(status.message()), item.step(), /*ordered=*/false);
  if (!backend_->status().ok()) LeaveDevice();
  ReleaseDevice("a pass failed");
}

// Neither the trainer nor the backend is destroyed: they would wait for a device that is gone.
void Session::LeaveDevice() {
  SOUP_LOG(kError, "worker") << "the device has failed (" << backend_->status().message()
                             << "): this worker ends, the next begins anew";
  link_->Flush(absl::Now() + absl::Seconds(5));
  ::_exit(kDeviceFailed);
}

}  // namespace soup::worker
