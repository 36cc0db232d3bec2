#include "engine/train/trainer.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/train/trainer_rep.h"

namespace soup::engine {

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Backend* backend, ModelBase base,
                                                         TrainerOptions options) {
  SOUP_RETURN_IF_ERROR(CheckModelBase(base));
  return std::unique_ptr<Trainer>(
      new Trainer(std::make_unique<Rep>(backend, std::move(base), options)));
}

Trainer::Trainer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Trainer::~Trainer() = default;

int64_t Trainer::progress() const { return rep_->progress.load(std::memory_order_relaxed); }

absl::StatusOr<JobOpened> Trainer::OpenJob(JobSetup setup) {
  if (rep_->jobs.count(setup.job_id) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("job ", setup.job_id, " is open already"));
  }
  const NumericPlan& numeric = setup.numeric;
  if (numeric.backend != rep_->backend->name()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", setup.job_id,
                                                   " was planned for backend ", numeric.backend,
                                                   " and this one is ", rep_->backend->name()));
  }
  const MachineProfile& profile = rep_->options.profile;
  if (!profile.backend.empty()) {
    if (const std::string why = OtherMachine(numeric, profile); !why.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", setup.job_id, ": ", why,
                       ": other bits would come out. Run it where it was planned, or submit it "
                       "again"));
    }
  }
  SOUP_ASSIGN_OR_RETURN(
      std::unique_ptr<JobRun> job,
      JobRun::Open(rep_->backend, rep_->base, rep_->options.file_system, std::move(setup)));
  JobOpened opened = job->opened();
  SOUP_ASSIGN_OR_RETURN(
      const GemmPreparation gemms,
      rep_->PrepareGemms(
          job, rep_->backend->chooses_gemms() ? job->EveryRowCounts() : std::set<RowCounts>()));
  SOUP_RETURN_IF_ERROR(rep_->PrepareAttention(job->setup()));
  SOUP_RETURN_IF_ERROR(job->Freeze(gemms.fingerprint));
  opened.gemms_tuned = gemms.tuned;
  opened.gemm_tuning_seconds = gemms.seconds;
  const std::string id = job->id();
  rep_->jobs.emplace(id, std::move(job));
  return opened;
}

absl::Status Trainer::CloseJob(const std::string& job_id, bool remove_mirror) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  rep_->memory.Drop(job_id);
  const absl::Status removed = remove_mirror ? job->RemoveMirror() : absl::OkStatus();
  rep_->jobs.erase(job_id);
  if (rep_->jobs.empty()) {
    rep_->broken = false;
    rep_->memory.Release();
  }
  return removed;
}

absl::StatusOr<std::string> Trainer::SaveCheckpoint(const std::string& job_id) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  SOUP_RETURN_IF_ERROR(rep_->memory.Save(job_id, &job->host()));
  return job->SaveCheckpoint();
}

absl::Status Trainer::ExportAdapter(const std::string& job_id, const std::string& dir,
                                    const std::string& base_model_name) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  SOUP_RETURN_IF_ERROR(rep_->memory.Save(job_id, &job->host()));
  return job->Export(dir, base_model_name);
}

absl::StatusOr<AdapterSnapshot> Trainer::AdapterState(const std::string& job_id) {
  SOUP_ASSIGN_OR_RETURN(JobRun * job, rep_->Find(job_id));
  SOUP_RETURN_IF_ERROR(rep_->memory.Save(job_id, &job->host()));
  AdapterSnapshot snapshot;
  snapshot.steps_done = job->steps_done();
  snapshot.optimizer_steps = job->optimizer_steps();
  const auto copy = [](absl::Span<const float> from) {
    return std::vector<float>(from.begin(), from.end());
  };
  snapshot.weights = copy(job->host().weights());
  snapshot.gradients = copy(job->host().gradients());
  snapshot.first_moment = copy(job->host().first_moment());
  snapshot.second_moment = copy(job->host().second_moment());
  return snapshot;
}

absl::StatusOr<JobRun*> Trainer::Rep::Find(const std::string& id) const {
  const auto it = jobs.find(id);
  if (it == jobs.end()) return absl::NotFoundError(absl::StrCat("job ", id, " is not open"));
  return it->second.get();
}

std::map<std::string, HostState*> Trainer::Rep::HostStates() const {
  std::map<std::string, HostState*> states;
  for (const auto& [id, job] : jobs) states.emplace(id, &job->host());
  return states;
}

}  // namespace soup::engine
