#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "tests/engine/train/same_bits.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {

RandomJob JobA(BaseFormat format) {
  RandomJob job;
  job.id = "a";
  job.dropout = 0.1;
  job.format = format;
  return job;
}

RandomJob JobB() {
  RandomJob job;
  job.id = "b";
  job.seed = 2;
  job.r = 7;
  job.longest = 45;
  job.batch_size = 3;
  job.epochs = 3;
  job.targets = {Module::kQ, Module::kV, Module::kDown};
  return job;
}

Placement Place(int32_t slots, Retention retention, int32_t resident, bool head_resident) {
  Placement p;
  p.slots = slots;
  p.resident_layers = resident;
  Retain(retention, &p);
  p.head_resident = head_resident;
  return p;
}

Placement PlaceBy(const std::string& text) {
  const auto placement = ParsePlacement(text);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *placement : Placement();
}

void SameBitsTest::SetUp() {
  const std::string missing = NoDeviceForSameBits();
  if (missing.empty()) return;
  const char* required = std::getenv("SOUP_REQUIRE_GPU");
  if (required != nullptr && std::strcmp(required, "1") == 0) FAIL() << missing;
  GTEST_SKIP() << missing;
}

Engine OpenJobs(const std::vector<RandomJob>& jobs, const SameBitsOptions& options) {
  MachineProfile profile;
  Engine e = MakeSameBitsEngine(TinyBase(jobs[0].format, jobs[0].layers, jobs[0].model), options,
                                &profile);
  for (const RandomJob& job : jobs) {
    JobSetup setup = MakeJob(job, profile);
    setup.mirror_dir = options.mirror_dir;
    const auto opened = e.trainer->OpenJob(std::move(setup));
    EXPECT_TRUE(opened.ok()) << opened.status();
  }
  return e;
}

AdapterSnapshot Alone(const RandomJob& job, const Placement& placement, int32_t micro_batches,
                      const SameBitsOptions& options) {
  Engine e = OpenJobs({job}, options);
  RunSteps(*e.trainer, job.id, 1, kSameBitsSteps, placement, micro_batches);
  return Snapshot(*e.trainer, job.id);
}

namespace {

const Placement& Least() {
  static const Placement least = Place(2, Retention::kRecompute);
  return least;
}

// Seven layers: deep enough that what is kept in host memory goes there and comes back.
constexpr int64_t kDeep = 7;
RandomJob DeepJob(BaseFormat format) {
  RandomJob job = JobA(format);
  job.layers = kDeep;
  return job;
}

// What the least placement makes of JobA, or of the deep one.
const AdapterSnapshot& Reference(BaseFormat format = BaseFormat::kBf16, bool deep = false) {
  static auto& references = *new std::map<std::pair<BaseFormat, bool>, AdapterSnapshot>();
  const auto key = std::make_pair(format, deep);
  if (references.count(key) == 0) {
    references[key] = Alone(deep ? DeepJob(format) : JobA(format), Least());
  }
  return references[key];
}

TEST_F(SameBitsTest, ReferenceHasTrained) {
  EXPECT_EQ(Reference().steps_done, kSameBitsSteps);
  EXPECT_EQ(Reference().optimizer_steps, kSameBitsSteps);
  RandomJob other = JobA();
  other.seed = 3;
  EXPECT_FALSE(SameBits(Reference(), Alone(other, Least())));  // the comparison can fail
}

TEST_F(SameBitsTest, StepsHaveSeveralMicroBatches) {
  const JobSetup setup = MakeJob(JobA());
  const auto schedule = MakeTrainSchedule(setup.shape, setup.numeric);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->steps(), kSameBitsSteps);
  EXPECT_GE(schedule->max_micro_batches(), 2);
}

// Weights, what the layers keep, boundaries, moments: every one with every other.
using Dials = std::tuple<const char*, const char*, const char*, const char*>;
class Placements : public SameBitsTest, public ::testing::WithParamInterface<Dials> {};

TEST_P(Placements, GiveTheSameBits) {
  const auto [weights, kept, boundaries, optimizer] = GetParam();
  const Placement p = PlaceBy(std::string(weights) + " " + kept + " boundaries=" + boundaries +
                              " optimizer=" + optimizer);
  SCOPED_TRACE(PlacementText(p));
  EXPECT_TRUE(SameBits(Reference(BaseFormat::kNf4, true), Alone(DeepJob(BaseFormat::kNf4), p)));
}

INSTANTIATE_TEST_SUITE_P(
    Every, Placements,
    ::testing::Combine(::testing::Values("slots=2", "slots=4 resident=2 head=resident:1",
                                         "slots=all resident=all head=resident"),
                       ::testing::Values("recompute", "keep", "attention=host:all mlp=host:all",
                                         "attention=device:2+host:4 mlp=device:1+host:3"),
                       ::testing::Values("device", "host"), ::testing::Values("device", "host")),
    [](const auto& info) {
      std::string name = std::string(std::get<0>(info.param)) + " " + std::get<1>(info.param) +
                         " " + std::get<2>(info.param) + " " + std::get<3>(info.param);
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

TEST_F(SameBitsTest, EveryFormat) {
  for (const BaseFormat format :
       {BaseFormat::kBf16, BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    SCOPED_TRACE(BaseFormatName(format));
    for (const Placement& p :
         {Place(2, Retention::kKeep), Place(3, Retention::kRecompute, 1),
          Place(3, Retention::kKeep, 3, true), Place(2, Retention::kHost),
          PlaceBy("slots=3 resident=3 head=resident:1 attention=device:1+host:1 mlp=host:1")}) {
      EXPECT_TRUE(SameBits(Reference(format), Alone(JobA(format), p))) << PlacementText(p);
    }
    EXPECT_TRUE(SameBits(Reference(format), Alone(JobA(format), Least(), 1)));  // a pass an item
  }
}

// Each step under another placement: states move, what is kept on the host too.
TEST_F(SameBitsTest, PlacementChangesBetweenSteps) {
  const BaseFormat format = BaseFormat::kNf4;
  // Before the engine: two of them in one process cannot both pin the base.
  const AdapterSnapshot& reference = Reference(format, true);
  Engine e = OpenJobs({DeepJob(format)});
  const char* const texts[] = {"slots=2 host optimizer=host", "slots=7 keep head=resident",
                               "slots=3 attention=device:3 optimizer=host",
                               "slots=4 resident=2 mlp=host:all boundaries=host"};
  for (int64_t step = 1; step <= kSameBitsSteps; ++step) {
    RunStep(*e.trainer, "a", step, PlaceBy(texts[step % 4]), step % 2 == 0 ? 1 : -1);
  }
  EXPECT_TRUE(SameBits(reference, Snapshot(*e.trainer, "a")));
}

// The arena, and the host memory, that a plan says is what the pass takes, to the byte: RunStep
// checks the one, RunPass fails for the other.
TEST_F(SameBitsTest, PlanIsWhatThePassTakes) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  const auto count = [&rng](int64_t most) { return static_cast<int32_t>(rng.Int(0, most)); };
  for (int shape = 0; shape < 16; ++shape) {
    RandomJob job = JobA(static_cast<BaseFormat>(rng.Int(0, 2)));
    job.seed = static_cast<uint64_t>(rng.Int(1, 1000));
    job.longest = 8 + count(52);
    job.batch_size = 1 + count(7);
    job.r = 1 + count(19);
    job.dropout = rng.Chance(0.5) ? 0.1 : 0;
    job.layers = rng.Int(3, 9);
    job.targets.clear();
    for (const Module m : JobA().targets) {
      if (rng.Chance(0.5)) job.targets.push_back(m);
    }
    if (job.targets.empty()) job.targets = {Module::kDown};
    Placement p;
    p.slots = 2 + count(job.layers - 2);
    p.resident_layers = p.slots == job.layers ? p.slots : count(p.slots - 2);
    p.head_resident = rng.Chance(0.3);
    p.attention = {count(job.layers), count(job.layers)};
    p.mlp = {count(job.layers), count(job.layers)};
    p.boundaries_host = rng.Chance(0.5);
    p.optimizer_host = rng.Chance(0.5);
    SCOPED_TRACE(PlacementText(p));
    Engine e = OpenJobs({job});
    RunSteps(*e.trainer, job.id, 1, 2, p, rng.Chance(0.5) ? 1 : -1);
  }
}

TEST_F(SameBitsTest, LaidOutAnewInEveryPass) {
  SameBitsOptions options;
  options.always_relayout = true;
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), Least(), 1, options)));
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), PlaceBy("host optimizer=host"), 1, options)));
}

// Buffers that were never written before they are read would show.
TEST_F(SameBitsTest, PoisonedArena) {
  SameBitsOptions options;
  options.poison_arena = true;
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), Least(), 1, options)));
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), Place(2, Retention::kKeep), -1, options)));
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), PlaceBy("host optimizer=host"), -1, options)));
  const char* mixed = "slots=3 attention=device:2+host:4 mlp=device:1+host:3 boundaries=host";
  EXPECT_TRUE(SameBits(Reference(BaseFormat::kNf4, true),
                       Alone(DeepJob(BaseFormat::kNf4), PlaceBy(mixed), -1, options)));
}

TEST_F(SameBitsTest, TwoJobsOfDifferentRankInOnePass) {
  const AdapterSnapshot b_alone = Alone(JobB(), Least());
  for (const bool a_first : {true, false}) {
    Engine e = OpenJobs({JobA(), JobB()});
    for (int64_t step = 1; step <= kSameBitsSteps; ++step) {
      PassRequest request;
      request.placement = Place(3, step % 2 == 0 ? Retention::kKeep : Retention::kRecompute);
      request.items = {{"a", step, 0, -1, false}, {"b", step, 0, -1, false}};
      if (!a_first) std::swap(request.items[0], request.items[1]);
      const auto result = e.trainer->RunPass(request);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->steps.size(), 2u);
      EXPECT_EQ(result->arena_planned_bytes, result->arena_measured_bytes);
    }
    EXPECT_TRUE(SameBits(Reference(), Snapshot(*e.trainer, "a")));
    EXPECT_TRUE(SameBits(b_alone, Snapshot(*e.trainer, "b")));
  }
}

// A co-tenant comes into the middle of a step and goes: the half-accumulated gradient moves.
TEST_F(SameBitsTest, CoTenantInTheMiddleOfAStep) {
  Engine e = OpenJobs({JobA(), JobB()});
  for (int64_t step = 1; step <= kSameBitsSteps; ++step) {
    for (const WorkRequest& work :
         {WorkRequest{"a", step, 0, 1, false}, WorkRequest{"b", step, 0, -1, false},
          WorkRequest{"a", step, 1, -1, false}}) {
      const auto result = e.trainer->RunPass({{work}, Least()});
      ASSERT_TRUE(result.ok()) << result.status();
    }
  }
  EXPECT_TRUE(SameBits(Reference(), Snapshot(*e.trainer, "a")));
}

TEST_F(SameBitsTest, ReopenedFromTheMirrorInMidRun) {
  for (const bool mid_step : {false, true}) {
    testing::TempDir dir(testing::TempDir::kInMemory);
    SameBitsOptions options;
    options.mirror_dir = dir / "mirror";
    {
      Engine e = OpenJobs({JobA()}, options);
      RunSteps(*e.trainer, "a", 1, 4, PlaceBy("keep optimizer=host"));
      // A worker that dies in the middle of step 5: its first micro-batch is lost.
      if (mid_step) {
        ASSERT_TRUE(e.trainer->RunPass({{{"a", 5, 0, 1, false}}, Least()}).ok());
      }
    }
    MachineProfile profile;
    Engine e = MakeSameBitsEngine(TinyBase(), options, &profile);
    JobSetup setup = MakeJob(JobA(), profile);
    setup.mirror_dir = options.mirror_dir;
    const auto opened = e.trainer->OpenJob(std::move(setup));
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(opened->from_mirror);
    EXPECT_EQ(opened->steps_done, 4);
    EXPECT_EQ(opened->steps_total, kSameBitsSteps);
    ASSERT_TRUE(opened->last_step.has_value());
    EXPECT_EQ(opened->last_step->step, 4);
    EXPECT_GT(opened->last_step->loss, 0);
    RunSteps(*e.trainer, "a", 5, kSameBitsSteps, Place(3, Retention::kKeep));
    EXPECT_TRUE(SameBits(Reference(), Snapshot(*e.trainer, "a")));
  }
}

}  // namespace
}  // namespace soup::engine
