// The placement of a whole run: what each pass may keep, and what runs of many lengths gain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/plan/job_plan.h"
#include "engine/plan/pass_forecaster.h"
#include "tests/engine/plan/known_shapes.h"
#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

PassJob Pass(const JobShape& shape, const NumericPlan& numeric, std::vector<PassItem> items) {
  PassJob job;
  job.job_id = "a";
  job.lora = shape.lora;
  job.numeric = numeric;
  job.items = std::move(items);
  return job;
}

struct RunCase {
  JobShape shape;
  RunPasses passes;
};

// A job of sequences of `shortest` to `longest` tokens, drawn evenly, and eight of its steps.
RunCase MakeRun(const ModelSpec& model, BaseFormat format, int32_t batch, int32_t shortest,
                int32_t longest, const MachineProfile& machine, testing::SeededRng& rng) {
  RunCase run;
  run.shape.model = model;
  run.shape.format = format;
  run.shape.lora.r = 8;
  run.shape.lora.targets = {Module::kQ, Module::kK, Module::kV, Module::kO};
  for (int i = 0; i < 8 * batch; ++i) {
    run.shape.lengths.push_back(static_cast<int32_t>(rng.Int(shortest, longest)));
  }
  run.shape.max_length = longest;
  run.shape.batch.batch_size = batch;
  run.shape.batch.packing = true;
  const auto numeric = MakeNumericPlan(run.shape, machine);
  EXPECT_TRUE(numeric.ok()) << numeric.status();
  const auto schedule = MakeTrainSchedule(run.shape, *numeric);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  run.passes.largest = {LargestPass("a", run.shape, *numeric, schedule->max_micro_batches())};
  run.passes.steps = schedule->steps();
  for (int64_t step = 1; step <= schedule->steps(); ++step) {
    const auto items = MakePassItems(schedule->Step(step), *numeric, 0, -1, /*train=*/true);
    EXPECT_TRUE(items.ok()) << items.status();
    run.passes.sampled.push_back({Pass(run.shape, *numeric, *items)});
  }
  return run;
}

// Mean of the sampled steps under one placement, none of them keeping more.
Forecast MeanStep(const RunCase& run, const MachineProfile& machine, const Placement& placement) {
  Forecast mean;
  for (const auto& pass : run.passes.sampled) {
    const auto forecast = ForecastPass(run.shape.model, run.shape.format, pass, placement, machine);
    EXPECT_TRUE(forecast.ok()) << forecast.status();
    mean.step_seconds += forecast->step_seconds / static_cast<double>(run.passes.steps);
    mean.stall_seconds += forecast->stall_seconds / static_cast<double>(run.passes.steps);
  }
  return mean;
}

// The weights' part of a placement, and where the moments are.
Placement Weights(Placement p) {
  Retain(Retention::kRecompute, &p);
  p.boundaries_host = false;
  return p;
}

int32_t Kept(const LayerSplit& split) { return split.device + split.host; }

TEST(KeepMoreTest, FillsTheRoomOfTheLargestPassAndNoMore) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  const ModelSpec model = SmallModel();
  int raised = 0;
  for (int round = 0; round < 60; ++round) {
    MachineProfile machine = H200Quick();
    if (rng.Chance(0.3)) machine.backend = "cpu";
    const RunCase run = MakeRun(model, BaseFormat::kNf4DoubleQuant,
                                static_cast<int32_t>(rng.Int(1, 9)), 16, 700, machine, rng);
    Placement p;
    p.slots = static_cast<int32_t>(rng.Int(2, model.layers));
    p.resident_layers = p.slots == model.layers ? p.slots : 0;
    p.head_resident = rng.Chance(0.5);
    for (LayerSplit* split : {&p.attention, &p.mlp}) {
      split->device = static_cast<int32_t>(rng.Int(0, model.layers));
      if (machine.backend == "cuda") {
        split->host = static_cast<int32_t>(rng.Int(0, model.layers - split->device));
      }
    }
    p.boundaries_host = machine.backend == "cuda" && rng.Chance(0.5);
    const auto largest = PlanMemory(model, run.shape.format, run.passes.largest, p);
    ASSERT_TRUE(largest.ok()) << largest.status();
    for (const auto& pass : run.passes.sampled) {
      const auto before = PlanMemory(model, run.shape.format, pass, p);
      const auto after = KeepMore(model, run.shape.format, pass, p, largest->arena_bytes());
      ASSERT_TRUE(before.ok() && after.ok()) << after.status();
      SCOPED_TRACE(PlacementText(p) + " -> " + PlacementText(after->placement));
      // Exact: what it tells is the plan of what it chose.
      const auto told = PlanMemory(model, run.shape.format, pass, after->placement);
      ASSERT_TRUE(told.ok());
      ASSERT_EQ(told->arena_bytes(), after->arena_bytes());
      ASSERT_LE(after->arena_bytes(), std::max(before->arena_bytes(), largest->arena_bytes()));
      ASSERT_LE(after->host_bytes(), before->host_bytes());
      ASSERT_EQ(after->persistent_bytes, before->persistent_bytes);
      ASSERT_TRUE(Weights(after->placement) == Weights(p));
      const Placement q = NormalPlacement(after->placement, model.layers);
      ASSERT_GE(q.attention.device, p.attention.device);
      ASSERT_GE(q.mlp.device, p.mlp.device);
      ASSERT_GE(Kept(q.attention), Kept(p.attention));
      ASSERT_GE(Kept(q.mlp), Kept(p.mlp));
      raised += !(NormalPlacement(p, model.layers) == q);
      // Not one layer more would fit.
      for (LayerSplit Placement::*split : {&Placement::mlp, &Placement::attention}) {
        Placement more = q;
        if (before->arena_bytes() >= largest->arena_bytes() ||
            (more.*split).device == model.layers) {
          continue;
        }
        ++(more.*split).device;
        (more.*split).host =
            std::min((more.*split).host, static_cast<int32_t>(model.layers) - (more.*split).device);
        const auto over = PlanMemory(model, run.shape.format, pass, more);
        ASSERT_TRUE(over.ok());
        ASSERT_GT(over->arena_bytes(), largest->arena_bytes() * 999 / 1000) << PlacementText(more);
      }
    }
  }
  EXPECT_GT(raised, 20);
}

TEST(KeepMoreTest, APassThatOnlyScoresKeepsNothing) {
  testing::SeededRng rng;
  const MachineProfile machine = H200Quick();
  RunCase run = MakeRun(SmallModel(), BaseFormat::kBf16, 4, 16, 700, machine, rng);
  std::vector<PassJob> pass = run.passes.sampled.front();
  for (PassItem& item : pass.front().items) item.train = false;
  const auto plan = KeepMore(SmallModel(), BaseFormat::kBf16, pass, Placement(), int64_t{1} << 40);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->placement == Placement()) << PlacementText(plan->placement);
}

TEST(RunPlacementTest, EveryPassFitsAndTheMeanCostsNoMoreThanBefore) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  const ModelSpec model = SmallModel();
  for (int round = 0; round < 25; ++round) {
    MachineProfile machine = H200Quick();
    if (rng.Chance(0.3)) machine.backend = "cpu";
    const BaseFormat format = rng.Chance(0.5) ? BaseFormat::kBf16 : BaseFormat::kNf4DoubleQuant;
    const RunCase run = MakeRun(model, format, static_cast<int32_t>(rng.Int(1, 12)), 8,
                                static_cast<int32_t>(rng.Int(8, 900)), machine, rng);
    const auto least = MinimumArenaBytes(model, format, run.passes.largest);
    ASSERT_TRUE(least.ok());
    const PlacementLimits limits = {*least + rng.Int(0, 1'500'000'000), rng.Int(0, 1 << 30)};
    const auto alone = ChoosePlacement(model, format, run.passes.largest, limits, machine);
    const auto plan = ChoosePlacementForRun(model, format, run.passes, limits, machine);
    ASSERT_EQ(plan.status().code(), alone.status().code());
    if (!plan.ok()) continue;
    EXPECT_LE(plan->largest.device_bytes(), limits.device_bytes);
    EXPECT_LE(plan->largest.host_bytes(), limits.host_bytes);
    // Under the largest pass's own choice, by the same rule.
    Forecast before;
    for (const auto& pass : run.passes.sampled) {
      const auto of = KeepMore(model, format, pass, alone->placement, alone->arena_bytes());
      ASSERT_TRUE(of.ok());
      const auto plain = ForecastPass(model, format, pass, alone->placement, machine);
      const auto forecast = ForecastPass(model, format, pass, of->placement, machine);
      ASSERT_TRUE(forecast.ok() && plain.ok());
      EXPECT_LE(forecast->step_seconds, plain->step_seconds * 1.001)
          << PlacementText(alone->placement) << " -> " << PlacementText(of->placement);
      before.step_seconds += forecast->step_seconds / static_cast<double>(run.passes.steps);
      before.stall_seconds += forecast->stall_seconds / static_cast<double>(run.passes.steps);
    }
    EXPECT_LE(PlacementCost(plan->step), PlacementCost(before) * 1.0001)
        << PlacementText(alone->placement) << " -> " << PlacementText(plan->largest.placement);
    for (const auto& pass : run.passes.sampled) {
      const auto of =
          KeepMore(model, format, pass, plan->largest.placement, plan->largest.arena_bytes());
      ASSERT_TRUE(of.ok());
      EXPECT_LE(of->device_bytes(), limits.device_bytes);
    }
  }
}

TEST(RunPlacementTest, PassesThatAreAllAlikeGetTheLargestsOwnChoice) {
  testing::SeededRng rng;
  const MachineProfile machine = H200Quick();
  const RunCase run = MakeRun(Llama8b(), BaseFormat::kNf4DoubleQuant, 8, 512, 512, machine, rng);
  const PlacementLimits limits = {9'900'000'000};
  const auto alone =
      ChoosePlacement(Llama8b(), run.shape.format, run.passes.largest, limits, machine);
  const auto plan = ChoosePlacementForRun(Llama8b(), run.shape.format, run.passes, limits, machine);
  ASSERT_TRUE(alone.ok() && plan.ok()) << plan.status();
  EXPECT_EQ(PlacementText(plan->largest.placement), PlacementText(alone->placement));
  EXPECT_NEAR(plan->step.tokens_per_second, 4096 / plan->step.step_seconds, 1e-6);
}

TEST(RunPlacementTest, ARunWithoutASampledPassIsRefused) {
  testing::SeededRng rng;
  const MachineProfile machine = H200Quick();
  RunCase run = MakeRun(SmallModel(), BaseFormat::kBf16, 2, 16, 64, machine, rng);
  run.passes.sampled.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(ChoosePlacementForRun(SmallModel(), BaseFormat::kBf16,
                                                            run.passes, {int64_t{1} << 34}, machine)
                                          .status()));
}

// What runs of many lengths gain over room for the largest pass alone: the mean step, predicted.
struct Gain {
  const char* name;
  BaseFormat format;
  int32_t batch, shortest, longest;
  double budget_gb;
  double most;  // of the mean step before
};
class Gains : public ::testing::TestWithParam<Gain> {};

TEST_P(Gains, OfRunsOfManyLengths) {
  const Gain& gain = GetParam();
  testing::SeededRng rng(7);
  const MachineProfile machine = H200Quick();
  const RunCase run =
      MakeRun(Llama8b(), gain.format, gain.batch, gain.shortest, gain.longest, machine, rng);
  const PlacementLimits limits = {static_cast<int64_t>(gain.budget_gb * 1e9)};
  const auto alone = ChoosePlacement(Llama8b(), gain.format, run.passes.largest, limits, machine);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto plan = ChoosePlacementForRun(Llama8b(), gain.format, run.passes, limits, machine);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const double before = MeanStep(run, machine, alone->placement).step_seconds;
  std::printf("%s: %.1f ms (%s) -> %.1f ms (%s)\n", gain.name, before * 1e3,
              PlacementText(alone->placement).c_str(), plan->step.step_seconds * 1e3,
              PlacementText(plan->largest.placement).c_str());
  EXPECT_LE(plan->step.step_seconds, gain.most * before);
}

INSTANTIATE_TEST_SUITE_P(
    H200, Gains,
    ::testing::Values(
        Gain{"nf4_b8_64_960_10gb", BaseFormat::kNf4DoubleQuant, 8, 64, 960, 9.9, 0.94},
        Gain{"nf4_b16_32_2048_32gb", BaseFormat::kNf4DoubleQuant, 16, 32, 2048, 32, 0.97},
        Gain{"bf16_b8_64_960_11gb", BaseFormat::kBf16, 8, 64, 960, 10.6, 0.9},
        Gain{"bf16_b8_64_960_24gb", BaseFormat::kBf16, 8, 64, 960, 24, 0.7}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace soup::engine
