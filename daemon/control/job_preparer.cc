#include "daemon/control/job_preparer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/common/data_files.h"
#include "daemon/common/job_shape.h"
#include "daemon/control/sha256.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_spec.h"

namespace soup::daemon {
namespace {

using soup::v1::Progress;
using soup::worker::v1::PrepareReply;
using soup::worker::v1::PrepareRequest;

std::string DatasetPath(const Config& config, const std::string& id) {
  return engine::JoinPath(config.JobDir(id), "dataset.sds");
}
std::string PreparedPath(const Config& config, const std::string& id) {
  return engine::JoinPath(config.JobDir(id), "prepared.bin");
}

absl::StatusOr<std::string> Sha256Of(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return engine::ErrnoStatus(errno, "open", path);
  auto digest = Sha256HexOfFile(fd, path);
  ::close(fd);
  return digest;
}

// That soupd's copy of an uploaded file is what was uploaded; one that is not is removed, so that
// the next submit uploads it again.
absl::Status CheckUpload(const std::string& path, const soup::v1::FileRef& file) {
  const absl::StatusOr<std::string> sha256 = Sha256Of(path);
  if (!sha256.ok()) return absl::OkStatus();  // whoever reads it says why it cannot
  if (*sha256 == file.sha256()) return absl::OkStatus();
  engine::RealFileSystem().Remove(path).IgnoreError();
  return absl::FailedPreconditionError(absl::StrCat(
      file.name(), ": soupd's copy, ", path, ", is not what was uploaded (SHA-256 ", *sha256,
      "): it was damaged on the disk and has been removed; submit the job again"));
}

PrepareFailure Fail(const absl::Status& status) {
  PrepareFailure failure;
  failure.message = std::string(status.message());
  if (absl::IsCancelled(status)) {
    failure.then = PrepareFailure::Then::kCancelled;
    failure.reason = soup::v1::USER_REQUEST;
  } else if (absl::IsResourceExhausted(status)) {
    failure.then = PrepareFailure::Then::kPause;
    failure.reason = soup::v1::STORAGE;
  } else if (engine::OutOfDescriptors(status)) {
    failure.then = PrepareFailure::Then::kWait;
    failure.reason = soup::v1::REASON_UNSPECIFIED;
  } else {
    failure.reason = ReasonOf(status);
  }
  return failure;
}

cache::TaskControl ControlOf(Cancellation* cancel, const JobPreparer::ProgressFn& progress) {
  cache::TaskControl control;
  control.cancelled = [cancel] { return cancel->cancelled(); };
  control.progress = [progress](absl::string_view stage, int64_t done, int64_t total) {
    if (!progress) return;
    Progress p;
    p.set_stage(std::string(stage));
    p.set_done(done);
    p.set_total(total);
    p.set_unit("bytes");
    progress(p);
  };
  return control;
}

std::vector<int32_t> ToVector(const google::protobuf::RepeatedField<int32_t>& field) {
  return std::vector<int32_t>(field.begin(), field.end());
}

// Everything but the base.
absl::StatusOr<std::shared_ptr<PreparedJob>> Assemble(const std::string& id,
                                                      const soup::v1::JobSpec& spec,
                                                      const engine::ModelSpec& model,
                                                      const PrepareReply& reply,
                                                      const std::string& frozen_numeric_plan,
                                                      const engine::MachineProfile& profile) {
  SOUP_ASSIGN_OR_RETURN(engine::JobShape shape, JobShapeOf(spec, model, ToVector(reply.lengths()),
                                                           ToVector(reply.validation_lengths())));
  engine::NumericPlan numeric;
  if (frozen_numeric_plan.empty()) {
    SOUP_ASSIGN_OR_RETURN(numeric, engine::MakeNumericPlan(shape, profile));
  } else {
    SOUP_ASSIGN_OR_RETURN(numeric, engine::NumericPlan::FromText(frozen_numeric_plan));
  }
  SOUP_ASSIGN_OR_RETURN(engine::BatchSchedule train, engine::MakeTrainSchedule(shape, numeric));
  // The first update of a warm-up has rate 0, as in transformers; such a run would train nothing.
  if (train.steps() == 1 && spec.training().warmup_ratio() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("training: the run is one step (", shape.lengths.size(),
                     " records, batch_size ", spec.training().batch_size(),
                     "), and the first step of a warm-up has learning rate 0: set "
                     "training.warmup_ratio: 0, or lower batch_size, or raise epochs"));
  }
  std::optional<engine::BatchSchedule> validation;
  if (!shape.validation_lengths.empty()) {
    SOUP_ASSIGN_OR_RETURN(validation, engine::MakeValidationSchedule(shape, numeric));
  }
  return std::make_shared<PreparedJob>(PreparedJob{id, spec, std::move(shape), std::move(numeric),
                                                   std::move(train), std::move(validation)});
}

}  // namespace

soup::v1::Reason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kAborted:  // the model's files changed while they were read
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return soup::v1::INVALID_INPUT;
    case absl::StatusCode::kResourceExhausted:
      return soup::v1::OUT_OF_MEMORY;
    default:
      return soup::v1::INTERNAL;
  }
}

absl::StatusOr<cache::InspectedModel> InspectBase(cache::BaseCache* cache,
                                                  const std::string& base_real_path,
                                                  engine::BaseFormat format) {
  auto inspected = cache->Inspect(base_real_path, format);
  if (absl::IsNotFound(inspected.status()))
    return absl::InvalidArgumentError(inspected.status().message());
  return inspected;
}

JobPreparer::JobPreparer(const Config* config, cache::BaseCache* cache, PrepareRunner* runner,
                         ProfileFn profile)
    : config_(config), cache_(cache), runner_(runner), profile_(std::move(profile)) {}

absl::StatusOr<PrepareRequest> JobPreparer::MakeRequest(const soup::v1::JobSpec& spec,
                                                        const std::string& base_real_path,
                                                        engine::ModelSpec* model) {
  SOUP_ASSIGN_OR_RETURN(const engine::BaseFormat format, FormatOf(spec.base()));
  SOUP_ASSIGN_OR_RETURN(cache::InspectedModel inspected,
                        InspectBase(cache_, base_real_path, format));
  *model = inspected.spec;
  PrepareRequest request;
  request.set_tokenizer_dir(base_real_path);
  for (const soup::v1::DataSource& source : SourcesOf(spec.data())) {
    soup::worker::v1::TrainFile* file = request.add_train();
    file->set_path(config_->FilePath(source.file().sha256()));
    file->set_name(source.file().name());
    file->set_weight(source.weight());
    file->set_format(source.format());
  }
  request.set_backend(config_->backend);
  if (spec.data().has_validation_file()) {
    request.set_validation_path(config_->FilePath(spec.data().validation_file().sha256()));
    request.set_validation_name(spec.data().validation_file().name());
  }
  if (spec.lora().has_init_adapter()) {
    request.set_init_adapter_path(config_->FilePath(spec.lora().init_adapter().sha256()));
    request.set_init_adapter_config_path(
        config_->FilePath(spec.lora().init_adapter_config().sha256()));
    request.set_config_json(inspected.config_json);
  }
  *request.mutable_spec() = spec;
  request.set_vocab_size(model->vocab);
  return request;
}

absl::StatusOr<PrepareReply> JobPreparer::ReadReply(const std::string& id) {
  SOUP_ASSIGN_OR_RETURN(const std::string text,
                        engine::RealFileSystem().ReadFile(PreparedPath(*config_, id)));
  PrepareReply reply;
  if (!reply.ParseFromString(text) || !reply.ok() || reply.lengths().empty())
    return absl::DataLossError("prepared.bin is not whole");
  return reply;
}

absl::StatusOr<JobPreparer::Data> JobPreparer::LoadPrepared(const JobRecord& record) {
  const std::string path = DatasetPath(*config_, record.id);
  Data data;
  SOUP_ASSIGN_OR_RETURN(data.reply, ReadReply(record.id));
  SOUP_ASSIGN_OR_RETURN(const std::string sha256, Sha256Of(path));
  if (sha256 != data.reply.dataset_sha256())
    return absl::DataLossError(absl::StrCat(path, " is not what was prepared"));
  SOUP_ASSIGN_OR_RETURN(const engine::BaseFormat format, FormatOf(record.spec.base()));
  // The base as it was prepared for; its folder may be gone by now.
  if (!record.base_key.empty()) {
    for (const cache::StoredBase& stored : cache_->shards().List()) {
      if (stored.manifest.key.ToString() != record.base_key) continue;
      SOUP_ASSIGN_OR_RETURN(data.model, engine::ParseModelSpec(stored.manifest.config_json));
      return data;
    }
  }
  SOUP_ASSIGN_OR_RETURN(cache::InspectedModel inspected,
                        cache_->Inspect(record.base_real_path, format));
  data.model = inspected.spec;
  return data;
}

absl::StatusOr<JobPreparer::Data> JobPreparer::MakePrepared(const JobRecord& record,
                                                            Cancellation* cancel,
                                                            const ProgressFn& progress,
                                                            PrepareFailure* failure) {
  engine::FileSystem& fs = engine::RealFileSystem();
  auto fail = [failure](const absl::Status& status) {
    *failure = Fail(status);
    return status;
  };
  Data data;
  auto request = MakeRequest(record.spec, record.base_real_path, &data.model);
  if (!request.ok()) return fail(request.status());
  if (auto s = fs.CreateDirectories(config_->JobDir(record.id)); !s.ok()) return fail(s);
  std::vector<soup::v1::FileRef> files;
  for (const soup::v1::DataSource& source : SourcesOf(record.spec.data()))
    files.push_back(source.file());
  if (record.spec.data().has_validation_file())
    files.push_back(record.spec.data().validation_file());
  if (record.spec.lora().has_init_adapter()) {
    files.push_back(record.spec.lora().init_adapter());
    files.push_back(record.spec.lora().init_adapter_config());
  }
  for (const soup::v1::FileRef& file : files) {
    if (cancel->cancelled()) return fail(absl::CancelledError("cancelled"));
    if (auto s = CheckUpload(config_->FilePath(file.sha256()), file); !s.ok()) return fail(s);
  }
  request->set_output_path(DatasetPath(*config_, record.id));
  auto reply = runner_->Run(*request, cancel, absl::InfiniteFuture(), progress);
  if (!reply.ok()) return fail(reply.status());
  data.reply = *std::move(reply);
  if (!data.reply.ok() && data.reply.try_again()) {
    return fail(absl::UnavailableError(data.reply.error()));
  }
  if (!data.reply.ok()) {
    failure->reason = data.reply.reason();
    failure->then = failure->reason == soup::v1::STORAGE ? PrepareFailure::Then::kPause
                                                         : PrepareFailure::Then::kFail;
    failure->message = data.reply.error();
    return absl::InvalidArgumentError(data.reply.error());
  }
  data.reply.clear_preview();
  auto sha256 = Sha256Of(DatasetPath(*config_, record.id));
  if (!sha256.ok()) return fail(sha256.status());
  data.reply.set_dataset_sha256(*sha256);
  // Made anew for a job that has begun (the old one was lost or damaged): it has to be the same.
  const absl::StatusOr<PrepareReply> before = ReadReply(record.id);
  if (!record.base_key.empty() && before.ok() && !before->dataset_sha256().empty() &&
      before->dataset_sha256() != *sha256) {
    fs.Remove(DatasetPath(*config_, record.id)).IgnoreError();
    return fail(absl::InvalidArgumentError(absl::StrCat(
        "the job's prepared data was lost, and prepared again it comes out otherwise: the "
        "tokenizer or chat template in ",
        record.base_real_path,
        " is not the one that the job began with (or soupd is of another version); put it back, or "
        "submit the job anew")));
  }
  auto written = engine::WriteFileAtomically(fs, PreparedPath(*config_, record.id),
                                             data.reply.SerializeAsString());
  if (!written.ok()) return fail(written);
  return data;
}

absl::StatusOr<cache::BaseLease> JobPreparer::AcquireBase(const JobRecord& record,
                                                          Cancellation* cancel,
                                                          const ProgressFn& progress,
                                                          PrepareFailure* failure) {
  const cache::TaskControl control = ControlOf(cancel, progress);
  absl::StatusOr<cache::BaseLease> lease = absl::NotFoundError("");
  if (!record.base_key.empty()) {
    auto key = cache::BaseKey::Parse(record.base_key);
    if (key.ok()) lease = cache_->Acquire(*key, control);
  }
  if (absl::IsNotFound(lease.status())) {
    auto format = FormatOf(record.spec.base());
    lease = format.ok() ? cache_->Acquire(record.base_real_path, *format, control)
                        : absl::StatusOr<cache::BaseLease>(format.status());
    if (lease.ok() && !record.base_key.empty() &&
        lease->manifest().key.ToString() != record.base_key)
      lease = absl::InvalidArgumentError(absl::StrCat(
          "the base in ", record.base_real_path, " is not the one that this job began with (",
          lease->manifest().key.ToString(), ", was ", record.base_key,
          "); put the old files back, or submit the job anew"));
  }
  if (lease.ok()) return lease;
  *failure = Fail(lease.status());
  if (absl::IsResourceExhausted(lease.status())) {
    // A base that made it to the shard store failed for want of memory, any other of disk.
    const auto format = FormatOf(record.spec.base());
    for (const cache::StoredBase& stored : cache_->shards().List()) {
      const bool same = record.base_key.empty()
                            ? stored.manifest.source_folder == record.base_real_path &&
                                  format.ok() && stored.manifest.key.format == *format
                            : stored.manifest.key.ToString() == record.base_key;
      if (!same) continue;
      failure->reason = soup::v1::OUT_OF_MEMORY;
      failure->then = PrepareFailure::Then::kFail;
      for (const cache::HostedBase& hosted : cache_->host().List()) {
        if (hosted.holders > 0) failure->then = PrepareFailure::Then::kWait;
      }
    }
  }
  return lease.status();
}

// A job that has begun is not lost for what may come back: host memory that others hold, files of
// its base that are away or changed.
PrepareOutcome JobPreparer::Prepare(
    const JobRecord& record, Cancellation* cancel, const ProgressFn& progress,
    const std::function<absl::Status(const std::string&)>& store_numeric_plan) {
  PrepareOutcome outcome = PrepareOnce(record, cancel, progress, store_numeric_plan);
  PrepareFailure& failure = outcome.failure;
  const bool begun = !record.base_key.empty();
  if (outcome.job != nullptr || !begun || failure.then != PrepareFailure::Then::kFail) {
    return outcome;
  }
  if (failure.reason == soup::v1::OUT_OF_MEMORY) failure.then = PrepareFailure::Then::kWait;
  if (failure.reason == soup::v1::INVALID_INPUT) {
    failure.then = PrepareFailure::Then::kPause;
    absl::StrAppend(&failure.message,
                    "; what the job has done is kept: mend it and resume the job");
  }
  return outcome;
}

PrepareOutcome JobPreparer::PrepareOnce(
    const JobRecord& record, Cancellation* cancel, const ProgressFn& progress,
    const std::function<absl::Status(const std::string&)>& store_numeric_plan) {
  PrepareOutcome outcome;
  auto fail = [&outcome](const absl::Status& status) {
    outcome.failure = Fail(status);
    return std::move(outcome);
  };
  absl::StatusOr<Data> data = LoadPrepared(record);
  if (absl::IsDataLoss(data.status())) {
    SOUP_LOG(kWarn, "jobs") << record.id << ": " << data.status().message() << "; prepared anew";
  }
  if (engine::OutOfDescriptors(data.status())) return fail(data.status());
  if (!data.ok()) data = MakePrepared(record, cancel, progress, &outcome.failure);
  if (!data.ok()) return outcome;
  outcome.dataset = data->reply.report();
  for (const std::string& w : data->reply.report().warnings()) outcome.warnings.push_back(w);

  auto profile = profile_(cancel);
  if (!profile.ok()) return fail(profile.status());
  auto job =
      Assemble(record.id, record.spec, data->model, data->reply, record.numeric_plan, *profile);
  if (!job.ok()) {
    outcome.failure = Fail(job.status());
    if (absl::IsInvalidArgument(job.status())) outcome.failure.reason = soup::v1::INVALID_INPUT;
    return outcome;
  }
  (*job)->dataset_path = DatasetPath(*config_, record.id);
  if (auto s = store_numeric_plan((*job)->numeric.ToText()); !s.ok()) return fail(s);

  auto lease = AcquireBase(record, cancel, progress, &outcome.failure);
  if (!lease.ok()) return outcome;
  for (const std::string& w : lease->manifest().warnings) outcome.warnings.push_back(w);
  outcome.imported = lease->imported();
  (*job)->base_key = lease->manifest().key.ToString();
  (*job)->lease = *std::move(lease);
  if (cancel->cancelled()) return fail(absl::CancelledError("cancelled"));
  outcome.job = *std::move(job);
  return outcome;
}

absl::StatusOr<std::shared_ptr<const PreparedJob>> JobPreparer::PlanOnly(
    const soup::v1::JobSpec& spec, const std::string& base_real_path, Cancellation* cancel,
    absl::Time deadline, PrepareReply* reply) {
  engine::ModelSpec model;
  SOUP_ASSIGN_OR_RETURN(const PrepareRequest request, MakeRequest(spec, base_real_path, &model));
  SOUP_ASSIGN_OR_RETURN(*reply, runner_->Run(request, cancel, deadline));
  if (!reply->ok()) return absl::InvalidArgumentError(reply->error());
  SOUP_ASSIGN_OR_RETURN(const engine::MachineProfile profile, profile_(cancel));
  return Assemble("plan", spec, model, *reply, "", profile);
}

}  // namespace soup::daemon
