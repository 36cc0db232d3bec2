#include "tests/client/fake_soup.h"

#include <grpc/grpc.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/exit_codes.h"
#include "client/sha256.h"

namespace soup::client {
namespace {

using namespace soup::v1;  // NOLINT: every line here speaks of its messages
using grpc::Status;
using grpc::StatusCode;

// Long enough for a machine that does much else; nothing waits for it unless something is wrong.
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr int64_t kEpochMs = 1'900'000'000'000;

Status NoJob(const std::string& id) {
  return Status(StatusCode::NOT_FOUND, absl::StrCat("there is no job ", id));
}

std::string HashOf(const std::string& data) {
  Sha256 hash;
  hash.Update(data);
  return hash.HexDigest();
}

}  // namespace

FakeSoup::FakeSoup() {
  // A use of gRPC that is never given back: the last one to be given back waits, up to ten seconds,
  // for a thread that polls on behalf of a call that was broken off (gRPC 1.51).
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  node_.set_version(SOUP_VERSION);
  node_.set_hostname("fake");
  node_.set_memory_total_bytes(int64_t{64} << 30);
  node_.set_memory_available_bytes(int64_t{32} << 30);
  node_.set_state_dir("/var/lib/soupd");
  node_.set_state_dir_free_bytes(int64_t{500} << 30);
  node_.set_storage_healthy(true);
  node_.set_user("uid:1000");
  node_.add_model_roots("/models");
  auto* device = node_.add_devices();
  device->set_name("CPU");
  device->set_backend("cpu");
  plan_.set_fits(true);
  plan_.set_verdict("fits with 2 slots");
}

Job* FakeSoup::AddJob(const std::string& id, const std::string& name, JobState state) {
  absl::MutexLock lock(&mutex_);
  Record& record = records_[id];
  record.job.set_id(id);
  record.job.set_state(state);
  record.job.set_created_unix_ms(kEpochMs + static_cast<int64_t>(records_.size()));
  record.job.set_user("uid:1000");
  record.job.mutable_spec()->set_name(name);
  record.job.mutable_spec()->mutable_base()->set_path("/models/m");
  record.log = absl::StrCat("first line of ", id, "\nsecond\nthird\n");
  return &record.job;
}

void FakeSoup::AddEvent(const std::string& id, JobState state, const std::string& message,
                        soup::v1::Reason reason) {
  absl::MutexLock lock(&mutex_);
  Record& record = records_.at(id);
  record.job.set_last_sequence(record.job.last_sequence() + 1);
  record.job.set_state(state);
  record.job.set_message(message);
  record.job.set_reason(reason);
  auto* event = record.history.emplace_back().mutable_event();
  event->set_job_id(id);
  event->set_sequence(record.job.last_sequence());
  event->set_state(state);
  event->set_reason(reason);
  event->set_message(message);
}

void FakeSoup::AddStep(const std::string& id, int64_t step, double loss) {
  absl::MutexLock lock(&mutex_);
  Record& record = records_.at(id);
  record.job.set_steps_done(step);
  record.job.set_last_loss(loss);
  auto* s = record.history.emplace_back().mutable_step();
  s->set_step(step);
  s->set_loss(loss);
  s->set_tokens(1000);
  s->set_step_seconds(2);
  s->set_stall_seconds(0.1);
}

void FakeSoup::AddArtifact(const std::string& id, const std::string& name,
                           const std::string& data) {
  absl::MutexLock lock(&mutex_);
  records_.at(id).artifacts[name] = data;
}

void FakeSoup::SetJob(const Job& job) {
  absl::MutexLock lock(&mutex_);
  records_[job.id()].job = job;
}

Job FakeSoup::GetJob(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  return records_.at(id).job;
}

std::string FakeSoup::Uploaded(const std::string& sha256) {
  absl::MutexLock lock(&mutex_);
  const auto it = whole_.find(sha256);
  return it == whole_.end() ? "" : it->second;
}

bool FakeSoup::AwaitStall() {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&seen_.stalled), kPatience);
}

bool FakeSoup::AwaitWatches(size_t count) {
  absl::MutexLock lock(&mutex_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return seen_.watches.size() >= count;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
}

void FakeSoup::ServeUnix(const std::string& socket) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

int FakeSoup::ServeTls(const std::string& certificate, const std::string& key,
                       const std::string& token) {
  token_ = token;
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({key, certificate});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  return port;
}

void FakeSoup::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

Status FakeSoup::Admit(const Context& context) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("authorization");
  seen_.authorization =
      it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
  if (!token_.empty() && seen_.authorization != absl::StrCat("Bearer ", token_)) {
    return Status(StatusCode::UNAUTHENTICATED, "no valid token");
  }
  return faults_.every_call;
}

FakeSoup::Record* FakeSoup::Find(const std::string& id_or_name) {
  const auto it = records_.find(id_or_name);
  if (it != records_.end()) return &it->second;
  Record* newest = nullptr;
  for (auto& [id, record] : records_) {
    if (record.job.spec().name() != id_or_name) continue;
    if (newest == nullptr || record.job.created_unix_ms() > newest->job.created_unix_ms()) {
      newest = &record;
    }
  }
  return newest;
}

Status FakeSoup::Submit(Context* context, const SubmitRequest* request, Job* reply) {
  std::string id;
  {
    absl::MutexLock lock(&mutex_);
    if (Status s = Admit(*context); !s.ok()) return s;
    ++seen_.submits;
    seen_.request_ids.insert(request->request_id());
    for (const FileRef* file : {&request->spec().data().train()}) {
      if (whole_.count(file->sha256()) == 0) {
        return Status(StatusCode::FAILED_PRECONDITION, "data.train was not uploaded");
      }
    }
    std::string& known = by_request_id_[request->request_id()];
    if (known.empty()) known = absl::StrCat("job-", by_request_id_.size());
    id = known;
  }
  if (Job* job = AddJob(id, request->spec().name(), QUEUED)) *job->mutable_spec() = request->spec();
  absl::MutexLock lock(&mutex_);
  *reply = records_.at(id).job;
  if (faults_.submit_unavailable_after > 0) {
    --faults_.submit_unavailable_after;
    return Status(StatusCode::UNAVAILABLE, "the answer was lost");
  }
  return Status::OK;
}

Status FakeSoup::Plan(Context* context, const PlanRequest*, PlanReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  *reply = plan_;
  return Status::OK;
}

Status FakeSoup::Get(Context* context, const GetRequest* request, Job* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  if (faults_.get_unavailable > 0) {
    --faults_.get_unavailable;
    return Status(StatusCode::UNAVAILABLE, "draining");
  }
  const Record* record = Find(request->job_id());
  if (record == nullptr) return NoJob(request->job_id());
  *reply = record->job;
  return Status::OK;
}

Status FakeSoup::List(Context* context, const ListRequest* request, ListReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  std::vector<const Job*> jobs;
  for (const auto& [id, record] : records_) {
    const auto& states = request->states();
    const bool wanted = states.empty() ||
                        std::find(states.begin(), states.end(), record.job.state()) != states.end();
    const bool named = record.job.spec().name().rfind(request->name_prefix(), 0) == 0;
    if (wanted && named) jobs.push_back(&record.job);
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const Job* a, const Job* b) { return a->created_unix_ms() > b->created_unix_ms(); });
  // Pages of three, so that the client must turn them.
  const size_t begin = request->page_token().empty() ? 0 : std::stoul(request->page_token());
  const size_t end =
      std::min({jobs.size(), begin + 3, begin + static_cast<size_t>(request->page_size())});
  for (size_t i = begin; i < end; ++i) *reply->add_jobs() = *jobs[i];
  if (end < jobs.size()) reply->set_next_page_token(absl::StrCat(end));
  return Status::OK;
}

Status FakeSoup::Watch(Context* context, const WatchRequest* request,
                       grpc::ServerWriter<WatchReply>* writer) {
  int cut_after = -1;
  bool ends_early = false, silent = false;
  {
    absl::MutexLock lock(&mutex_);
    if (Status s = Admit(*context); !s.ok()) return s;
    if (Find(request->job_id()) == nullptr) return NoJob(request->job_id());
    seen_.watches.push_back(*request);
    if (!faults_.cut_watch_after.empty()) {
      cut_after = faults_.cut_watch_after.front();
      faults_.cut_watch_after.erase(faults_.cut_watch_after.begin());
    }
    ends_early = std::exchange(faults_.watch_ends_early, false);
    silent = std::exchange(faults_.silent_watch, false);
  }
  size_t next = 0;
  int told = 0;
  for (;;) {
    std::vector<WatchReply> items;
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      Record* record = Find(request->job_id());
      const auto more = [&]() { return record->history.size() > next || context->IsCancelled(); };
      mutex_.AwaitWithTimeout(absl::Condition(&more), absl::Milliseconds(100));
      for (; next < record->history.size(); ++next) {
        const WatchReply& item = record->history[next];
        const bool is_new = item.has_event() ? item.event().sequence() > request->after_sequence()
                                             : item.step().step() > request->after_step();
        if (is_new) items.push_back(item);
      }
      ended = IsTerminal(record->job.state());
    }
    if (context->IsCancelled()) return Status::CANCELLED;
    if (silent) continue;
    for (const WatchReply& item : items) {
      if (told++ == cut_after) return Status(StatusCode::UNAVAILABLE, "the connection broke");
      writer->Write(item);
    }
    if (told == cut_after) return Status(StatusCode::UNAVAILABLE, "the connection broke");
    if (ended || ends_early) return Status::OK;
    WatchReply heartbeat;
    heartbeat.mutable_heartbeat()->set_steps_total(100);
    writer->Write(heartbeat);
  }
}

Status FakeSoup::Act(Context* context, const JobRequest& request, JobState state, Job* reply) {
  {
    absl::MutexLock lock(&mutex_);
    if (Status s = Admit(*context); !s.ok()) return s;
    seen_.request_ids.insert(request.request_id());
    const auto it = records_.find(request.job_id());  // by id only
    if (it == records_.end()) return NoJob(request.job_id());
    if (IsTerminal(it->second.job.state())) {
      return Status(StatusCode::FAILED_PRECONDITION,
                    absl::StrCat("job ", request.job_id(), " has ended"));
    }
  }
  AddEvent(request.job_id(), state, "as asked", soup::v1::USER_REQUEST);
  *reply = GetJob(request.job_id());
  return Status::OK;
}

Status FakeSoup::Pause(Context* context, const JobRequest* request, Job* reply) {
  return Act(context, *request, PAUSED, reply);
}
Status FakeSoup::Resume(Context* context, const JobRequest* request, Job* reply) {
  return Act(context, *request, QUEUED, reply);
}
Status FakeSoup::Cancel(Context* context, const JobRequest* request, Job* reply) {
  return Act(context, *request, CANCELLED, reply);
}

Status FakeSoup::GetMetrics(Context* context, const GetMetricsRequest* request,
                            GetMetricsReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  const Record* record = Find(request->job_id());
  if (record == nullptr) return NoJob(request->job_id());
  constexpr int kPage = 2;  // so that the client must turn pages
  for (const WatchReply& item : record->history) {
    if (!item.has_step() || item.step().step() <= request->after_step()) continue;
    if (reply->steps_size() == std::min(kPage, request->limit())) {
      reply->set_more(true);
      break;
    }
    *reply->add_steps() = item.step();
  }
  return Status::OK;
}

Status FakeSoup::GetLogs(Context* context, const GetLogsRequest* request,
                         grpc::ServerWriter<LogChunk>* writer) {
  std::string log;
  {
    absl::MutexLock lock(&mutex_);
    if (Status s = Admit(*context); !s.ok()) return s;
    const Record* record = Find(request->job_id());
    if (record == nullptr) return NoJob(request->job_id());
    log = record->log.substr(std::min(record->log.size(), static_cast<size_t>(request->offset())));
  }
  for (size_t i = 0; i < log.size(); i += 7) {
    LogChunk chunk;
    chunk.set_data(log.substr(i, 7));
    writer->Write(chunk);
  }
  return Status::OK;
}

Status FakeSoup::StatUpload(Context* context, const StatUploadRequest* request,
                            StatUploadReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  reply->set_complete(whole_.count(request->sha256()) > 0);
  const auto it = partial_.find(request->sha256());
  if (it != partial_.end()) reply->set_offset(static_cast<int64_t>(it->second.size()));
  return Status::OK;
}

Status FakeSoup::UploadFile(Context* context, grpc::ServerReader<UploadChunk>* reader,
                            UploadReply* reply) {
  UploadChunk chunk;
  std::string sha256;
  int64_t size = 0;
  while (reader->Read(&chunk)) {
    absl::MutexLock lock(&mutex_);
    if (sha256.empty()) {
      if (Status s = Admit(*context); !s.ok()) return s;
      sha256 = chunk.sha256();
      size = chunk.size_bytes();
      ++seen_.uploads;
      seen_.upload_offsets.push_back(chunk.offset());
    }
    std::string& have = partial_[sha256];
    if (chunk.offset() != static_cast<int64_t>(have.size())) {
      return Status(StatusCode::ABORTED, "the offset is not where the file ends");
    }
    have += chunk.data();
    seen_.upload_bytes += static_cast<int64_t>(chunk.data().size());
    seen_.largest_chunk = std::max(seen_.largest_chunk, static_cast<int64_t>(chunk.data().size()));
    if (faults_.cut_upload_after_bytes >= 0 &&
        static_cast<int64_t>(have.size()) >= faults_.cut_upload_after_bytes) {
      faults_.cut_upload_after_bytes = -1;
      return Status(StatusCode::UNAVAILABLE, "the connection broke");
    }
    if (faults_.stall_upload_after_bytes >= 0 &&
        static_cast<int64_t>(have.size()) >= faults_.stall_upload_after_bytes) {
      faults_.stall_upload_after_bytes = -1;
      seen_.stalled = true;
      const absl::Time end = absl::Now() + kPatience;
      const auto gone = [&] { return context->IsCancelled() || absl::Now() > end; };
      // IsCancelled does not wake a Condition: look again now and then.
      while (!gone()) mutex_.AwaitWithTimeout(absl::Condition(&gone), absl::Milliseconds(20));
      return Status::CANCELLED;
    }
  }
  absl::MutexLock lock(&mutex_);
  std::string data = partial_[sha256];
  if (static_cast<int64_t>(data.size()) != size) {
    return Status(StatusCode::UNAVAILABLE, "bytes are missing");
  }
  partial_.erase(sha256);
  if (HashOf(data) != sha256) {
    return Status(StatusCode::INVALID_ARGUMENT, "the bytes have another SHA-256");
  }
  whole_[sha256] = data;
  reply->set_sha256(sha256);
  reply->set_size_bytes(size);
  if (faults_.lose_upload_replies > 0) {
    --faults_.lose_upload_replies;
    return Status(StatusCode::UNAVAILABLE, "the answer was lost");
  }
  return Status::OK;
}

Status FakeSoup::ListArtifacts(Context* context, const ListArtifactsRequest* request,
                               ListArtifactsReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  const Record* record = Find(request->job_id());
  if (record == nullptr) return NoJob(request->job_id());
  for (const auto& [name, data] : record->artifacts) {
    Artifact* artifact = reply->add_artifacts();
    artifact->set_name(name);
    artifact->set_size_bytes(static_cast<int64_t>(data.size()));
    artifact->set_sha256(HashOf(data));
    // A file that claims a size that no disk has.
    if (data == "huge") artifact->set_size_bytes(int64_t{1} << 60);
  }
  return Status::OK;
}

Status FakeSoup::FetchArtifact(Context* context, const FetchArtifactRequest* request,
                               grpc::ServerWriter<ArtifactChunk>* writer) {
  std::string data;
  int64_t cut = -1;
  {
    absl::MutexLock lock(&mutex_);
    if (Status s = Admit(*context); !s.ok()) return s;
    const Record* record = Find(request->job_id());
    if (record == nullptr || record->artifacts.count(request->name()) == 0) {
      return NoJob(request->job_id());
    }
    data = record->artifacts.at(request->name());
    seen_.fetch_offsets.push_back(request->offset());
    cut = std::exchange(faults_.cut_fetch_after_bytes, -1);
    if (faults_.corrupt_fetch) data.back() = static_cast<char>(data.back() ^ 1);
  }
  constexpr size_t kChunk = 1000;
  for (auto i = static_cast<size_t>(request->offset()); i < data.size(); i += kChunk) {
    if (cut >= 0 && static_cast<int64_t>(i) >= cut) {
      return Status(StatusCode::UNAVAILABLE, "the connection broke");
    }
    ArtifactChunk chunk;
    chunk.set_data(data.substr(i, kChunk));
    writer->Write(chunk);
  }
  return Status::OK;
}

Status FakeSoup::PreviewData(Context* context, const PreviewDataRequest* request,
                             PreviewDataReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  reply->mutable_report()->set_records(request->records());
  auto* record = reply->add_records();
  record->set_line(1);
  for (const char* text : {"ask", "answer"}) {
    auto* token = record->add_tokens();
    token->set_text(text);
    token->set_supervised(std::string(text) == "answer");
  }
  return Status::OK;
}

Status FakeSoup::ListCache(Context* context, const ListCacheRequest*, ListCacheReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  for (const char* fingerprint : {"aa11", "aa22", "bb33"}) {
    auto* entry = reply->add_entries();
    entry->set_fingerprint(fingerprint);
    entry->set_format("nf4-dq");
    entry->set_bytes(1 << 20);
    entry->set_source_path("/models/m");
  }
  return Status::OK;
}

Status FakeSoup::PrefetchCache(Context* context, const PrefetchCacheRequest* request,
                               grpc::ServerWriter<PrefetchReply>* writer) {
  {
    absl::MutexLock lock(&mutex_);
    if (Status s = Admit(*context); !s.ok()) return s;
  }
  PrefetchReply reply;
  reply.mutable_progress()->set_stage("quantise");
  writer->Write(reply);
  reply.mutable_done()->set_fingerprint("cc44");
  reply.mutable_done()->set_format(request->base().double_quant() ? "nf4-dq"
                                                                  : request->base().format());
  reply.mutable_done()->set_source_path(request->base().path());
  writer->Write(reply);
  return Status::OK;
}

Status FakeSoup::EvictCache(Context* context, const EvictCacheRequest* request,
                            EvictCacheReply* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  if (request->fingerprint() == "aa11") {
    return Status(StatusCode::FAILED_PRECONDITION, "aa11 is in use by job-1");
  }
  reply->set_freed_bytes(3 << 20);
  return Status::OK;
}

Status FakeSoup::GetNode(Context* context, const GetNodeRequest*, Node* reply) {
  absl::MutexLock lock(&mutex_);
  if (Status s = Admit(*context); !s.ok()) return s;
  *reply = node_;
  return Status::OK;
}

}  // namespace soup::client
