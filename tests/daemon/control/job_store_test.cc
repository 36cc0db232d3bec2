#include "daemon/control/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "engine/base/clock.h"
#include "tests/daemon/control/job_spec_for_tests.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/temp_dir.h"

namespace soup::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using T = JobTrigger;
using namespace soup::v1;

class JobStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Reopen(); }

  void Reopen() {
    store_.reset();
    JobStoreOptions options;
    options.path = dir_ / "soupd.db";
    auto store = OpenJobStore(options, clock_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  std::string Make(const std::string& name = "n", const std::string& user = "u") {
    const auto made = store_->CreateJob(user, "", GoodSpec(name, "/m"), "/m", 0);
    EXPECT_TRUE(made.ok()) << made.status();
    clock_.AdvanceNs(1'000'000);
    return made->job.id;
  }

  absl::Status Move(const std::string& id, T trigger, Reason reason = REASON_UNSPECIFIED) {
    clock_.AdvanceNs(1'000'000'000);
    return store_->Transition(id, trigger, reason, "because").status();
  }

  soup::testing::TempDir dir_{soup::testing::TempDir::kInMemory};
  engine::FakeClock clock_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(JobStoreTest, AJobLivesItsLifeAndSurvivesReopening) {
  const std::string id = Make("first");
  JobUpdate update;
  update.base_fingerprint = "f00";
  update.base_key = "f00/nf4";
  update.numeric_plan = "{}";
  update.steps_total = 7;
  update.planned_arena_bytes = 123;
  update.orchestration = std::string("\0x", 2);
  update.dataset.emplace();
  update.dataset->set_records(3);
  update.add_warnings = {"w1", "w2", "w1"};
  ASSERT_TRUE(Move(id, T::kPrepareStarted).ok());
  ASSERT_TRUE(store_->UpdateJob(id, update).ok());
  ASSERT_TRUE(Move(id, T::kRunStarted).ok());
  ASSERT_TRUE(Move(id, T::kFinalizeStarted).ok());
  ASSERT_TRUE(Move(id, T::kSucceeded).ok());
  Reopen();
  const auto job = store_->GetJob(id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.SerializeAsString(), GoodSpec("first", "/m").SerializeAsString());
  EXPECT_EQ(job->state, SUCCEEDED);
  EXPECT_EQ(job->last_sequence, 5);
  EXPECT_EQ(job->attempts, 1);
  EXPECT_EQ(job->running_ms, 2000);  // RUNNING and FINALIZING, a second each
  EXPECT_EQ(job->attempt_started_unix_ms, 0);
  EXPECT_EQ(job->base_fingerprint, "f00");
  EXPECT_EQ(job->numeric_plan, "{}");
  EXPECT_EQ(job->steps_total, 7);
  EXPECT_EQ(job->dataset.records(), 3);
  EXPECT_EQ(job->orchestration, std::string("\0x", 2));
  EXPECT_THAT(job->warnings, ElementsAre("w1", "w2"));
  EXPECT_GT(job->finished_unix_ms, job->started_unix_ms);
  const auto events = store_->EventsAfter(id, 0, 100);
  ASSERT_EQ(events->size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ((*events)[i].sequence(), static_cast<int64_t>(i) + 1);
  EXPECT_EQ((*events)[4].state(), SUCCEEDED);
  EXPECT_EQ(store_->EventsAfter(id, 3, 1)->at(0).state(), FINALIZING);
  EXPECT_TRUE(store_->ListUnfinished()->empty());
  EXPECT_EQ((*store_->CountByState())[SUCCEEDED], 1);
}

TEST_F(JobStoreTest, TheTableIsHeldAndOnlyFromToo) {
  const std::string id = Make();
  const absl::Status bad = Move(id, T::kSucceeded);
  EXPECT_EQ(bad.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("QUEUED"));
  EXPECT_EQ(Move(id, T::kFailed, STORAGE).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      store_->Transition(id, T::kRunStarted, REASON_UNSPECIFIED, "", {PREPARING}).status().code(),
      absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->GetJob(id)->last_sequence, 1);  // nothing was told
  EXPECT_EQ(store_->Transition("j-none", T::kRunStarted, REASON_UNSPECIFIED, "").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(JobStoreTest, TheNumericPlanIsFrozen) {
  const std::string id = Make();
  JobUpdate update;
  update.numeric_plan = "a";
  ASSERT_TRUE(store_->UpdateJob(id, update).ok());
  ASSERT_TRUE(store_->UpdateJob(id, update).ok());
  update.numeric_plan = "b";
  EXPECT_EQ(store_->UpdateJob(id, update).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->GetJob(id)->numeric_plan, "a");
}

TEST_F(JobStoreTest, SubmitIsIdempotentByUserAndRequestId) {
  const JobSpec spec = GoodSpec("n", "/m");
  const auto first = store_->CreateJob("u", "r1", spec, "/m", 0);
  const auto again = store_->CreateJob("u", "r1", spec, "/m", 0);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(first->created);
  EXPECT_FALSE(again->created);
  EXPECT_EQ(first->job.id, again->job.id);
  const auto other = store_->CreateJob("u", "r1", GoodSpec("other", "/m"), "/m", 0);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kAlreadyExists);
  const auto other_user = store_->CreateJob("v", "r1", spec, "/m", 0);
  EXPECT_TRUE(other_user->created);
  Reopen();
  EXPECT_EQ(store_->CreateJob("u", "r1", spec, "/m", 0)->job.id, first->job.id);
}

TEST_F(JobStoreTest, ARepeatedRequestDoesNotActTwice) {
  const std::string id = Make();
  const JobStore::RequestKey pause{"u", "p1", "pause"};
  EXPECT_TRUE(store_->ApplyRequest(id, T::kPauseRequested, "", pause)->applied);
  EXPECT_EQ(store_->GetJob(id)->state, PAUSED);
  EXPECT_TRUE(store_->ApplyRequest(id, T::kResumeRequested, "", {"u", "r1", "resume"})->applied);
  // The first pause comes once more, late: the job must not pause again.
  EXPECT_FALSE(store_->ApplyRequest(id, T::kPauseRequested, "", pause)->applied);
  EXPECT_EQ(store_->GetJob(id)->state, QUEUED);
  EXPECT_EQ(
      store_->ApplyRequest(id, T::kCancelRequested, "", {"u", "p1", "cancel"}).status().code(),
      absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(store_->ApplyRequest(id, T::kCancelRequested, "", {"u", "c1", "cancel"})->applied);
  EXPECT_FALSE(store_->ApplyRequest(id, T::kCancelRequested, "", {"u", "c2", "cancel"})->applied);
  EXPECT_EQ(
      store_->ApplyRequest(id, T::kResumeRequested, "", {"u", "r2", "resume"}).status().code(),
      absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->GetJob(id)->reason, USER_REQUEST);
}

TEST_F(JobStoreTest, TheQueuedQuotaCountsJobsThatHaveNotEnded) {
  const JobSpec spec = GoodSpec("n", "/m");
  const auto a = store_->CreateJob("u", "", spec, "/m", 2);
  ASSERT_TRUE(store_->CreateJob("u", "", spec, "/m", 2).ok());
  const auto third = store_->CreateJob("u", "", spec, "/m", 2);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("2"));
  EXPECT_TRUE(store_->CreateJob("v", "", spec, "/m", 2).ok());
  ASSERT_TRUE(Move(a->job.id, T::kCancelRequested, USER_REQUEST).ok());
  EXPECT_TRUE(store_->CreateJob("u", "", spec, "/m", 2).ok());
  EXPECT_TRUE(store_->StorageStatus().ok());  // a quota is not a disk
}

TEST_F(JobStoreTest, PagesShowEachJobOnceNewestFirst) {
  std::vector<std::string> ids;
  for (int i = 0; i < 25; ++i) ids.push_back(Make(i % 2 == 0 ? "even" : "odd", "u"));
  Make("even", "v");
  JobFilter filter;
  filter.user = "u";
  std::vector<std::string> seen;
  std::string token;
  do {
    const auto page = store_->ListJobs(filter, 10, token, 1 << 20);
    ASSERT_TRUE(page.ok());
    EXPECT_LE(page->jobs.size(), 10u);
    for (const JobRecord& job : page->jobs) seen.push_back(job.id);
    token = page->next_page_token;
    if (seen.size() == 10) Make("late", "u");  // does not shift the next page
  } while (!token.empty());
  EXPECT_EQ(seen, std::vector<std::string>(ids.rbegin(), ids.rend()));
  filter.name_prefix = "ev";
  EXPECT_EQ(store_->ListJobs(filter, 100, "", 1 << 20)->jobs.size(), 13u);
  filter.name_prefix = "";
  ASSERT_TRUE(Move(ids[0], T::kCancelRequested, USER_REQUEST).ok());
  filter.states = {CANCELLED, FAILED};
  EXPECT_EQ(store_->ListJobs(filter, 100, "", 1 << 20)->jobs.size(), 1u);
  EXPECT_EQ(store_->ListJobs({}, 100, "x", 1 << 20).status().code(),
            absl::StatusCode::kInvalidArgument);
  // A page is small in bytes too, and never empty for that.
  EXPECT_EQ(store_->ListJobs({}, 100, "", 1)->jobs.size(), 1u);
  EXPECT_FALSE(store_->ListJobs({}, 100, "", 1)->next_page_token.empty());
}

TEST_F(JobStoreTest, NewestByName) {
  Make("a", "u");
  const std::string second = Make("a", "u");
  const std::string foreign = Make("a", "v");
  EXPECT_EQ(store_->NewestByName("u", "a")->id, second);
  EXPECT_EQ(store_->NewestByName(std::nullopt, "a")->id, foreign);
  EXPECT_EQ(store_->NewestByName("u", "b").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(JobStoreTest, ALongOrBrokenMessageIsKeptShortAndValid) {
  const std::string id = Make();
  std::string huge(5 << 20, 'x');
  huge[10] = '\xff';
  ASSERT_TRUE(store_->Transition(id, T::kFailed, DATA, huge).ok());
  const auto job = store_->GetJob(id);
  EXPECT_LT(job->message.size(), 20'000u);
  EXPECT_EQ(job->message[10], '?');
  EXPECT_THAT(job->message, HasSubstr("more bytes"));
}

TEST_F(JobStoreTest, AReportOfAnySizeIsKeptShort) {
  const std::string id = Make();
  JobUpdate update;
  update.dataset.emplace();
  update.dataset->set_format_reason(std::string(1 << 20, 'r'));
  for (int i = 0; i < 5000; ++i) update.dataset->add_warnings(std::string(5000, 'w'));
  ASSERT_TRUE(store_->UpdateJob(id, update).ok());
  const auto job = store_->GetJob(id);
  EXPECT_EQ(job->dataset.warnings_size(), 100);
  EXPECT_EQ(job->dataset.warnings(99), "4901 more warnings are not shown");
  EXPECT_LT(job->dataset.ByteSizeLong(), 200'000u);
}

TEST_F(JobStoreTest, AttemptsAndDeviceLossesAreCounted) {
  const std::string id = Make();
  ASSERT_TRUE(Move(id, T::kPrepareStarted).ok());
  ASSERT_TRUE(Move(id, T::kRunStarted).ok());
  ASSERT_TRUE(Move(id, T::kInterrupted, WORKER_LOST).ok());
  EXPECT_EQ(store_->GetJob(id)->device_losses, 1);
  EXPECT_EQ(store_->GetJob(id)->running_ms, 1000);
  ASSERT_TRUE(Move(id, T::kRunStarted).ok());
  JobUpdate update;
  update.device_losses = 0;
  ASSERT_TRUE(store_->UpdateJob(id, update).ok());
  // soupd died: nobody knows for how long it had run.
  ASSERT_TRUE(Move(id, T::kInterrupted).ok());
  const auto job = store_->GetJob(id);
  EXPECT_EQ(job->device_losses, 0);
  EXPECT_EQ(job->running_ms, 1000);
  EXPECT_EQ(job->attempts, 2);
  // Nor does anybody where it had been asked to pause.
  ASSERT_TRUE(Move(id, T::kRunStarted).ok());
  ASSERT_TRUE(Move(id, T::kPauseRequested, USER_REQUEST).ok());
  ASSERT_TRUE(Move(id, T::kInterrupted, USER_REQUEST).ok());
  EXPECT_EQ(store_->GetJob(id)->running_ms, 1000);
}

TEST_F(JobStoreTest, FilesBelongToThoseWhoUploadedThem) {
  const std::string sha(64, 'a');
  EXPECT_FALSE(*store_->OwnsFile("u", sha));
  ASSERT_TRUE(store_->AddFileOwner("u", sha, 10).ok());
  ASSERT_TRUE(store_->AddFileOwner("u", sha, 10).ok());
  int64_t size = 0;
  EXPECT_TRUE(*store_->OwnsFile("u", sha, &size));
  EXPECT_EQ(size, 10);
  EXPECT_FALSE(*store_->OwnsFile("v", sha));
  EXPECT_FALSE(*store_->FileInUse(sha));
  const std::string id = Make();
  EXPECT_TRUE(*store_->FileInUse(sha));
  ASSERT_TRUE(Move(id, T::kCancelRequested, USER_REQUEST).ok());
  EXPECT_FALSE(*store_->FileInUse(sha));
}

TEST_F(JobStoreTest, ManyThreadsWriteAndListenersHearEveryEventInOrder) {
  std::map<std::string, int64_t> last;
  int64_t heard = 0;
  store_->SetListener([&](const JobRecord& record, const JobEvent& event) {
    EXPECT_EQ(event.sequence(), last[record.id] + 1);
    EXPECT_EQ(record.last_sequence, event.sequence());
    last[record.id] = event.sequence();
    ++heard;
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto made =
            store_->CreateJob("u" + std::to_string(t), "", GoodSpec("n", "/m"), "/m", 0);
        ASSERT_TRUE(made.ok());
        ASSERT_TRUE(store_->Transition(made->job.id, T::kRunStarted, REASON_UNSPECIFIED, "").ok());
        // What a returned write wrote is read at once.
        EXPECT_EQ(store_->GetJob(made->job.id)->state, RUNNING);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heard, 8 * 20 * 2);
  EXPECT_EQ((*store_->CountByState())[RUNNING], 160);
}

// Random triggers against the pure table: states, events and counts never part.
TEST_F(JobStoreTest, RandomLivesAgreeWithTheTable) {
  soup::testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::map<std::string, std::vector<JobState>> model;
  for (int i = 0; i < 10; ++i) model[Make()] = {QUEUED};
  for (int i = 0; i < 400; ++i) {
    auto it = std::next(model.begin(), rng.Int(0, static_cast<int64_t>(model.size()) - 1));
    const T trigger = kAllJobTriggers[static_cast<size_t>(rng.Int(0, kAllJobTriggers.size() - 1))];
    const auto reason = static_cast<Reason>(rng.Int(0, Reason_MAX));
    const auto next = NextState(it->second.back(), trigger);
    const absl::Status moved = Move(it->first, trigger, reason);
    EXPECT_EQ(moved.ok(), next.has_value() && ReasonAllowed(trigger, reason));
    if (moved.ok()) it->second.push_back(*next);
  }
  Reopen();
  std::map<JobState, int64_t> counts;
  for (const auto& [id, states] : model) {
    ++counts[states.back()];
    EXPECT_EQ(store_->GetJob(id)->state, states.back());
    const auto events = store_->EventsAfter(id, 0, 1000);
    ASSERT_EQ(events->size(), states.size());
    for (size_t i = 0; i < states.size(); ++i) EXPECT_EQ((*events)[i].state(), states[i]);
  }
  for (const JobState state : kAllJobStates) {
    EXPECT_EQ((*store_->CountByState())[state], counts[state]) << JobStateName(state);
  }
}

TEST(JobStoreOpen, AFileThatIsNoDatabaseIsRefusedWithTheRemedy) {
  const soup::testing::TempDir dir;
  FILE* file = fopen((dir / "soupd.db").c_str(), "w");
  fputs(std::string(9000, 'x').c_str(), file);
  fclose(file);
  JobStoreOptions options;
  options.path = dir / "soupd.db";
  const auto store = OpenJobStore(options, engine::RealClock());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("Move it away"));
}

}  // namespace
}  // namespace soup::daemon
