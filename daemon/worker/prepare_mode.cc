#include "daemon/worker/prepare_mode.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/common/job_shape.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/data/prepare.h"
#include "engine/io/gguf_reader.h"
#include "engine/io/gguf_tokenizer.h"
#include "engine/model/model_spec.h"
#include "engine/plan/job_plan.h"
#include "engine/train/peft_import.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::worker {
namespace {

using soup::worker::v1::FromPrepare;
using soup::worker::v1::PrepareReply;
using soup::worker::v1::PrepareRequest;

constexpr absl::Duration kRequestPatience = absl::Seconds(60);
constexpr absl::Duration kGoodbye = absl::Seconds(60);

bool Limit(int resource, int64_t value) {
  if (value <= 0) return true;
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  return ::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0;
}

engine::PrepareOptions OptionsOf(const PrepareRequest& request) {
  engine::PrepareOptions options;
  options.tokenizer_dir = request.tokenizer_dir();
  for (const soup::worker::v1::TrainFile& file : request.train())
    options.train.push_back({file.path(), file.name(), file.format(), file.weight()});
  options.validation_path = request.validation_path();
  options.validation_name = request.validation_name();
  const soup::v1::DataSpec& data = request.spec().data();
  options.validation_fraction = data.validation_fraction();
  options.format = data.format();
  options.train_on = data.train_on();
  options.max_length = data.max_length();
  if (!data.too_long().empty()) options.too_long = data.too_long();
  options.max_bad_records = data.max_errors();
  options.seed = request.spec().training().seed();
  options.vocab_size = request.vocab_size();
  options.output_path = request.output_path();
  options.preview_records = request.preview_records();
  return options;
}

// Of a base that is one GGUF file: its tokenizer and template lie in the file's metadata.
absl::Status TakeGgufTokenizer(engine::PrepareOptions* options) {
  if (!engine::IsModelFile(options->tokenizer_dir)) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(const auto file, engine::GgufFile::Open(options->tokenizer_dir));
  SOUP_ASSIGN_OR_RETURN(engine::GgufTokenizerFiles files, engine::ReadGgufTokenizer(*file));
  options->tokenizer_json = std::move(files.tokenizer_json);
  options->tokenizer_config_json = std::move(files.tokenizer_config_json);
  return absl::OkStatus();
}

// lora.init_from, against what the job and its base make of an adapter.
absl::Status CheckInitFrom(const PrepareRequest& request) {
  if (request.init_adapter_path().empty() || request.preview()) return absl::OkStatus();
  const soup::v1::LoraSpec& lora = request.spec().lora();
  SOUP_ASSIGN_OR_RETURN(const engine::ModelSpec model,
                        engine::ParseModelSpec(request.config_json()));
  SOUP_ASSIGN_OR_RETURN(const engine::LoraShape shape, daemon::LoraShapeOf(lora, model));
  SOUP_ASSIGN_OR_RETURN(const auto layout, engine::AdapterLayout::Create(model, shape));
  return engine::CheckInitAdapter(engine::RealFileSystem(),
                                  {request.init_adapter_path(), request.init_adapter_config_path()},
                                  {shape.r, lora.alpha(), lora.rslora()}, layout);
}

void FillReport(const engine::DatasetReport& from, soup::v1::DatasetReport* to) {
  to->set_records(from.records);
  to->set_validation_records(from.validation_records);
  to->set_tokens(from.tokens);
  to->set_supervised_tokens(from.supervised_tokens);
  to->set_truncated_records(from.truncated_records);
  to->set_skipped_records(from.skipped_records);
  to->set_dropped_records(from.dropped_records);
  to->set_split_records(from.split_records);
  to->set_error_records(from.error_records);
  to->set_longest_record_tokens(from.longest_record_tokens);
  to->set_format(from.format);
  to->set_format_reason(from.format_reason);
  for (const std::string& warning : from.warnings) to->add_warnings(warning);
  for (const engine::SourceReport& source : from.sources) {
    soup::v1::SourceReport* out = to->add_sources();
    out->set_name(source.name);
    out->set_kind(source.kind);
    out->set_format(source.format);
    out->set_weight(source.weight);
    out->set_read_records(source.read);
    out->set_records(source.records);
    out->set_validation_records(source.validation_records);
    out->set_tokens(source.tokens);
    out->set_error_records(source.error_records);
  }
}

// The micro-batches that the job would run, over its first steps.
absl::Status FillPacking(const PrepareRequest& request, const engine::PrepareReport& report,
                         soup::v1::PackingReport* packing) {
  engine::JobShape shape;
  shape.lengths = report.lengths;
  shape.validation_lengths = report.validation_lengths;
  shape.batch = daemon::BatchParamsOf(request.spec());
  engine::NumericPlan plan;
  plan.backend = request.backend();
  engine::SetBuckets(shape, &plan);
  SOUP_ASSIGN_OR_RETURN(const engine::BatchSchedule schedule,
                        engine::MakeTrainSchedule(shape, plan));
  constexpr int64_t kStepsLookedAt = 1000;
  packing->set_steps_total(schedule.steps());
  packing->set_steps(std::min(schedule.steps(), kStepsLookedAt));
  int64_t batches = 0, records = 0, real = 0, bucket = 0, packed = 0;
  for (int64_t s = 1; s <= packing->steps(); ++s) {
    for (const engine::MicroBatch& batch : schedule.Step(s)) {
      ++batches;
      records += static_cast<int64_t>(batch.records.size());
      for (const int32_t record : batch.records)
        real += report.lengths[static_cast<size_t>(record)];
      packed += batch.tokens;
      bucket += plan.BucketFor(batch.tokens);
    }
  }
  packing->set_micro_batches(batches);
  packing->set_records(records);
  packing->set_tokens(real);
  packing->set_bucket_tail_tokens(bucket - packed);
  packing->set_between_record_tokens(packed - real);
  return absl::OkStatus();
}

void FillPreview(const PrepareRequest& request, const engine::PrepareReport& report,
                 PrepareReply* reply) {
  soup::v1::PreviewDataReply* preview = reply->mutable_preview();
  for (const engine::PreviewRecord& record : report.preview) {
    soup::v1::PreviewRecord* r = preview->add_records();
    r->set_line(record.line);
    r->set_truncated(record.truncated);
    r->set_source(record.source);
    r->set_pieces(record.pieces);
    for (const engine::PreviewToken& token : record.tokens) {
      soup::v1::PreviewToken* t = r->add_tokens();
      t->set_id(token.id);
      t->set_text(token.text);
      t->set_supervised(token.supervised);
    }
  }
  for (int64_t n : report.length_histogram) preview->add_length_histogram(n);
  soup::v1::PackingReport packing;
  if (const absl::Status status = FillPacking(request, report, &packing); !status.ok()) {
    reply->mutable_report()->add_warnings(
        absl::StrCat("no batches can be made of these records: ", status.message()));
    return;
  }
  const int64_t rows =
      packing.tokens() + packing.bucket_tail_tokens() + packing.between_record_tokens();
  preview->set_packing_efficiency(
      rows == 0 ? 0 : static_cast<double>(packing.tokens()) / static_cast<double>(rows));
  *preview->mutable_packing() = std::move(packing);
}

PrepareReply FailedReply(soup::v1::Reason reason, const std::string& error) {
  PrepareReply reply;
  reply.set_ok(false);
  reply.set_reason(reason);
  reply.set_error(error);
  return reply;
}

soup::v1::Reason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return soup::v1::DATA;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      return soup::v1::INVALID_INPUT;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDataLoss:
      return soup::v1::STORAGE;
    default:
      return soup::v1::INTERNAL;
  }
}

PrepareReply FailedReply(const absl::Status& status) {
  PrepareReply reply = FailedReply(ReasonOf(status), std::string(status.message()));
  reply.set_try_again(engine::OutOfDescriptors(status));
  return reply;
}

PrepareReply Prepare(daemon::Link& link, const PrepareRequest& request) {
  absl::Time last = absl::InfinitePast();
  auto progress = [&](absl::string_view stage, int64_t done, int64_t total) {
    const absl::Time now = absl::Now();
    if (done < total && now - last < absl::Milliseconds(100)) return true;
    last = now;
    FromPrepare message;
    message.mutable_progress()->set_stage(std::string(stage));
    message.mutable_progress()->set_done(done);
    message.mutable_progress()->set_total(total);
    message.mutable_progress()->set_unit("bytes");
    return link.Send(message).ok();  // nobody listens any more: stop
  };
  if (const absl::Status init = CheckInitFrom(request); !init.ok()) {
    const bool theirs = absl::IsInvalidArgument(init);
    return FailedReply(theirs ? soup::v1::INVALID_INPUT : ReasonOf(init),
                       std::string(init.message()));
  }
  engine::PrepareOptions options = OptionsOf(request);
  const absl::Status tokenizer = TakeGgufTokenizer(&options);
  if (!tokenizer.ok()) return FailedReply(tokenizer);
  auto report = engine::PrepareDataset(options, progress);
  if (!report.ok()) return FailedReply(report.status());
  PrepareReply reply;
  reply.set_ok(true);
  FillReport(report->dataset, reply.mutable_report());
  for (int32_t n : report->lengths) reply.add_lengths(n);
  for (int32_t n : report->validation_lengths) reply.add_validation_lengths(n);
  if (request.preview()) FillPreview(request, *report, &reply);
  return reply;
}

}  // namespace

int RunPrepareMode(daemon::Link& link) {
  auto frame = link.Receive(absl::Now() + kRequestPatience);
  PrepareRequest request;
  if (!frame.ok() || !request.ParseFromString(frame->bytes)) {
    SOUP_LOG(kError, "prepare") << "no request came: " << frame.status().message();
    return 1;
  }
  ::mallopt(M_ARENA_MAX, 1);  // arenas of threads reserve address space that is limited here
#if defined(__SANITIZE_ADDRESS__)
  // AddressSanitizer reserves terabytes of address space: no limit can be set.
  const int64_t memory_limit = 0;
#else
  const int64_t memory_limit = request.memory_limit_bytes();
#endif
  if (!Limit(RLIMIT_AS, memory_limit) || !Limit(RLIMIT_CPU, request.cpu_limit_seconds()) ||
      !Limit(RLIMIT_CORE, 0)) {
    SOUP_LOG(kError, "prepare") << "limits of memory and time cannot be set";
    return 1;
  }
  FromPrepare message;
  try {
    *message.mutable_reply() = Prepare(link, request);
  } catch (const std::bad_alloc&) {
    *message.mutable_reply() =
        FailedReply(soup::v1::DATA, absl::StrCat("preparing the data needs more than ",
                                                 request.memory_limit_bytes(),
                                                 " bytes of memory; use a smaller file, or raise "
                                                 "--prepare-memory of soupd"));
  }
  if (!link.Send(message).ok()) return 1;
  return link.Flush(absl::Now() + kGoodbye) ? 0 : 1;
}

}  // namespace soup::worker
