#include "daemon/control/pass_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/model/model_spec.h"

namespace soup::daemon {
namespace {

uint32_t Seed() {
  const char* given = std::getenv("SOUP_TEST_SEED");
  return given != nullptr ? std::strtoul(given, nullptr, 10) : std::random_device{}();
}

engine::ModelSpec Model() {
  std::ifstream in(SOUP_TEST_DATA_DIR "/golden/llama/config.json");
  std::stringstream text;
  text << in.rdbuf();
  auto spec = engine::ParseModelSpec(text.str());
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

std::shared_ptr<const PreparedJob> MakeJob(const std::string& id, std::mt19937& rng,
                                           int64_t vram_bytes = 0) {
  auto uniform = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  engine::JobShape shape;
  shape.model = Model();
  shape.lora.r = uniform(1, 16);
  shape.lora.targets = {engine::Module::kQ, engine::Module::kDown};
  shape.max_length = 64;
  for (int n = uniform(1, 40); n > 0; --n) shape.lengths.push_back(uniform(2, 60));
  for (int n = uniform(0, 10); n > 0; --n) shape.validation_lengths.push_back(uniform(2, 60));
  shape.batch.batch_size = uniform(1, 12);
  shape.batch.packing = uniform(0, 1) == 1;
  shape.batch.epochs = 1;
  engine::MachineProfile profile;
  auto numeric = engine::MakeNumericPlan(shape, profile);
  EXPECT_TRUE(numeric.ok()) << numeric.status();
  auto train = engine::MakeTrainSchedule(shape, *numeric);
  EXPECT_TRUE(train.ok()) << train.status();
  std::optional<engine::BatchSchedule> validation;
  if (!shape.validation_lengths.empty())
    validation = *engine::MakeValidationSchedule(shape, *numeric);
  soup::v1::JobSpec spec;
  spec.mutable_resources()->set_vram_bytes(vram_bytes);
  return std::make_shared<PreparedJob>(
      PreparedJob{id, spec, shape, *numeric, *train, validation, "", "base", {}});
}

TEST(PassPlannerTest, PassesHoldEveryMicroBatchOnceAndKeepToTheBudget) {
  const uint32_t seed = Seed();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE("SOUP_TEST_SEED=" + std::to_string(seed));
  std::mt19937 rng(seed);
  engine::MachineProfile profile;
  for (int round = 0; round < 30; ++round) {
    std::vector<std::shared_ptr<const PreparedJob>> jobs;
    int64_t least = 0;
    for (int i = std::uniform_int_distribution<int>(1, 3)(rng); i > 0; --i) {
      jobs.push_back(MakeJob("j" + std::to_string(i), rng));
      least += *LeastBudget(*jobs.back());
    }
    const int64_t budget = least + std::uniform_int_distribution<int64_t>(0, 8 << 20)(rng);
    PassPlanner planner;
    auto plan = planner.Plan(jobs, budget, profile);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_LE(plan->arena_bytes, budget);
    // Walks every job to its end, all in step, as the orchestrator does.
    std::vector<JobCursor> cursors(jobs.size());
    std::vector<bool> over(jobs.size(), false);
    for (int pass = 0; std::count(over.begin(), over.end(), false) > 0; ++pass) {
      ASSERT_LT(pass, 10000);
      std::vector<PassMember> members;
      for (size_t j = 0; j < jobs.size(); ++j)
        if (!over[j]) members.push_back({jobs[j], cursors[j]});
      auto run = PassPlanner::MakePass(members, *plan);
      ASSERT_TRUE(run.ok()) << run.status();
      ASSERT_GT(run->placement().arena_bytes(), 0);
      ASSERT_LE(run->placement().arena_bytes(), plan->arena_bytes);
      ASSERT_EQ(run->placement().hold_bytes(), plan->arena_bytes);
      ASSERT_EQ(run->placement().hold_host_bytes(), plan->host_bytes);
      // Slots and head stay where they are, whatever a pass keeps.
      auto placement = engine::ParsePlacement(run->placement().text());
      ASSERT_TRUE(placement.ok()) << placement.status();
      placement->attention = plan->placement.attention;
      placement->mlp = plan->placement.mlp;
      placement->boundaries_host = plan->placement.boundaries_host;
      ASSERT_TRUE(*placement == plan->placement) << run->placement().text();
      ASSERT_EQ(run->items_size(), static_cast<int>(members.size()));
      int m = 0;
      for (size_t j = 0; j < jobs.size(); ++j) {
        if (over[j]) continue;
        const soup::worker::v1::WorkItem& item = run->items(m++);
        ASSERT_EQ(item.job_id(), jobs[j]->id);
        ASSERT_EQ(item.step(), cursors[j].step);
        ASSERT_EQ(item.first_micro_batch(), cursors[j].micro_batch);
        ASSERT_GE(item.micro_batches(), 1);
        ASSERT_LE(item.micro_batches(), plan->micro_batches_a_pass);
        cursors[j].micro_batch += item.micro_batches();
        const auto size = static_cast<int32_t>(jobs[j]->train.Step(cursors[j].step).size());
        ASSERT_LE(cursors[j].micro_batch, size);
        if (cursors[j].micro_batch == size) cursors[j] = JobCursor{cursors[j].step + 1, 0, false};
        over[j] = cursors[j].step > jobs[j]->steps_total();
      }
    }
  }
}

TEST(PassPlannerTest, TheLeastBudgetIsTheLeast) {
  std::mt19937 rng(1);
  engine::MachineProfile profile;
  for (int round = 0; round < 10; ++round) {
    const auto job = MakeJob("j", rng);
    const int64_t least = *LeastBudget(*job);
    EXPECT_TRUE(PlanSet({job}, least, profile).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(PlanSet({job}, least - 1, profile).status()));
  }
}

TEST(PassPlannerTest, AChosenPlacementStandsUntilForgotten) {
  std::mt19937 rng(2);
  engine::MachineProfile profile;
  const auto job = MakeJob("j", rng);
  const int64_t least = *LeastBudget(*job);
  PassPlanner planner;
  const auto roomy = planner.Plan({job}, int64_t{1} << 30, profile);
  ASSERT_TRUE(roomy.ok());
  EXPECT_EQ(planner.Plan({job}, least, profile)->arena_bytes, roomy->arena_bytes);
  planner.Forget();
  EXPECT_LE(planner.Plan({job}, least, profile)->arena_bytes, least);
  planner.Forget();
  EXPECT_FALSE(planner.Plan({job}, least - 1, profile).ok());
  EXPECT_TRUE(planner.Plan({job}, least, profile).ok()) << "a failure holds for its budget only";
}

// Jobs of one base with activations of different types: each fits, no set of both does.
TEST(PassPlannerTest, JobsOfDifferentPrecisionShareNoPass) {
  std::mt19937 rng(5);
  engine::MachineProfile profile;
  const auto on_card = [&rng](const std::string& id, bool f32) {
    const auto made = MakeJob(id, rng);
    PreparedJob job{id, made->spec, made->shape, made->numeric, made->train, made->validation,
                    "", "base",     {}};
    job.numeric.backend = "cuda";
    job.numeric.f32_activations = f32;
    return std::make_shared<const PreparedJob>(std::move(job));
  };
  const auto bf16 = on_card("a", false), fp32 = on_card("b", true), other = on_card("c", true);
  constexpr int64_t kPlenty = int64_t{1} << 40;
  PassPlanner planner;
  EXPECT_TRUE(planner.Plan({bf16}, kPlenty, profile).ok());
  EXPECT_TRUE(planner.Plan({fp32}, kPlenty, profile).ok());
  EXPECT_TRUE(planner.Plan({fp32, other}, kPlenty, profile).ok());
  EXPECT_EQ(planner.Plan({bf16, fp32}, kPlenty, profile).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PassPlannerTest, TheBudgetOfASetIsTheLeastThatAnyoneAllows) {
  std::mt19937 rng(3);
  const auto free = MakeJob("a", rng), tight = MakeJob("b", rng, 1000);
  EXPECT_EQ(SetBudget({free}, 5000, 0, 0), 5000);
  EXPECT_EQ(SetBudget({free, tight}, 5000, 0, 0), 1000);
  EXPECT_EQ(SetBudget({tight}, 5000, 300, 0), 700);
  EXPECT_EQ(SetBudget({tight}, 500, 300, 0), 500);
  EXPECT_EQ(SetBudget({tight}, 5000, 3000, 0), 0);
  // Page tables come out of what is free on the device, and out of what a job allows.
  EXPECT_EQ(SetBudget({free}, 5000, 300, 200), 4800);
  EXPECT_EQ(SetBudget({tight}, 5000, 300, 200), 500);
  EXPECT_EQ(SetBudget({tight}, 100, 300, 200), 0);
}

TEST(PassPlannerTest, ACardMapsWhatTheJobsPin) {
  std::mt19937 rng(4);
  const auto first = MakeJob("a", rng);
  EXPECT_EQ(SetTableBytes({first}, true), 0) << "the CPU has no page tables of its own";
  PreparedJob job{"c", first->spec, first->shape, first->numeric, first->train, {}, "", "base", {}};
  job.numeric.backend = "cuda";
  job.shape.lora.r = 1 << 20;  // 16 bytes an element: more than the rounding to 2 MiB
  const engine::JobShape shape = job.shape;
  const auto on_card = std::make_shared<PreparedJob>(std::move(job));
  const int64_t alone = SetTableBytes({on_card}, true);
  EXPECT_EQ(alone, engine::PinnedTableBytes(
                       engine::PinnedByJobs(shape.model, shape.format, {shape.lora})));
  EXPECT_GT(alone, 0);
  EXPECT_GT(SetTableBytes({on_card, on_card}, true), alone) << "one base, two states";
  EXPECT_EQ(SetTableBytes({on_card}, false), 0) << "nothing is pinned";
}

}  // namespace
}  // namespace soup::daemon
