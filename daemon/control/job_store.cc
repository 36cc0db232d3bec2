#include "daemon/control/job_store.h"

#include <sys/random.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "daemon/common/data_files.h"
#include "daemon/control/job_store_actions.h"
#include "daemon/control/job_store_schema.h"
#include "daemon/control/sha256.h"
#include "daemon/control/sqlite_db.h"
#include "daemon/control/store_writer.h"
#include "daemon/control/text.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::JobEvent;

constexpr size_t kMaxWarningBytes = 1024;
constexpr size_t kMaxWarnings = 100;

// 9 characters of milliseconds, 5 of chance.
std::string NewJobId(int64_t unix_ms) {
  constexpr char kDigits[] = "0123456789abcdefghjkmnpqrstvwxyz";
  uint32_t chance = 0;
  SOUP_CHECK(getrandom(&chance, sizeof chance, 0) == sizeof chance);
  std::string id = "j-";
  for (int shift = 40; shift >= 0; shift -= 5) {
    id.push_back(kDigits[(static_cast<uint64_t>(unix_ms) >> shift) & 31u]);
  }
  for (int shift = 20; shift >= 0; shift -= 5) id.push_back(kDigits[(chance >> shift) & 31u]);
  return id;
}

JobStore::RequestKey SubmitKey(const std::string& user, const std::string& request_id,
                               const soup::v1::JobSpec& spec) {
  return {user, request_id, Sha256Hex("submit\n" + spec.SerializeAsString())};
}

class SqliteJobStore final : public JobStore {
 public:
  SqliteJobStore(const JobStoreOptions& options, const engine::Clock& clock,
                 std::unique_ptr<SqliteDb> write_db, std::unique_ptr<SqliteDb> read_db)
      : clock_(clock),
        read_db_(std::move(read_db)),
        writer_(options, std::move(write_db), [this](const Told& told) { Publish(told); }) {}

  absl::Status Init();

  absl::StatusOr<CreateResult> CreateJob(const std::string& user, const std::string& request_id,
                                         const soup::v1::JobSpec& spec,
                                         const std::string& base_real_path,
                                         int64_t max_queued) override;
  absl::StatusOr<JobRecord> Transition(const std::string& job_id, JobTrigger trigger, Reason reason,
                                       const std::string& message,
                                       const std::vector<JobState>& only_from) override;
  absl::Status UpdateJob(const std::string& job_id, const JobUpdate& update) override;
  absl::StatusOr<RequestResult> ApplyRequest(const std::string& job_id, JobTrigger request,
                                             const std::string& message,
                                             const RequestKey& key) override;
  absl::Status RememberRequest(const std::string& user, const std::string& request_id,
                               const std::string& digest) override;
  absl::Status AddFileOwner(const std::string& user, const std::string& sha256,
                            int64_t size_bytes) override;

  absl::StatusOr<JobRecord> GetJob(const std::string& job_id) const override;
  absl::StatusOr<JobRecord> NewestByName(const std::optional<std::string>& user,
                                         const std::string& name) const override;
  absl::StatusOr<JobPage> ListJobs(const JobFilter& filter, int page_size,
                                   const std::string& page_token, int64_t max_bytes) const override;
  absl::StatusOr<std::vector<JobRecord>> ListUnfinished() const override;
  absl::StatusOr<std::vector<JobEvent>> EventsAfter(const std::string& job_id,
                                                    int64_t after_sequence,
                                                    int limit) const override;
  absl::StatusOr<std::map<JobState, int64_t>> CountByState() const override;
  absl::StatusOr<std::optional<JobRecord>> FindSubmitted(
      const std::string& user, const std::string& request_id,
      const soup::v1::JobSpec& spec) const override;
  absl::StatusOr<bool> OwnsFile(const std::string& user, const std::string& sha256,
                                int64_t* size_bytes) const override;
  absl::StatusOr<bool> FileInUse(const std::string& sha256) const override;

  absl::Status StorageStatus() const override { return writer_.StorageStatus(); }
  void SetListener(Listener listener) override {
    absl::MutexLock lock(&state_mutex_);
    listener_ = std::move(listener);
  }

 private:
  void Publish(const Told& told);
  int64_t NowMs() const { return clock_.UnixNs() / 1'000'000; }

  const engine::Clock& clock_;

  mutable absl::Mutex read_mutex_;
  const std::unique_ptr<SqliteDb> read_db_ ABSL_PT_GUARDED_BY(read_mutex_);

  mutable absl::Mutex state_mutex_;
  Listener listener_ ABSL_GUARDED_BY(state_mutex_);
  std::map<JobState, int64_t> counts_ ABSL_GUARDED_BY(state_mutex_);

  StoreWriter writer_;  // last: its thread publishes into the rest
};

absl::Status SqliteJobStore::Init() {
  {
    absl::MutexLock lock(&read_mutex_);
    SOUP_ASSIGN_OR_RETURN(Query q,
                          read_db_->Prepare("SELECT state, COUNT(*) FROM jobs GROUP BY state"));
    absl::MutexLock state_lock(&state_mutex_);
    while (true) {
      SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
      if (!row) break;
      counts_[static_cast<JobState>(q.ColumnInt(0))] = q.ColumnInt(1);
    }
  }
  return absl::OkStatus();
}

void SqliteJobStore::Publish(const Told& told) {
  Listener listener;
  {
    absl::MutexLock lock(&state_mutex_);
    listener = listener_;
    if (told.from.has_value()) --counts_[*told.from];
    ++counts_[told.record.state];
  }
  if (listener) listener(told.record, told.event);
}

// ---- writes -------------------------------------------------------------------------------------

absl::StatusOr<JobStore::CreateResult> SqliteJobStore::CreateJob(const std::string& user,
                                                                 const std::string& request_id,
                                                                 const soup::v1::JobSpec& spec,
                                                                 const std::string& base_real_path,
                                                                 int64_t max_queued) {
  const RequestKey key = SubmitKey(user, request_id, spec);
  CreateResult result;
  const absl::Status status = writer_.Do([&](SqliteDb& db,
                                             std::vector<Told>* told) -> absl::Status {
    result = CreateResult{};
    SOUP_ASSIGN_OR_RETURN(const std::optional<std::string> before, RecallRequest(db, key));
    if (before.has_value()) {
      SOUP_ASSIGN_OR_RETURN(result.job, SelectJob(db, *before));
      return absl::OkStatus();
    }
    SOUP_RETURN_IF_ERROR(TouchUser(db, user, NowMs()));
    if (max_queued > 0) {
      SOUP_ASSIGN_OR_RETURN(Query q,
                            db.Prepare("SELECT COUNT(*) FROM jobs WHERE ended=0 AND user=?"));
      q.Text(user);
      SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
      const int64_t have = row ? q.ColumnInt(0) : 0;
      if (have >= max_queued) {
        return absl::ResourceExhaustedError(
            absl::StrCat(user, " has ", have, " jobs that have not ended, the quota is ",
                         max_queued, "; wait for some to end or cancel them"));
      }
    }
    JobRecord& job = result.job;
    job.spec = spec;
    job.user = user;
    job.base_real_path = base_real_path;
    job.created_unix_ms = job.queued_unix_ms = NowMs();
    job.last_sequence = 1;
    do {
      job.id = NewJobId(job.created_unix_ms);
    } while (SelectJob(db, job.id).ok());
    SOUP_RETURN_IF_ERROR(InsertJobRow(db, job));
    JobEvent event;
    event.set_job_id(job.id);
    event.set_sequence(1);
    event.set_unix_ms(job.created_unix_ms);
    event.set_state(job.state);
    SOUP_RETURN_IF_ERROR(InsertEvent(db, event));
    for (const NamedFile& named : FilesOf(spec)) {
      const soup::v1::FileRef* const file = &named.file;
      if (file->sha256().empty()) continue;
      SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("INSERT OR IGNORE INTO job_files VALUES (?,?)"));
      q.Text(file->sha256()).Text(job.id);
      SOUP_RETURN_IF_ERROR(q.Run());
    }
    SOUP_RETURN_IF_ERROR(StoreRequest(db, key, job.id, NowMs()));
    result.created = true;
    told->push_back(Told{job, event, std::nullopt});
    return absl::OkStatus();
  });
  SOUP_RETURN_IF_ERROR(status);
  return result;
}

absl::StatusOr<std::optional<JobRecord>> SqliteJobStore::FindSubmitted(
    const std::string& user, const std::string& request_id, const soup::v1::JobSpec& spec) const {
  absl::MutexLock lock(&read_mutex_);
  SOUP_ASSIGN_OR_RETURN(const std::optional<std::string> id,
                        RecallRequest(*read_db_, SubmitKey(user, request_id, spec)));
  if (!id.has_value()) return std::nullopt;
  SOUP_ASSIGN_OR_RETURN(JobRecord job, SelectJob(*read_db_, *id));
  return job;
}

absl::StatusOr<JobRecord> SqliteJobStore::Transition(const std::string& job_id, JobTrigger trigger,
                                                     Reason reason, const std::string& message,
                                                     const std::vector<JobState>& only_from) {
  JobRecord record;
  const absl::Status status =
      writer_.Do([&](SqliteDb& db, std::vector<Told>* told) -> absl::Status {
        SOUP_ASSIGN_OR_RETURN(record, SelectJob(db, job_id));
        if (!only_from.empty() &&
            std::find(only_from.begin(), only_from.end(), record.state) == only_from.end()) {
          return absl::FailedPreconditionError(absl::StrCat(
              "job ", job_id, " is ", JobStateName(record.state), " by now, no longer ",
              absl::StrJoin(only_from, " or ",
                            [](std::string* out, JobState s) { out->append(JobStateName(s)); })));
        }
        return ApplyTrigger(db, record, trigger, reason, message, NowMs(), told);
      });
  SOUP_RETURN_IF_ERROR(status);
  return record;
}

absl::StatusOr<JobStore::RequestResult> SqliteJobStore::ApplyRequest(const std::string& job_id,
                                                                     JobTrigger request,
                                                                     const std::string& message,
                                                                     const RequestKey& key) {
  RequestResult result;
  const absl::Status status =
      writer_.Do([&](SqliteDb& db, std::vector<Told>* told) -> absl::Status {
        result = RequestResult{};
        SOUP_ASSIGN_OR_RETURN(result.job, SelectJob(db, job_id));
        SOUP_ASSIGN_OR_RETURN(const std::optional<std::string> before, RecallRequest(db, key));
        if (before.has_value()) return absl::OkStatus();
        switch (JudgeRequest(result.job.state, request)) {
          case RequestVerdict::kRefused:
            return absl::FailedPreconditionError(
                absl::StrCat("job ", job_id, " is ", JobStateName(result.job.state), ": ",
                             HasEnded(result.job.state)                 ? "it has ended"
                             : result.job.state == soup::v1::PAUSING    ? "wait until it is PAUSED"
                             : result.job.state == soup::v1::FINALIZING ? "it is writing its result"
                                                                        : "it is being cancelled"));
          case RequestVerdict::kAlready:
            break;
          case RequestVerdict::kApply:
            SOUP_RETURN_IF_ERROR(ApplyTrigger(db, result.job, request, soup::v1::USER_REQUEST,
                                              message, NowMs(), told));
            result.applied = true;
            break;
        }
        SOUP_RETURN_IF_ERROR(TouchUser(db, key.user, NowMs()));
        return StoreRequest(db, key, job_id, NowMs());
      });
  SOUP_RETURN_IF_ERROR(status);
  return result;
}

absl::Status SqliteJobStore::UpdateJob(const std::string& job_id, const JobUpdate& update) {
  return writer_.Do([&](SqliteDb& db, std::vector<Told>*) -> absl::Status {
    SOUP_ASSIGN_OR_RETURN(JobRecord record, SelectJob(db, job_id));
    if (update.numeric_plan.has_value()) {
      if (!record.numeric_plan.empty() && record.numeric_plan != *update.numeric_plan) {
        return absl::FailedPreconditionError(
            absl::StrCat("job ", job_id, " has a numeric plan, which is frozen"));
      }
      record.numeric_plan = *update.numeric_plan;
    }
    if (update.base_fingerprint.has_value()) record.base_fingerprint = *update.base_fingerprint;
    if (update.base_key.has_value()) record.base_key = *update.base_key;
    if (update.dataset.has_value()) {
      record.dataset = *update.dataset;
      CleanReport(&record.dataset);
    }
    if (update.steps_total.has_value()) record.steps_total = *update.steps_total;
    if (update.planned_arena_bytes.has_value()) {
      record.planned_arena_bytes = *update.planned_arena_bytes;
    }
    if (update.orchestration.has_value()) record.orchestration = *update.orchestration;
    if (update.device_losses.has_value()) record.device_losses = *update.device_losses;
    if (update.running_ms.has_value()) record.running_ms = *update.running_ms;
    for (const std::string& text : update.add_warnings) {
      std::string warning = CleanText(text, kMaxWarningBytes);
      const auto& have = record.warnings;
      if (have.size() >= kMaxWarnings ||
          std::find(have.begin(), have.end(), warning) != have.end()) {
        continue;
      }
      if (have.size() == kMaxWarnings - 1) warning = "more warnings followed; see the job's log";
      record.warnings.push_back(std::move(warning));
    }
    return UpdateJobRow(db, record);
  });
}

absl::Status SqliteJobStore::RememberRequest(const std::string& user, const std::string& request_id,
                                             const std::string& digest) {
  return writer_.Do([&](SqliteDb& db, std::vector<Told>*) -> absl::Status {
    const RequestKey key{user, request_id, digest};
    SOUP_ASSIGN_OR_RETURN(const std::optional<std::string> before, RecallRequest(db, key));
    return before.has_value() ? absl::OkStatus() : StoreRequest(db, key, "", NowMs());
  });
}

absl::Status SqliteJobStore::AddFileOwner(const std::string& user, const std::string& sha256,
                                          int64_t size_bytes) {
  return writer_.Do([&](SqliteDb& db, std::vector<Told>*) -> absl::Status {
    SOUP_RETURN_IF_ERROR(TouchUser(db, user, NowMs()));
    {
      SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("INSERT OR IGNORE INTO files VALUES (?,?,?)"));
      q.Text(sha256).Int(size_bytes).Int(NowMs());
      SOUP_RETURN_IF_ERROR(q.Run());
    }
    SOUP_ASSIGN_OR_RETURN(Query q, db.Prepare("INSERT OR IGNORE INTO file_owners VALUES (?,?,?)"));
    q.Text(user).Text(sha256).Int(NowMs());
    return q.Run();
  });
}

// ---- reads --------------------------------------------------------------------------------------

absl::StatusOr<JobRecord> SqliteJobStore::GetJob(const std::string& job_id) const {
  absl::MutexLock lock(&read_mutex_);
  return SelectJob(*read_db_, job_id);
}

absl::StatusOr<JobRecord> SqliteJobStore::NewestByName(const std::optional<std::string>& user,
                                                       const std::string& name) const {
  static const std::string* const kSql = new std::string(
      absl::StrCat("SELECT ", kJobColumns,
                   " FROM jobs WHERE name=?1 AND (?2='' OR user=?2) ORDER BY seq DESC LIMIT 1"));
  absl::MutexLock lock(&read_mutex_);
  SOUP_ASSIGN_OR_RETURN(Query q, read_db_->Prepare(*kSql));
  q.Text(name).Text(user.value_or(""));
  SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
  if (!row) return absl::NotFoundError(absl::StrCat("no job named ", Quoted(name)));
  return ReadJobRow(q);
}

absl::StatusOr<JobPage> SqliteJobStore::ListJobs(const JobFilter& filter, int page_size,
                                                 const std::string& page_token,
                                                 int64_t max_bytes) const {
  static const std::string* const kWhere =
      new std::string("seq < ?1 AND ((1 << state) & ?2) != 0 AND substr(name, 1, length(?3)) = ?3");
  static const std::string* const kAll = new std::string(absl::StrCat(
      "SELECT ", kJobColumns, " FROM jobs WHERE ", *kWhere, " ORDER BY seq DESC LIMIT ?4"));
  static const std::string* const kOfUser =
      new std::string(absl::StrCat("SELECT ", kJobColumns, " FROM jobs WHERE ", *kWhere,
                                   " AND user = ?5 ORDER BY seq DESC LIMIT ?4"));
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!page_token.empty() && (!absl::SimpleAtoi(page_token, &before) || before <= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_token ", Quoted(page_token), " is not one that List gave"));
  }
  int64_t mask = 0;
  for (const JobState state : filter.states) mask |= int64_t{1} << state;
  if (filter.states.empty()) mask = ~int64_t{0};

  absl::MutexLock lock(&read_mutex_);
  SOUP_ASSIGN_OR_RETURN(Query q, read_db_->Prepare(filter.user.has_value() ? *kOfUser : *kAll));
  q.Int(before).Int(mask).Text(filter.name_prefix).Int(int64_t{page_size} + 1);
  if (filter.user.has_value()) q.Text(*filter.user);
  JobPage page;
  int64_t bytes = 0;
  int64_t last_seq = 0;
  while (true) {
    SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
    if (!row) break;
    if (static_cast<int>(page.jobs.size()) == page_size || bytes >= max_bytes) {
      page.next_page_token = absl::StrCat(last_seq);
      break;
    }
    SOUP_ASSIGN_OR_RETURN(JobRecord record, ReadJobRow(q, &last_seq));
    bytes += static_cast<int64_t>(ToProto(record).ByteSizeLong());
    page.jobs.push_back(std::move(record));
  }
  return page;
}

absl::StatusOr<std::vector<JobRecord>> SqliteJobStore::ListUnfinished() const {
  static const std::string* const kSql = new std::string(
      absl::StrCat("SELECT ", kJobColumns, " FROM jobs WHERE ended = 0 ORDER BY seq"));
  absl::MutexLock lock(&read_mutex_);
  SOUP_ASSIGN_OR_RETURN(Query q, read_db_->Prepare(*kSql));
  std::vector<JobRecord> jobs;
  while (true) {
    SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
    if (!row) return jobs;
    SOUP_ASSIGN_OR_RETURN(JobRecord record, ReadJobRow(q));
    jobs.push_back(std::move(record));
  }
}

absl::StatusOr<std::vector<JobEvent>> SqliteJobStore::EventsAfter(const std::string& job_id,
                                                                  int64_t after_sequence,
                                                                  int limit) const {
  absl::MutexLock lock(&read_mutex_);
  SOUP_ASSIGN_OR_RETURN(
      Query q, read_db_->Prepare("SELECT sequence, unix_ms, state, reason, message FROM events "
                                 "WHERE job_id=? AND sequence>? ORDER BY sequence LIMIT ?"));
  q.Text(job_id).Int(after_sequence).Int(limit);
  std::vector<JobEvent> events;
  while (true) {
    SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
    if (!row) return events;
    JobEvent& event = events.emplace_back();
    event.set_job_id(job_id);
    event.set_sequence(q.ColumnInt(0));
    event.set_unix_ms(q.ColumnInt(1));
    event.set_state(static_cast<JobState>(q.ColumnInt(2)));
    event.set_reason(static_cast<Reason>(q.ColumnInt(3)));
    event.set_message(q.ColumnText(4));
  }
}

absl::StatusOr<std::map<JobState, int64_t>> SqliteJobStore::CountByState() const {
  absl::MutexLock lock(&state_mutex_);
  return counts_;
}

absl::StatusOr<bool> SqliteJobStore::OwnsFile(const std::string& user, const std::string& sha256,
                                              int64_t* size_bytes) const {
  absl::MutexLock lock(&read_mutex_);
  SOUP_ASSIGN_OR_RETURN(
      Query q, read_db_->Prepare("SELECT size_bytes FROM file_owners JOIN files USING (sha256) "
                                 "WHERE user=? AND sha256=?"));
  q.Text(user).Text(sha256);
  SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
  if (row && size_bytes != nullptr) *size_bytes = q.ColumnInt(0);
  return row;
}

absl::StatusOr<bool> SqliteJobStore::FileInUse(const std::string& sha256) const {
  absl::MutexLock lock(&read_mutex_);
  SOUP_ASSIGN_OR_RETURN(
      Query q, read_db_->Prepare("SELECT 1 FROM job_files JOIN jobs ON jobs.id = job_files.job_id "
                                 "WHERE sha256=? AND ended=0 LIMIT 1"));
  q.Text(sha256);
  return q.Step();
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> OpenJobStore(const JobStoreOptions& options,
                                                       const engine::Clock& clock) {
  SOUP_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> write_db, SqliteDb::Open(options.path, false));
  // A short WAL: 64 pages between checkpoints, cut back after a burst.
  SOUP_RETURN_IF_ERROR(
      write_db->Exec("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
                     "PRAGMA wal_autocheckpoint=64; PRAGMA journal_size_limit=524288; "
                     "PRAGMA foreign_keys=ON;"));
  {
    SOUP_ASSIGN_OR_RETURN(Query q, write_db->Prepare("PRAGMA quick_check(1)"));
    SOUP_ASSIGN_OR_RETURN(const bool row, q.Step());
    if (!row || q.ColumnText(0) != "ok") {
      return absl::DataLossError(absl::StrCat("job store ", options.path,
                                              " is damaged: ", row ? q.ColumnText(0) : "no answer",
                                              ". Move it away to start empty, or restore a copy"));
    }
  }
  SOUP_RETURN_IF_ERROR(MigrateJobStore(*write_db));
  SOUP_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> read_db, SqliteDb::Open(options.path, true));
  // The page cache of the operating system is behind these: a small one will do, and memory stays
  // flat.
  for (SqliteDb* db : {write_db.get(), read_db.get()}) {
    SOUP_RETURN_IF_ERROR(db->Exec("PRAGMA cache_size=-256"));
  }
  auto store =
      std::make_unique<SqliteJobStore>(options, clock, std::move(write_db), std::move(read_db));
  SOUP_RETURN_IF_ERROR(store->Init());
  return store;
}

void CleanReport(soup::v1::DatasetReport* report) {
  auto* warnings = report->mutable_warnings();
  if (warnings->size() > static_cast<int>(kMaxWarnings)) {
    const int cut = warnings->size() - static_cast<int>(kMaxWarnings) + 1;
    warnings->DeleteSubrange(static_cast<int>(kMaxWarnings) - 1, cut);
    *warnings->Add() = absl::StrCat(cut, " more warnings are not shown");
  }
  for (std::string& warning : *warnings) warning = CleanText(warning, kMaxWarningBytes);
  report->set_format(CleanText(report->format(), kMaxWarningBytes));
  report->set_format_reason(CleanText(report->format_reason(), kMaxWarningBytes));
  for (soup::v1::SourceReport& source : *report->mutable_sources()) {
    source.set_name(CleanText(source.name(), kMaxWarningBytes));
    source.set_kind(CleanText(source.kind(), kMaxWarningBytes));
    source.set_format(CleanText(source.format(), kMaxWarningBytes));
  }
}

}  // namespace soup::daemon
