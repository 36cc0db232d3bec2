// A job from submit to its adapter, alone and with others, paused and resumed, before and after a
// restart of soupd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_replace.h"
#include "tests/daemon/harness.h"

namespace soup::daemon {
namespace {

using soup::v1::Job;
using soup::v1::JobSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;

// 37 rows of the byte-token base.
std::string Records() {
  return ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl"));
}

// Mean loss over all targets of an epoch of ten steps.
double EpochLoss(const std::vector<soup::v1::StepRecord>& steps, size_t epoch) {
  double sum = 0, targets = 0;
  for (size_t i = 10 * epoch; i < 10 * (epoch + 1); ++i) {
    sum += steps[i].loss() * static_cast<double>(steps[i].supervised_tokens());
    targets += static_cast<double>(steps[i].supervised_tokens());
  }
  return sum / targets;
}

TEST(LifeTest, AJobSucceedsAndItsHistoryIsWhole) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job job = h.Submit(h.Spec("one", Records()));
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(done.steps_done(), done.steps_total());
  EXPECT_EQ(done.steps_total(), 20);
  EXPECT_EQ(done.dataset().records(), 37);
  EXPECT_FALSE(done.base_fingerprint().empty());
  const auto steps = h.Steps(job.id());
  ASSERT_EQ(steps.size(), 20u);
  EXPECT_LT(EpochLoss(steps, 1), EpochLoss(steps, 0));
  EXPECT_GT(h.Adapter(job.id()).size(), 1000u);
  EXPECT_THAT(ReadFileOrEmpty(h.state_dir() + "/artifacts/" + job.id() + "/adapter_config.json"),
              HasSubstr("\"LORA\""));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
  EXPECT_TRUE(h.WaitUntilGone(h.state_dir() + "/mirror/" + job.id()))
      << "an ended job needs no mirror";
  EXPECT_EQ(h.TerminateSoupd(), 0);
}

TEST(LifeTest, TheSecondJobOnABaseBeginsAtOnceAndARestartFindsTheBaseInTheCache) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("first", Records());
  spec.mutable_training()->set_max_steps(2);
  const Job first = h.Submit(spec);
  h.WaitFor(first.id(), {soup::v1::SUCCEEDED});
  spec.set_name("second");
  const Job second = h.Submit(spec);
  h.WaitFor(second.id(), {soup::v1::SUCCEEDED});
  const auto steps = h.Steps(second.id());
  ASSERT_FALSE(steps.empty());
  EXPECT_LT(steps[0].unix_ms() - second.created_unix_ms(), 3000);  // generous: loaded test hosts
  EXPECT_THAT(ReadFileOrEmpty(h.state_dir() + "/jobs/" + first.id() + "/log.txt"),
              HasSubstr("imported"));
  EXPECT_THAT(ReadFileOrEmpty(h.state_dir() + "/jobs/" + second.id() + "/log.txt"),
              HasSubstr("already in host memory"));
  ASSERT_EQ(h.TerminateSoupd(), 0);
  ASSERT_TRUE(h.Start().ok());
  spec.set_name("third");
  const Job third = h.Submit(spec);
  h.WaitFor(third.id(), {soup::v1::SUCCEEDED});
  EXPECT_THAT(ReadFileOrEmpty(h.state_dir() + "/jobs/" + third.id() + "/log.txt"),
              HasSubstr("read from the shard cache"));
  EXPECT_TRUE(h.Adapter(first.id()) == h.Adapter(third.id()));
}

TEST(LifeTest, TwoJobsInOnePassGetTheBitsTheyGetAlone) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec a = h.Spec("a", Records());
  a.mutable_training()->set_epochs(20);
  JobSpec b = a;
  b.set_name("b");
  b.mutable_lora()->set_r(7);
  b.mutable_training()->set_seed(7);
  const Job a_alone = h.Submit(a);
  h.WaitFor(a_alone.id(), {soup::v1::SUCCEEDED});
  const Job b_alone = h.Submit(b);
  h.WaitFor(b_alone.id(), {soup::v1::SUCCEEDED});
  const Job a_both = h.Submit(a);
  const Job b_both = h.Submit(b);
  h.WaitFor(a_both.id(), {soup::v1::SUCCEEDED});
  h.WaitFor(b_both.id(), {soup::v1::SUCCEEDED});
  ASSERT_FALSE(h.Adapter(a_alone.id()).empty());
  EXPECT_TRUE(h.Adapter(a_alone.id()) == h.Adapter(a_both.id()));
  EXPECT_TRUE(h.Adapter(b_alone.id()) == h.Adapter(b_both.id()));
  // They did overlap: each took steps while the other was running.
  const auto a_steps = h.Steps(a_both.id()), b_steps = h.Steps(b_both.id());
  EXPECT_LT(a_steps.front().unix_ms(), b_steps.back().unix_ms());
  EXPECT_LT(b_steps.front().unix_ms(), a_steps.back().unix_ms());
}

TEST(LifeTest, PauseAndResumeChangeNoBit) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("steady", Records());
  spec.mutable_training()->set_epochs(30);
  const Job steady = h.Submit(spec);
  h.WaitFor(steady.id(), {soup::v1::SUCCEEDED});
  spec.set_name("paused");
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 5);
  ASSERT_TRUE(h.Pause(job.id()).ok());
  const Job paused = h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::SUCCEEDED});
  ASSERT_EQ(paused.state(), soup::v1::PAUSED) << "too quick to be paused: make the job longer";
  EXPECT_EQ(paused.reason(), soup::v1::USER_REQUEST);
  const std::string checkpoint = h.state_dir() + "/jobs/" + job.id() + "/checkpoints/step-" +
                                 std::to_string(paused.steps_done()) + "/state.json";
  EXPECT_FALSE(ReadFileOrEmpty(checkpoint).empty()) << checkpoint;
  // Over a restart of soupd it stays paused.
  ASSERT_EQ(h.TerminateSoupd(), 0);
  ASSERT_TRUE(h.Start().ok());
  EXPECT_EQ(h.Get(job.id()).state(), soup::v1::PAUSED);
  EXPECT_EQ(h.Get(job.id()).steps_done(), paused.steps_done());
  ASSERT_TRUE(h.Resume(job.id()).ok());
  h.WaitFor(job.id(), {soup::v1::SUCCEEDED});
  EXPECT_TRUE(h.Adapter(steady.id()) == h.Adapter(job.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

// A model folder on a disk that is away, its copies in the cache gone: the job keeps what it has.
TEST(LifeTest, AJobThatHasBegunWaitsForABaseThatIsAway) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("steady", Records());
  spec.mutable_training()->set_epochs(30);
  const Job steady = h.Submit(spec);
  h.WaitFor(steady.id(), {soup::v1::SUCCEEDED});
  spec.set_name("robbed");
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 5);
  h.KillSoupd();
  const std::string folder = spec.base().path(), away = folder + ".away";
  std::filesystem::rename(folder, away);
  std::filesystem::remove_all(h.state_dir() + "/cache");
  ASSERT_TRUE(h.Start().ok());
  const Job paused = h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::FAILED});
  ASSERT_EQ(paused.state(), soup::v1::PAUSED) << paused.message();
  EXPECT_THAT(paused.message(), AllOf(HasSubstr(folder), HasSubstr("resume the job")));
  std::filesystem::rename(away, folder);
  ASSERT_TRUE(h.Resume(job.id()).ok());
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_TRUE(h.Adapter(steady.id()) == h.Adapter(job.id()));
}

// The tokens of a paused job are damaged, then lost with the tokenizer changed meanwhile.
TEST(LifeTest, PreparedDataThatIsDamagedIsMadeAgainAndHasToBeTheSame) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("steady", Records());
  spec.mutable_training()->set_epochs(30);
  const Job steady = h.Submit(spec);
  h.WaitFor(steady.id(), {soup::v1::SUCCEEDED});
  spec.set_name("damaged");
  const Job job = h.Submit(spec);
  const std::string dataset = h.state_dir() + "/jobs/" + job.id() + "/dataset.sds";
  const auto pause_at = [&](int64_t step) {
    h.WaitForStep(job.id(), step);
    ASSERT_TRUE(h.Pause(job.id()).ok());
    const Job paused = h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::SUCCEEDED});
    ASSERT_EQ(paused.state(), soup::v1::PAUSED) << "too quick to be paused: make the job longer";
  };
  pause_at(5);
  std::string bytes = ReadFileOrEmpty(dataset);
  ASSERT_GT(bytes.size(), 1000u);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(dataset, std::ios::binary) << bytes;
  ASSERT_TRUE(h.Resume(job.id()).ok());
  pause_at(15);

  std::filesystem::remove(dataset);
  const std::string config_path = spec.base().path() + "/tokenizer_config.json";
  const std::string config = ReadFileOrEmpty(config_path);
  std::ofstream(config_path) << absl::StrReplaceAll(config, {{"<|turn|>", "<|turn|>|"}});
  ASSERT_NE(ReadFileOrEmpty(config_path), config);
  ASSERT_TRUE(h.Resume(job.id()).ok());
  const Job paused = h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::FAILED, soup::v1::SUCCEEDED});
  ASSERT_EQ(paused.state(), soup::v1::PAUSED) << paused.message();
  EXPECT_THAT(paused.message(), AllOf(HasSubstr("tokenizer"), HasSubstr("resume the job")));
  std::ofstream(config_path) << config;
  ASSERT_TRUE(h.Resume(job.id()).ok());
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_TRUE(h.Adapter(steady.id()) == h.Adapter(job.id()));
}

// Other programs hold the memory that its base needs when soupd comes back.
TEST(LifeTest, AJobThatHasBegunWaitsForHostMemory) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("steady", Records());
  spec.mutable_training()->set_epochs(30);
  const Job steady = h.Submit(spec);
  h.WaitFor(steady.id(), {soup::v1::SUCCEEDED});
  spec.set_name("crowded");
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 5);
  h.KillSoupd();
  {
    HarnessOptions crowded;
    crowded.state_dir = h.state_dir();
    crowded.flags = {"--host-reserve=500GiB"};
    Harness late(crowded);
    ASSERT_TRUE(late.Start().ok());
    const bool waits =
        late.WatchUntil(job.id(), absl::Seconds(60), [](const soup::v1::WatchReply& reply) {
          return reply.has_event() && reply.event().reason() == soup::v1::OUT_OF_MEMORY;
        });
    ASSERT_TRUE(waits);
    const Job waiting = late.Get(job.id());
    EXPECT_NE(waiting.state(), soup::v1::FAILED);
    EXPECT_EQ(waiting.reason(), soup::v1::OUT_OF_MEMORY);
    EXPECT_THAT(waiting.message(), HasSubstr("bytes"));
    EXPECT_EQ(late.TerminateSoupd(), 0);
  }
  ASSERT_TRUE(h.Start().ok());
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_TRUE(h.Adapter(steady.id()) == h.Adapter(job.id()));
}

TEST(LifeTest, HalfAnAdapterIsNotFetched) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("one", Records());
  spec.mutable_training()->set_max_steps(2);
  const Job job = h.Submit(spec);
  h.WaitFor(job.id(), {soup::v1::SUCCEEDED});
  soup::v1::ListArtifactsRequest request;
  request.set_job_id(job.id());
  soup::v1::ListArtifactsReply reply;
  grpc::ClientContext whole, half;
  EXPECT_TRUE(h.stub()->ListArtifacts(&whole, request, &reply).ok());
  std::filesystem::remove(h.state_dir() + "/artifacts/" + job.id() + "/adapter_model.safetensors");
  const grpc::Status status = h.stub()->ListArtifacts(&half, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(), HasSubstr("adapter_model.safetensors is gone"));
}

TEST(LifeTest, ValidationIsToldWithTheStepThatEndsAnEpoch) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("validated", Records());
  spec.mutable_data()->set_validation_fraction(0.2);
  const Job job = h.Submit(spec);
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_GT(done.dataset().validation_records(), 0);
  const auto steps = h.Steps(job.id());
  ASSERT_EQ(static_cast<int64_t>(steps.size()), done.steps_total());
  int validated = 0;
  for (const auto& step : steps) {
    if (!step.has_validation_loss()) continue;
    ++validated;
    EXPECT_TRUE(std::isfinite(step.validation_loss()));
    EXPECT_GT(step.validation_loss(), 0);
  }
  EXPECT_EQ(validated, 2) << "one an epoch";
  EXPECT_TRUE(steps.back().has_validation_loss());
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

TEST(LifeTest, ASmallBudgetTakesMorePassesAndGivesTheSameBits) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("roomy", Records());
  spec.mutable_data()->set_packing(false);
  const Job roomy = h.Submit(spec);
  h.WaitFor(roomy.id(), {soup::v1::SUCCEEDED});
  const auto planned = h.TryPlan(spec);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const soup::v1::PlanReply& plan = *planned;
  ASSERT_TRUE(plan.fits()) << plan.verdict();
  EXPECT_GT(plan.arena_bytes(), 0);
  EXPECT_EQ(plan.steps_total(), 20);
  // In the fullest moment the classes add up to the arena, and none is above its own peak.
  int64_t on_device = 0;
  for (const soup::v1::PlanRow& row : plan.rows()) {
    if (row.where() != "device") continue;
    on_device += row.bytes();
    EXPECT_LE(row.bytes(), row.peak_bytes()) << row.what();
  }
  EXPECT_EQ(on_device, plan.arena_bytes());
  EXPECT_THAT(plan.placement(), HasSubstr("slots="));
  EXPECT_GE(plan.passes_a_step(), 1);
  EXPECT_LE(plan.passes_a_step(), plan.micro_batches());
  if (plan.next_budget_bytes() > 0) {
    EXPECT_GT(plan.next_budget_bytes(), plan.budget_bytes());
    EXPECT_LE(plan.next_step_seconds(), 0.99 * plan.predicted_step_seconds());
  }
  ASSERT_LT(plan.minimum_bytes(), plan.arena_bytes());
  spec.set_name("tight");
  spec.mutable_resources()->set_vram_bytes(plan.minimum_bytes());
  const Job tight = h.Submit(spec);
  const Job done = h.WaitFor(tight.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_TRUE(h.Adapter(roomy.id()) == h.Adapter(tight.id()));
  // One byte less is refused, with the number that would do.
  spec.set_name("too-tight");
  spec.mutable_resources()->set_vram_bytes(plan.minimum_bytes() - 1);
  const Job refused = h.Submit(spec);
  const Job failed = h.WaitFor(refused.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(failed.state(), soup::v1::FAILED);
  EXPECT_EQ(failed.reason(), soup::v1::OUT_OF_MEMORY);
  EXPECT_THAT(failed.message(), HasSubstr(std::to_string(plan.minimum_bytes())));
}

// What a validation takes says nothing of a step: here it has many micro-batches, a step one.
TEST(LifeTest, PassesAStepAreThoseOfTraining) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("validates", Records());
  spec.mutable_data()->set_packing(false);
  spec.mutable_data()->set_validation_fraction(0.5);
  spec.mutable_training()->set_batch_size(1);
  auto plan = h.TryPlan(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->micro_batches(), 1);
  spec.mutable_resources()->set_vram_bytes(plan->minimum_bytes());
  plan = h.TryPlan(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->fits()) << plan->verdict();
  EXPECT_EQ(plan->passes_a_step(), 1);
}

// A run of one step under a warm-up has learning rate 0: told before anything is trained.
TEST(LifeTest, ARunThatCouldNotMoveAnythingIsRefused) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("still", Records());
  spec.mutable_training()->set_max_steps(1);
  const Job refused = h.WaitFor(h.Submit(spec).id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(refused.state(), soup::v1::FAILED);
  EXPECT_EQ(refused.reason(), soup::v1::INVALID_INPUT);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("training.warmup_ratio: 0"));
  spec.mutable_training()->set_warmup_ratio(0);
  EXPECT_EQ(h.WaitFor(h.Submit(spec).id(), {soup::v1::SUCCEEDED, soup::v1::FAILED}).state(),
            soup::v1::SUCCEEDED);
}

struct AdapterFiles {
  std::string weights;
  std::string config;
};

JobSpec GoingOnFrom(Harness& h, JobSpec spec, const AdapterFiles& adapter) {
  *spec.mutable_lora()->mutable_init_adapter() =
      h.Upload("adapter_model.safetensors", adapter.weights);
  *spec.mutable_lora()->mutable_init_adapter_config() =
      h.Upload("adapter_config.json", adapter.config);
  return spec;
}

// Told by plan and by the job alike, before its base is imported or a worker has it.
void ExpectRefusedUnloaded(Harness& h, const JobSpec& spec, const std::string& text) {
  SCOPED_TRACE(spec.name());
  const auto plan = h.TryPlan(spec);
  ASSERT_FALSE(plan.ok()) << plan->verdict();
  EXPECT_THAT(std::string(plan.status().message()),
              AllOf(HasSubstr("lora.init_from: "), HasSubstr(text)));
  const Job job = h.Submit(spec);
  const Job failed = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(failed.state(), soup::v1::FAILED);
  EXPECT_EQ(failed.reason(), soup::v1::INVALID_INPUT);
  EXPECT_EQ(failed.message(), plan.status().message());
  for (const soup::v1::JobEvent& event : h.Events(job.id()))
    EXPECT_NE(event.state(), soup::v1::RUNNING);
  soup::v1::ListCacheReply cache;
  grpc::ClientContext context;
  ASSERT_TRUE(h.stub()->ListCache(&context, {}, &cache).ok());
  EXPECT_EQ(cache.entries_size(), 0) << "the base was imported for nothing";
}

TEST(LifeTest, AnAdapterThatTheJobCannotGoOnFromIsRefusedBeforeAnythingIsLoaded) {
  AdapterFiles adapter;
  {
    Harness h;
    ASSERT_TRUE(h.Start().ok());
    const Job job = h.Submit(h.Spec("one", Records()));
    h.WaitFor(job.id(), {soup::v1::SUCCEEDED});
    adapter = {h.Adapter(job.id()),
               ReadFileOrEmpty(h.state_dir() + "/artifacts/" + job.id() + "/adapter_config.json")};
  }
  ASSERT_GT(adapter.weights.size(), 1000u);
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec rank = h.Spec("rank", Records());
  rank.mutable_lora()->set_r(8);
  ExpectRefusedUnloaded(h, GoingOnFrom(h, rank, adapter), "r is 4: the job's lora.r is 8");
  JobSpec alpha = h.Spec("alpha", Records());
  alpha.mutable_lora()->set_alpha(16);
  ExpectRefusedUnloaded(h, GoingOnFrom(h, alpha, adapter), "set lora.alpha: 8");
  JobSpec targets = h.Spec("targets", Records());
  targets.mutable_lora()->clear_targets();
  targets.mutable_lora()->add_targets("q_proj");
  ExpectRefusedUnloaded(h, GoingOnFrom(h, targets, adapter), "has no place");
  AdapterFiles dora = adapter;
  dora.config = absl::StrReplaceAll(dora.config, {{"\"use_dora\": false", "\"use_dora\": true"}});
  ExpectRefusedUnloaded(h, GoingOnFrom(h, h.Spec("dora", Records()), dora), "use_dora is true");
  AdapterFiles cut = adapter;
  cut.weights.resize(cut.weights.size() - 100);
  ExpectRefusedUnloaded(h, GoingOnFrom(h, h.Spec("cut", Records()), cut), "looks incomplete");
  AdapterFiles nan = adapter;
  nan.weights.replace(nan.weights.size() - 4, 4, "\xff\xff\xff\x7f");
  ExpectRefusedUnloaded(h, GoingOnFrom(h, h.Spec("nan", Records()), nan), "holds a NaN");

  const JobSpec good = GoingOnFrom(h, h.Spec("good", Records()), adapter);
  const auto plan = h.TryPlan(good);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Job done = h.WaitFor(h.Submit(good).id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
}

TEST(LifeTest, ATimeLimitEndsTheJobWithACheckpoint) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("endless", Records());
  spec.mutable_training()->set_epochs(100000);
  spec.mutable_training()->set_save_every(0);
  spec.mutable_resources()->set_time_limit_seconds(1);
  const Job job = h.Submit(spec);
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::FAILED);
  EXPECT_EQ(done.reason(), soup::v1::TIME_LIMIT);
  EXPECT_FALSE(ReadFileOrEmpty(h.state_dir() + "/jobs/" + job.id() + "/checkpoints/step-" +
                               std::to_string(done.steps_done()) + "/state.json")
                   .empty());
  EXPECT_TRUE(h.Adapter(job.id()).empty());
}

// The limit is on the time that the job has run, whoever died meanwhile.
TEST(LifeTest, ATimeLimitCountsWhatRanBeforeSoupdWasKilled) {
  constexpr int64_t kLimitSeconds = 6;
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("limited", Records());
  spec.mutable_training()->set_epochs(20000);
  spec.mutable_training()->set_batch_size(1);
  spec.mutable_resources()->set_time_limit_seconds(kLimitSeconds);
  const Job job = h.Submit(spec);
  // Two seconds of steps in each of two attempts.
  int64_t told = 0;
  for (int kill = 0; kill < 2; ++kill) {
    int64_t begun_ms = 0;
    ASSERT_TRUE(h.WatchUntil(job.id(), absl::Seconds(60), [&](const soup::v1::WatchReply& reply) {
      if (!reply.has_step() || reply.step().step() <= told) return false;
      if (begun_ms == 0) begun_ms = reply.step().unix_ms();
      return reply.step().unix_ms() >= begun_ms + 2000;
    }));
    h.KillSoupd();
    ASSERT_TRUE(h.Start().ok());
    told = h.Get(job.id()).steps_done();
  }
  const Job ended = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(ended.state(), soup::v1::FAILED);
  EXPECT_EQ(ended.reason(), soup::v1::TIME_LIMIT) << ended.message();
  int64_t last_began_ms = 0, ended_ms = 0;
  for (const soup::v1::JobEvent& event : h.Events(job.id())) {
    if (event.state() == soup::v1::RUNNING) last_began_ms = event.unix_ms();
    ended_ms = event.unix_ms();
  }
  EXPECT_LT(ended_ms - last_began_ms, (kLimitSeconds - 3) * 1000) << "four seconds had run before";
  ExpectWholeHistory(h, job.id(), soup::v1::FAILED);
}

}  // namespace
}  // namespace soup::daemon
