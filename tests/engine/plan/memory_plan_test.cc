// The memory plan by properties, and the choice of a placement. That a plan equals what a pass
// takes is checked by every test that runs a pass (tests/engine/train).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/plan/expert_buffers.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/pass_buffers.h"
#include "tests/engine/plan/known_shapes.h"
#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::testing::HasSubstr;

PassJob RandomPassJob(testing::SeededRng& rng, const std::string& id) {
  PassJob job;
  job.job_id = id;
  job.lora.r = static_cast<int32_t>(rng.Int(1, 64));
  job.lora.dropout = rng.Chance(0.5);
  for (const Module m : AdaptableModules(ModelSpec())) {
    if (rng.Chance(0.6)) job.lora.targets.push_back(m);
  }
  if (job.lora.targets.empty()) job.lora.targets = {Module::kQ};
  job.numeric.backend = "cpu";
  job.numeric.head_slice_rows = 2048;
  const int64_t items = rng.Int(1, 5);
  for (int64_t i = 0; i < items; ++i) {
    job.items.push_back({rng.Int(1, 2048), static_cast<int32_t>(rng.Int(1, 9)), rng.Chance(0.8)});
  }
  return job;
}

Placement RandomPlacement(testing::SeededRng& rng, const ModelSpec& model) {
  Placement p;
  p.slots = static_cast<int32_t>(rng.Int(2, model.layers - 1));
  p.resident_layers = static_cast<int32_t>(rng.Int(0, p.slots - 2));
  if (rng.Chance(0.4)) {
    Retain(rng.Chance(0.5) ? Retention::kKeep : Retention::kRecompute, &p);
  } else {
    for (LayerSplit* split : {&p.attention, &p.mlp}) {
      split->device = static_cast<int32_t>(rng.Int(0, model.layers));
      split->host = static_cast<int32_t>(rng.Int(0, model.layers));
    }
    p.boundaries_host = rng.Chance(0.3);
    p.optimizer_host = rng.Chance(0.3);
  }
  p.head_resident = rng.Chance(0.5);
  return p;
}

BaseFormat RandomFormat(testing::SeededRng& rng) { return static_cast<BaseFormat>(rng.Int(0, 2)); }

int64_t Bytes(BaseFormat format, const std::vector<PassJob>& jobs, const Placement& p) {
  const auto plan = PlanMemory(SmallModel(), format, jobs, p);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->arena_bytes() : -1;
}

// What a layout of layers that keep different things may lie above the lower bound, as 1/n of it.
constexpr int64_t kSlack = 512;

// Any two live buffers apart; the layout as small as what is live at once.
void CheckLayout(const ArenaLayout& arena, bool uniform) {
  std::vector<BufferRequest> requests;
  for (const BufferPlacement& b : arena.buffers) {
    requests.push_back({b.name, b.what, b.bytes, b.first, b.last});
  }
  // Exact where all layers keep the same; else all but.
  const int64_t bound = ArenaLowerBound(requests);
  EXPECT_LE(arena.bytes, uniform ? bound : bound + bound / kSlack);
  for (size_t i = 0; i < arena.buffers.size(); ++i) {
    const BufferPlacement& a = arena.buffers[i];
    EXPECT_LE(a.offset + a.bytes, arena.bytes);
    for (size_t j = i + 1; j < arena.buffers.size(); ++j) {
      const BufferPlacement& b = arena.buffers[j];
      const bool live = a.first <= b.last && b.first <= a.last;
      const bool apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
      ASSERT_TRUE(!live || apart || a.bytes == 0 || b.bytes == 0) << a.name << " " << b.name;
    }
  }
}

TEST(MemoryPlan, IsTightAndGrowsWithEveryDial) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 60; ++round) {
    std::vector<PassJob> jobs = {RandomPassJob(rng, "a")};
    if (rng.Chance(0.5)) jobs.push_back(RandomPassJob(rng, "b"));
    const Placement p = RandomPlacement(rng, SmallModel());
    const BaseFormat format = RandomFormat(rng);
    const auto plan = PlanMemory(SmallModel(), format, jobs, p);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const bool uniform = LayerBands(p, SmallModel().layers).size() == 1;
    CheckLayout(plan->arena, uniform);
    const int64_t exact = plan->arena_bytes(), bytes = uniform ? exact : exact - exact / kSlack;
    const size_t which = static_cast<size_t>(rng.Int(0, static_cast<int64_t>(jobs.size()) - 1));

    std::vector<PassJob> more = jobs;
    more[which].items.back().tokens += rng.Int(1, 512);
    EXPECT_GE(Bytes(format, more, p), bytes) << "tokens";
    more = jobs;
    more[which].items.push_back({rng.Int(1, 512), 1, rng.Chance(0.5)});
    EXPECT_GE(Bytes(format, more, p), bytes) << "items";
    more = jobs;
    more[which].lora.r += static_cast<int32_t>(rng.Int(1, 16));
    EXPECT_GE(Bytes(format, more, p), bytes) << "rank";
    more = jobs;
    more.push_back(RandomPassJob(rng, "c"));
    EXPECT_GE(Bytes(format, more, p), bytes) << "jobs";
    Placement wide = p;
    ++wide.slots;
    EXPECT_GT(Bytes(format, jobs, wide), exact) << "slots";
    ++wide.resident_layers;
    EXPECT_GT(Bytes(format, jobs, wide), exact) << "resident layers";
  }
}

// The workspace of an attention library lives in the op that uses it alone, sized by the item.
TEST(MemoryPlan, AttentionLibraryHasItsWorkspace) {
  ModelSpec model = SmallModel();
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 128;
  PassJob job;
  job.job_id = "a";
  job.lora.r = 8;
  job.lora.targets = {Module::kQ};
  job.numeric.backend = "cuda";
  job.numeric.head_slice_rows = 64;
  job.numeric.attention = {"cudnn-9.14.0", {4096, 16384}, {4096, 16384}, int64_t{3} << 30};
  Placement p;
  p.slots = static_cast<int32_t>(model.layers);
  for (const int64_t tokens : {1024, 4096, 16384}) {
    job.items = {{tokens, 1, true}};
    const auto plan = PlanMemory(model, BaseFormat::kBf16, {job}, p);
    ASSERT_TRUE(plan.ok()) << plan.status();
    CheckLayout(plan->arena, true);
    int64_t bytes = 0;
    for (const BufferPlacement& b : plan->arena.buffers) {
      if (b.name.find(kBackwardAttentionLibrary) == std::string::npos) continue;
      EXPECT_EQ(b.first, b.last);
      bytes = std::max(bytes, b.bytes);
    }
    EXPECT_EQ(bytes,
              AttentionWorkspaceBytes(tokens, AttentionWidthsOf(model), job.numeric.attention));
    EXPECT_EQ(bytes > 0, tokens >= 4096) << tokens;
    // A score item has no backward.
    job.items[0].train = false;
    const auto score = PlanMemory(model, BaseFormat::kBf16, {job}, p);
    ASSERT_TRUE(score.ok());
    for (const BufferPlacement& b : score->arena.buffers) {
      EXPECT_EQ(b.name.find(kBackwardAttentionLibrary), std::string::npos);
    }
  }
}

// What does not depend on the items lies at the same addresses in every pass of one configuration.
TEST(MemoryPlan, SlotsAndStatesStayWhereTheyAre) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 20; ++round) {
    PassJob job = RandomPassJob(rng, "a");
    job.items[0].train = true;
    const Placement p = RandomPlacement(rng, SmallModel());
    const auto first = PlanMemory(SmallModel(), BaseFormat::kBf16, {job}, p);
    job.items.push_back({rng.Int(1, 2048), 2, true});
    const auto second = PlanMemory(SmallModel(), BaseFormat::kBf16, {job}, p);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first->persistent_bytes, second->persistent_bytes);
    for (size_t i = 0; i < first->arena.buffers.size(); ++i) {
      const BufferPlacement& a = first->arena.buffers[i];
      if (a.offset + a.bytes > first->persistent_bytes || a.bytes == 0) continue;
      EXPECT_EQ(a.name, second->arena.buffers[i].name);
      EXPECT_EQ(a.offset, second->arena.buffers[i].offset);
    }
  }
}

TEST(MemoryPlan, KeepTakesMoreThanRecompute) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  PassJob job = RandomPassJob(rng, "a");
  job.items = {{512, 4, true}};
  Placement p;
  const int64_t recompute = Bytes(BaseFormat::kBf16, {job}, p);
  Retain(Retention::kKeep, &p);
  EXPECT_GT(Bytes(BaseFormat::kBf16, {job}, p), recompute);
}

TEST(MemoryPlan, Refusals) {
  testing::SeededRng rng(1);
  const PassJob job = RandomPassJob(rng, "a");
  const auto refused = [&](const std::vector<PassJob>& jobs, const Placement& p) {
    return std::string(PlanMemory(SmallModel(), BaseFormat::kBf16, jobs, p).status().message());
  };
  Placement p;
  EXPECT_THAT(refused({}, p), HasSubstr("at least one job"));
  EXPECT_THAT(refused({job, job}, p), HasSubstr("twice"));
  PassJob empty = job;
  empty.items.clear();
  EXPECT_THAT(refused({empty}, p), HasSubstr("no work item"));
  PassJob slices = job;
  slices.job_id = "b";
  slices.numeric.head_slice_rows = 80;
  EXPECT_THAT(refused({job, slices}, p), HasSubstr("head slices"));
  PassJob bf16 = job, f32 = job;
  f32.job_id = "b";
  bf16.numeric.backend = f32.numeric.backend = "cuda";
  f32.numeric.f32_activations = true;
  EXPECT_THAT(refused({bf16, f32}, p), HasSubstr("different types"));
  p.slots = 1;
  EXPECT_THAT(refused({job}, p), HasSubstr("1 slots"));
  p.slots = 4;
  p.resident_layers = 3;
  EXPECT_THAT(refused({job}, p), HasSubstr("resident"));
}

MachineProfile Profile() {
  MachineProfile profile;
  profile.copy_bytes_per_second = 5e9;
  profile.gemm_flops = 1e11;
  profile.dequant_bytes_per_second = 5e9;
  profile.cpu_threads = 2;
  return profile;
}

TEST(ChoosePlacement, FitsItsBudgetAndGetsFasterWithIt) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 10; ++round) {
    const std::vector<PassJob> jobs = {RandomPassJob(rng, "a")};
    const BaseFormat format = RandomFormat(rng);
    const auto least = MinimumArenaBytes(SmallModel(), format, jobs);
    ASSERT_TRUE(least.ok());
    double last = 1e300;
    for (const double more : {1.0, 1.3, 2.0, 10.0}) {
      const int64_t budget = static_cast<int64_t>(static_cast<double>(*least) * more);
      const auto plan = ChoosePlacement(SmallModel(), format, jobs, budget, Profile());
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LE(plan->arena_bytes(), budget);
      const auto forecast = ForecastPass(SmallModel(), format, jobs, plan->placement, Profile());
      ASSERT_TRUE(forecast.ok());
      EXPECT_LE(forecast->step_seconds, last * 1.0001);
      last = forecast->step_seconds;
    }
    const auto none = ChoosePlacement(SmallModel(), format, jobs, *least - 1, Profile());
    EXPECT_TRUE(absl::IsResourceExhausted(none.status()));
    EXPECT_THAT(std::string(none.status().message()), HasSubstr(std::to_string(*least)));
  }
}

TEST(ChoosePlacement, WithRoomForAllNothingIsCopiedOrRecomputed) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  PassJob job = RandomPassJob(rng, "a");
  job.items[0].train = true;
  const auto plan =
      ChoosePlacement(SmallModel(), BaseFormat::kBf16, {job}, int64_t{1} << 50, Profile());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->placement.slots, SmallModel().layers);
  EXPECT_EQ(RetentionText(plan->placement), "keep");
  EXPECT_TRUE(plan->placement.head_resident);
  const auto forecast =
      ForecastPass(SmallModel(), BaseFormat::kBf16, {job}, plan->placement, Profile());
  ASSERT_TRUE(forecast.ok());
  EXPECT_EQ(forecast->copy_bytes, 0);
  EXPECT_EQ(forecast->stall_seconds, 0);
}

TEST(ForecastPass, SlowCopiesStall) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  PassJob job = RandomPassJob(rng, "a");
  MachineProfile slow = Profile();
  slow.copy_bytes_per_second = 1e6;
  const auto fast = ForecastPass(SmallModel(), BaseFormat::kBf16, {job}, Placement(), Profile());
  const auto stalled = ForecastPass(SmallModel(), BaseFormat::kBf16, {job}, Placement(), slow);
  ASSERT_TRUE(fast.ok() && stalled.ok());
  EXPECT_GT(stalled->step_seconds, fast->step_seconds);
  // (On the CPU copies also take cycles from compute: not all of the difference is stall.)
  EXPECT_GT(stalled->stall_seconds, 0.25 * stalled->step_seconds);
  EXPECT_EQ(stalled->copy_bytes, fast->copy_bytes);
}

// fp32 activations on CUDA: whatever is act is twice as large, experts' rows come from CUDA's list,
// and products have their scratch.
TEST(MemoryPlan, F32ActivationsOnCuda) {
  ModelSpec model = SmallModel();
  model.layers = 4;
  model.experts = {.count = 8, .per_token = 2, .intermediate = 512};
  model.kinds.assign(static_cast<size_t>(model.layers), LayerKind{.sparse = true});
  PassJob job;
  job.job_id = "a";
  job.lora.r = 8;
  job.lora.targets = AdaptableModules(model);
  job.numeric.backend = "cuda";
  job.numeric.head_slice_rows = 2048;
  job.items.push_back({1000, 3, true});
  const auto bf16 = PlanMemory(model, BaseFormat::kBf16, {job}, Placement());
  job.numeric.f32_activations = true;
  const auto f32 = PlanMemory(model, BaseFormat::kBf16, {job}, Placement());
  ASSERT_TRUE(bf16.ok() && f32.ok());
  // Adapters' operands are their fp32 weights: no copy.
  EXPECT_EQ(f32->persistent_bytes - bf16->persistent_bytes,
            kProductScratchBytes - ArenaRoundUp(2 * AdapterElements(model, job.lora)));
  const auto bytes = [](const MemoryPlan& plan, const std::string& name) {
    for (const BufferPlacement& b : plan.arena.buffers) {
      if (b.name == name) return b.bytes;
    }
    return int64_t{-1};
  };
  EXPECT_EQ(bytes(*f32, kProductScratchBuffer), kProductScratchBytes);
  for (const std::string& name :
       {InBand(kForwardHidden, 0), InBand(kBackwardDHidden, 0), InBand(kForwardExpertRows, 0),
        ItemBuffer(0, InBand(kItemWork, 0)), InBand(kBackwardGateUpIn, 0)}) {
    EXPECT_EQ(bytes(*f32, name), 2 * bytes(*bf16, name)) << name;
    EXPECT_GT(bytes(*f32, name), 0) << name;
  }
  // Its attention has no partial sums.
  EXPECT_GT(bytes(*bf16, InBand(kBackwardPartials, 0)), 0);
  EXPECT_EQ(bytes(*f32, InBand(kBackwardPartials, 0)), -1);
  EXPECT_EQ(ExpertRows(65, /*wt=*/2), 96);
  EXPECT_EQ(ExpertRows(65, /*wt=*/4), 72);
}

// Models whose layers hold what a Llama's do not.
TEST(MemoryPlan, EveryFeatureIsLaidOutTightlyAndGrowsWithTokens) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 60; ++round) {
    ModelSpec model = SmallModel();
    model.layers = 4;
    model.qk_norm = rng.Chance(0.5);
    model.post_norms = rng.Chance(0.5);
    model.fused_projections = rng.Chance(0.3);
    if (rng.Chance(0.7)) {
      model.experts.count = rng.Int(1, 16);
      model.experts.per_token = rng.Int(1, model.experts.count);
      model.experts.intermediate = 8 * rng.Int(1, 200);
      for (int64_t l = 0; l < model.layers; ++l) {
        LayerKind kind;
        kind.sparse = l == 1 || rng.Chance(0.7);
        model.kinds.push_back(kind);
      }
    }
    PassJob job = RandomPassJob(rng, "a");
    job.numeric.backend = rng.Chance(0.5) ? "cuda" : "cpu";
    job.numeric.f32_activations = job.numeric.backend == "cuda" && rng.Chance(0.5);
    job.lora.targets = AdaptableModules(model);
    const Placement placement = RandomPlacement(rng, model);
    const BaseFormat format = RandomFormat(rng);
    const auto small = PlanMemory(model, format, {job}, placement);
    ASSERT_TRUE(small.ok()) << small.status();
    CheckLayout(small->arena, false);
    for (PassItem& item : job.items) item.tokens += rng.Int(1, 100);
    const auto large = PlanMemory(model, format, {job}, placement);
    ASSERT_TRUE(large.ok()) << large.status();
    EXPECT_LE(small->arena_bytes() - small->arena_bytes() / kSlack, large->arena_bytes());
  }
}

}  // namespace
}  // namespace soup::engine
