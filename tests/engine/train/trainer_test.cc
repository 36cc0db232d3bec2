// The trainer beyond bits: what is refused, what a fault of one job does to others, validation,
// checkpoints, export.
#include "engine/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "bench/forwarding_backend.h"
#include "engine/train/job_run.h"
#include "tests/engine/train/golden_case.h"
#include "tests/engine/train/trainer_fixture.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Placement kLeast;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

PassRequest One(const std::string& job, int64_t step, bool score = false) {
  return {{{job, step, 0, -1, score}}, kLeast};
}

// A copy of the tiny base in which the embedding of one token is NaN (the head is its own).
class PoisonedBase {
 public:
  explicit PoisonedBase(int32_t token) {
    base_ = TinyBase();
    const auto globals = base_.globals();
    copy_.assign(globals.begin(), globals.end());
    uint16_t* row =
        reinterpret_cast<uint16_t*>(copy_.data() + MakeGlobalsLayout(base_.spec).embedding_offset);
    row[token * base_.spec.hidden + 5] = 0x7fc0;
    base_.slabs.back() = copy_;
  }
  const ModelBase& base() const { return base_; }

 private:
  ModelBase base_;
  std::vector<std::byte> copy_;
};

// One record with token 0 among others that only use tokens from 10 up.
JobSetup PoisonableJob(const std::string& id, bool with_poison) {
  RandomJob random;
  random.id = id;
  random.records = 8;
  random.batch_size = 1;
  random.epochs = 1;
  random.first_token = 10;
  JobSetup setup = MakeJob(random);
  std::vector<TokenRecord> records;
  for (int64_t i = 0; i < setup.dataset->train_records(); ++i) {
    const RecordView view = setup.dataset->train(i);
    TokenRecord r;
    r.ids.assign(view.ids.begin(), view.ids.end());
    r.supervised.assign(view.supervised.begin(), view.supervised.end());
    records.push_back(std::move(r));
  }
  if (with_poison) records.back().ids[1] = 0;
  setup.dataset = PreparedDataset::FromRecords(records);
  return setup;
}

TEST(Trainer, AStepThatIsNotFiniteIsNotApplied) {
  const PoisonedBase poisoned(0);
  Engine e = MakeEngine(poisoned.base());
  ASSERT_TRUE(e.trainer->OpenJob(PoisonableJob("bad", true)).ok());
  ASSERT_TRUE(e.trainer->OpenJob(PoisonableJob("good", false)).ok());
  int skipped = 0;
  for (int64_t step = 1; step <= 8; ++step) {
    const AdapterSnapshot before = Snapshot(*e.trainer, "bad");
    const auto result =
        e.trainer->RunPass({{{"bad", step, 0, -1, false}, {"good", step, 0, -1, false}}, kLeast});
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->steps.size(), 2u);
    EXPECT_FALSE(result->steps[1].skipped);
    EXPECT_TRUE(std::isfinite(result->steps[1].loss));
    const StepStats& bad = result->steps[0];
    if (!bad.skipped) continue;
    ++skipped;
    EXPECT_FALSE(std::isfinite(bad.grad_norm));
    EXPECT_THAT(bad.skipped_records, ElementsAre(7));
    EXPECT_THAT(bad.warning, HasSubstr("step " + std::to_string(step) + " "));
    EXPECT_THAT(bad.warning, HasSubstr("record 8"));
    const AdapterSnapshot after = Snapshot(*e.trainer, "bad");
    EXPECT_EQ(after.optimizer_steps, before.optimizer_steps);
    EXPECT_EQ(after.steps_done, before.steps_done + 1);
    EXPECT_EQ(after.weights, before.weights);
    EXPECT_EQ(after.first_moment, before.first_moment);
    EXPECT_EQ(after.second_moment, before.second_moment);
  }
  EXPECT_EQ(skipped, 1);
  const AdapterSnapshot bad = Snapshot(*e.trainer, "bad");
  EXPECT_EQ(bad.optimizer_steps, 7);
  for (const float w : bad.weights) ASSERT_TRUE(std::isfinite(w));

  Engine alone = MakeEngine(poisoned.base());
  ASSERT_TRUE(alone.trainer->OpenJob(PoisonableJob("good", false)).ok());
  RunSteps(*alone.trainer, "good", 1, 8, kLeast);
  EXPECT_TRUE(SameBits(Snapshot(*alone.trainer, "good"), Snapshot(*e.trainer, "good")));
}

TEST(Trainer, AValidationLossThatIsNotFiniteIsTold) {
  const PoisonedBase poisoned(0);
  Engine e = MakeEngine(poisoned.base());
  JobSetup setup = PoisonableJob("bad", true);
  std::vector<TokenRecord> records;
  for (int64_t i = 0; i < setup.dataset->train_records(); ++i) {
    const RecordView view = setup.dataset->train(i);
    records.push_back(
        {{view.ids.begin(), view.ids.end()}, {view.supervised.begin(), view.supervised.end()}});
  }
  const std::vector<TokenRecord> good(records.begin(), records.end() - 1);
  setup.dataset = PreparedDataset::FromRecords(good, records);
  setup.shape.lengths = setup.dataset->TrainLengths();
  setup.shape.validation_lengths = setup.dataset->ValidationLengths();
  ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
  EXPECT_FALSE(RunStep(*e.trainer, "bad", 1, kLeast).skipped);
  auto result = e.trainer->RunPass(One("bad", 1, true));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->validations.size(), 1u);
  EXPECT_FALSE(std::isfinite(result->validations[0].loss));
  EXPECT_THAT(result->validations[0].warning,
              HasSubstr("validation after step 1: the loss is not finite (validation record 8,"));

  JobSetup clean = setup;
  clean.job_id = "clean";
  clean.dataset = PreparedDataset::FromRecords(good, good);
  clean.shape.validation_lengths = clean.dataset->ValidationLengths();
  ASSERT_TRUE(e.trainer->OpenJob(clean).ok());
  result = e.trainer->RunPass(One("clean", 0, true));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::isfinite(result->validations.at(0).loss));
  EXPECT_EQ(result->validations.at(0).warning, "");
}

TEST(Trainer, DataThatCannotBeRunFaultsItsJobOnly) {
  Engine e = MakeEngine(TinyBase());
  RandomJob random;
  random.id = "good";
  ASSERT_TRUE(e.trainer->OpenJob(MakeJob(random)).ok());
  random.id = "bad";
  JobSetup bad = MakeJob(random);
  TokenRecord record;
  record.ids = {1, 320, 2};  // the vocabulary ends at 319
  record.supervised = {0, 1, 1};
  bad.dataset = PreparedDataset::FromRecords(std::vector<TokenRecord>(20, record));
  bad.shape.lengths = bad.dataset->TrainLengths();
  ASSERT_TRUE(e.trainer->OpenJob(std::move(bad)).ok());
  const auto result =
      e.trainer->RunPass({{{"bad", 1, 0, -1, false}, {"good", 1, 0, -1, false}}, kLeast});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->faults.size(), 1u);
  EXPECT_EQ(result->faults[0].job_id, "bad");
  EXPECT_FALSE(result->faults[0].storage);
  EXPECT_THAT(Message(result->faults[0].status), HasSubstr("id 320"));
  ASSERT_EQ(result->steps.size(), 1u);
  EXPECT_EQ(result->steps[0].job_id, "good");
}

TEST(Trainer, AStepWithoutTargetsIsAFault) {
  Engine e = MakeEngine(TinyBase());
  JobSetup setup = MakeJob({});
  TokenRecord record;
  record.ids = {1, 2, 3};
  record.supervised = {1, 0, 0};  // the first token of a record is never a target
  setup.dataset = PreparedDataset::FromRecords(std::vector<TokenRecord>(20, record));
  setup.shape.lengths = setup.dataset->TrainLengths();
  ASSERT_TRUE(e.trainer->OpenJob(std::move(setup)).ok());
  const auto result = e.trainer->RunPass(One("a", 1));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->faults.size(), 1u);
  EXPECT_THAT(Message(result->faults[0].status), HasSubstr("supervised"));
}

TEST(Trainer, WorkMustBeTheNext) {
  Engine e = MakeEngine(TinyBase());
  ASSERT_TRUE(e.trainer->OpenJob(MakeJob({})).ok());
  EXPECT_TRUE(absl::IsNotFound(e.trainer->RunPass(One("nobody", 1)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(e.trainer->RunPass(One("a", 2)).status()));
  const PassRequest later = {{{"a", 1, 1, -1, false}}, kLeast};
  EXPECT_TRUE(absl::IsFailedPrecondition(e.trainer->RunPass(later).status()));
  const PassRequest many = {{{"a", 1, 0, 99, false}}, kLeast};
  EXPECT_TRUE(absl::IsInvalidArgument(e.trainer->RunPass(many).status()));
  const PassRequest twice = {{{"a", 1, 0, -1, false}, {"a", 1, 0, -1, false}}, kLeast};
  EXPECT_TRUE(absl::IsInvalidArgument(e.trainer->RunPass(twice).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(e.trainer->RunPass({}).status()));
  PassRequest slots = One("a", 1);
  slots.placement.slots = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(e.trainer->RunPass(slots).status()));
  // None of that has changed anything.
  EXPECT_EQ(RunStep(*e.trainer, "a", 1, kLeast).step, 1);
}

TEST(Trainer, AllStepsDoneMeansDone) {
  Engine e = MakeEngine(TinyBase());
  RandomJob random;
  random.epochs = 0.25;
  ASSERT_EQ(e.trainer->OpenJob(MakeJob(random))->steps_total, 1);
  RunStep(*e.trainer, "a", 1, kLeast);
  EXPECT_TRUE(absl::IsFailedPrecondition(e.trainer->RunPass(One("a", 2)).status()));
}

TEST(Trainer, JobsThatDoNotFitAreRefused) {
  Engine e = MakeEngine(TinyBase());
  JobSetup setup = MakeJob({});
  ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(e.trainer->OpenJob(setup).status()));
  setup.job_id = "b";
  JobSetup cuda = setup;
  cuda.numeric.backend = "cuda";
  EXPECT_THAT(Message(e.trainer->OpenJob(cuda).status()), HasSubstr("cuda"));
  JobSetup format = setup;
  format.shape.format = BaseFormat::kNf4;
  EXPECT_THAT(Message(e.trainer->OpenJob(format).status()), HasSubstr("nf4"));
  JobSetup lengths = setup;
  lengths.shape.lengths[0] += 1;
  EXPECT_THAT(Message(e.trainer->OpenJob(lengths).status()), HasSubstr("lengths"));
  JobSetup dropout = setup;
  dropout.lora.dropout = 1.0;
  EXPECT_THAT(Message(e.trainer->OpenJob(dropout).status()), HasSubstr("dropout"));
  EXPECT_TRUE(absl::IsNotFound(e.trainer->CloseJob("b")));
}

TEST(Trainer, ANumericPlanOfAnotherMachineIsRefused) {
  JobSetup setup = MakeJob({});
  TrainerOptions options;
  options.profile.backend = "cpu";
  options.profile.blas_core = "another";
  Engine e = MakeEngine(TinyBase(), {}, options);
  const auto opened = e.trainer->OpenJob(std::move(setup));
  EXPECT_TRUE(absl::IsFailedPrecondition(opened.status()));
  EXPECT_THAT(Message(opened.status()), HasSubstr("this machine has another"));
}

class CountsArenas final : public bench::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t bytes) override {
    made.push_back(bytes);
    return next().CreateArena(bytes);
  }
  absl::StatusOr<std::unique_ptr<Arena>> CreateHostArena(int64_t bytes) override {
    made_host.push_back(bytes);
    return next().CreateHostArena(bytes);
  }
  std::vector<int64_t> made, made_host;
};

// Room for the largest pass is made at once where it is asked for: on the device, and in host
// memory, which takes seconds to pin.
TEST(Trainer, RoomForTheLargestPassIsMadeOnce) {
  for (const bool hold : {false, true}) {
    const auto cpu = MakeCpuBackend({});
    CountsArenas backend(cpu.get());
    auto trainer = Trainer::Create(&backend, TinyBase(), {});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    RandomJob job;
    job.batch_size = 20;
    ASSERT_TRUE((*trainer)->OpenJob(MakeJob(job)).ok());
    backend.made_host.clear();  // the job's own state
    PassRequest request;
    Retain(Retention::kHost, &request.placement);
    if (hold) request.hold_bytes = request.hold_host_bytes = 50 << 20;
    request.items = {{"a", 1, 0, 1, false}};
    ASSERT_TRUE((*trainer)->RunPass(request).ok());
    request.items = {{"a", 1, 1, -1, false}};  // larger: the step's other micro-batches
    ASSERT_TRUE((*trainer)->RunPass(request).ok());
    if (hold) {
      EXPECT_THAT(backend.made_host, ElementsAre(50 << 20));
      EXPECT_THAT(backend.made, ElementsAre(50 << 20));
    } else {
      EXPECT_EQ(backend.made_host.size(), 2u);
    }
    ASSERT_TRUE((*trainer)->CloseJob("a").ok());
  }
}

// Validation over the training records is the loss that training on them reports, whatever the cut.
TEST(Trainer, ValidationIsTheTokenMeanOfAllRecords) {
  RandomJob random;
  random.records = 6;
  random.batch_size = 6;
  JobSetup setup = MakeJob(random);
  std::vector<TokenRecord> records;
  for (int64_t i = 0; i < 6; ++i) {
    const RecordView view = setup.dataset->train(i);
    records.push_back(
        {{view.ids.begin(), view.ids.end()}, {view.supervised.begin(), view.supervised.end()}});
  }
  setup.dataset = PreparedDataset::FromRecords(records, records);
  setup.shape.validation_lengths = setup.dataset->ValidationLengths();
  setup.training.warmup_ratio = 0;  // a warm-up's first update has rate 0
  Engine e = MakeEngine(TinyBase());
  ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
  const auto validation = e.trainer->RunPass(One("a", 0, true));
  ASSERT_TRUE(validation.ok()) << validation.status();
  ASSERT_EQ(validation->validations.size(), 1u);
  EXPECT_TRUE(validation->steps.empty());
  EXPECT_EQ(validation->arena_planned_bytes, validation->arena_measured_bytes);
  const StepStats step = RunStep(*e.trainer, "a", 1, kLeast);
  EXPECT_NEAR(validation->validations[0].loss, step.loss, 1e-6 * step.loss);
  EXPECT_EQ(validation->validations[0].supervised_tokens, step.supervised_tokens);
  // In two passes, after the step: the second time it has learned something.
  ASSERT_TRUE(e.trainer->RunPass({{{"a", 1, 0, 1, true}}, kLeast})->validations.empty());
  const auto rest = e.trainer->RunPass({{{"a", 1, 1, -1, true}}, kLeast});
  ASSERT_TRUE(rest.ok()) << rest.status();
  ASSERT_EQ(rest->validations.size(), 1u);
  EXPECT_EQ(rest->validations[0].supervised_tokens, step.supervised_tokens);
  EXPECT_NE(rest->validations[0].loss, validation->validations[0].loss);
}

// The issue of case 13: the loss of a step does not depend on how it is cut into micro-batches.
TEST(Trainer, LossIsATokenMeanOverTheWholeStep) {
  double losses[2];
  for (const int i : {0, 1}) {
    RandomJob random;
    random.micro_batch_tokens = i == 0 ? 32 : 1024;
    Engine e = MakeEngine(TinyBase());
    ASSERT_TRUE(e.trainer->OpenJob(MakeJob(random)).ok());
    losses[i] = RunStep(*e.trainer, "a", 1, kLeast).loss;
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-6 * losses[0]);
}

// A last step with fewer records is divided by its own targets.
TEST(Trainer, EqualRecordsGiveEqualStepsWhateverTheirNumber) {
  RandomJob random;
  random.records = 1;
  JobSetup setup = MakeJob(random);
  const RecordView view = setup.dataset->train(0);
  const TokenRecord record = {{view.ids.begin(), view.ids.end()},
                              {view.supervised.begin(), view.supervised.end()}};
  setup.dataset = PreparedDataset::FromRecords(std::vector<TokenRecord>(5, record));
  setup.shape.lengths = setup.dataset->TrainLengths();
  setup.shape.batch.batch_size = 4;
  setup.shape.batch.epochs = 1;
  setup.training.learning_rate = 1e-9;
  Engine e = MakeEngine(TinyBase());
  ASSERT_EQ(e.trainer->OpenJob(setup)->steps_total, 2);
  const StepStats first = RunStep(*e.trainer, "a", 1, kLeast);
  const StepStats second = RunStep(*e.trainer, "a", 2, kLeast);
  EXPECT_NEAR(first.loss, second.loss, 1e-5);
  EXPECT_NEAR(first.grad_norm, second.grad_norm, 1e-5 * first.grad_norm);
}

TEST(Trainer, ExportRefusesAnInertAdapterAndWritesATrainedOne) {
  testing::TempDir dir(testing::TempDir::kInMemory);
  Engine e = MakeEngine(TinyBase());
  JobSetup setup = MakeJob({});
  setup.training.warmup_ratio = 0;
  ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(e.trainer->ExportAdapter("a", dir / "out", "tiny")));
  RunStep(*e.trainer, "a", 1, kLeast);
  const absl::Status exported = e.trainer->ExportAdapter("a", dir / "out", "tiny");
  ASSERT_TRUE(exported.ok()) << exported;
  // It is what a next job can begin with.
  JobSetup next = MakeJob({});
  next.job_id = "next";
  next.init_adapter_path = dir / "out/adapter_model.safetensors";
  ASSERT_TRUE(e.trainer->OpenJob(next).ok());
  EXPECT_EQ(Snapshot(*e.trainer, "next").weights, Snapshot(*e.trainer, "a").weights);
}

TEST(Trainer, CheckpointNeedsAFolder) {
  Engine e = MakeEngine(TinyBase());
  ASSERT_TRUE(e.trainer->OpenJob(MakeJob({})).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(e.trainer->SaveCheckpoint("a").status()));
}

TEST(Trainer, StateOfAnotherNumericPlanIsRefused) {
  testing::TempDir dir(testing::TempDir::kInMemory);
  JobSetup setup = MakeJob({});
  setup.mirror_dir = dir / "mirror";
  {
    Engine e = MakeEngine(TinyBase());
    ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
    RunStep(*e.trainer, "a", 1, kLeast);
  }
  setup.numeric.micro_batch_tokens = 128;
  Engine e = MakeEngine(TinyBase());
  const auto opened = e.trainer->OpenJob(setup);
  EXPECT_TRUE(absl::IsFailedPrecondition(opened.status()));
  EXPECT_THAT(Message(opened.status()), HasSubstr("numeric plan"));
}

// A device that fails in the middle of a pass: nothing half-done goes on.
TEST(Trainer, AfterAFailedPassJobsAreOpenedAgain) {
  testing::TempDir dir(testing::TempDir::kInMemory);
  CpuBackendOptions slow;
  slow.copy_delay = absl::Milliseconds(200);
  slow.wait_limit = absl::Milliseconds(1);
  JobSetup setup = MakeJob({});
  setup.mirror_dir = dir / "mirror";
  Engine e = MakeEngine(TinyBase(), slow);
  ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(e.trainer->RunPass(One("a", 1)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(e.trainer->RunPass(One("a", 1)).status()));
  ASSERT_TRUE(e.trainer->CloseJob("a").ok());
  Engine again = MakeEngine(TinyBase());
  ASSERT_TRUE(again.trainer->OpenJob(setup).ok());
  EXPECT_EQ(RunStep(*again.trainer, "a", 1, kLeast).step, 1);
}

TEST(Trainer, ProgressGrowsWithEveryLargeProduct) {
  Engine e = MakeEngine(TinyBase());
  ASSERT_TRUE(e.trainer->OpenJob(MakeJob({})).ok());
  const int64_t before = e.trainer->progress();
  RunStep(*e.trainer, "a", 1, kLeast);
  // Four forward, four backward, a layer and an item.
  EXPECT_GE(e.trainer->progress() - before, 8 * TinyBase().spec.layers - 1);
}

TEST(StepStats, SurviveEncoding) {
  StepStats s;
  s.step = 7;
  s.loss = std::nan("");
  s.grad_norm = INFINITY;
  s.learning_rate = 0.1;
  s.tokens = 123456789012;
  s.skipped = true;
  s.skipped_records = {2, 8};
  const auto back = DecodeStepStats("a", EncodeStepStats(s));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->step, 7);
  EXPECT_TRUE(std::isnan(back->loss));
  EXPECT_FALSE(std::isfinite(back->grad_norm));
  EXPECT_EQ(back->learning_rate, 0.1);
  EXPECT_EQ(back->tokens, 123456789012);
  EXPECT_THAT(back->skipped_records, ElementsAre(2, 8));
  EXPECT_THAT(back->warning, HasSubstr("records 3, 9"));
  EXPECT_FALSE(DecodeStepStats("a", "").has_value());
  EXPECT_FALSE(DecodeStepStats("a", "[1").has_value());
  s.skipped_records.assign(100000, 1234567);
  EXPECT_LT(EncodeStepStats(s).size(), static_cast<size_t>(Mirror::kMaxStatsBytes));
}

}  // namespace
}  // namespace soup::engine
