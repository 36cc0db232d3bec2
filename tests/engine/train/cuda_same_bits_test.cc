// Contract 2 of the design on the CUDA backend: one adapter to the bit, whatever the placement,
// co-tenants, cuts, relayouts, unpinned host memory, what the arena held before, and restarts.
// Without a GPU the tests are reported as skipped; SOUP_REQUIRE_GPU=1 makes that a failure.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/cuda_backend.h"
#include "tests/engine/train/trainer_fixture.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

constexpr int64_t kSteps = 8;

Placement Place(int32_t slots, Retention retention, int32_t resident = 0,
                bool head_resident = false) {
  Placement p;
  p.slots = slots;
  p.resident_layers = resident;
  Retain(retention, &p);
  p.head_resident = head_resident;
  return p;
}

const Placement kLeast = Place(2, Retention::kRecompute);

RandomJob JobA(BaseFormat format = BaseFormat::kBf16) {
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

class CudaSameBits : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<CudaBackend> made = MakeCudaBackend();
    if (made.ok()) return;
    const char* required = std::getenv("SOUP_REQUIRE_GPU");
    if (required != nullptr && std::strcmp(required, "1") == 0) FAIL() << made.status();
    GTEST_SKIP() << made.status();
  }

  // A fresh backend and trainer with the jobs open.
  Engine Open(const std::vector<RandomJob>& jobs, CudaBackendOptions backend = {},
              const TrainerOptions& options = {}, const std::string& mirror = "") {
    Engine engine;
    // Without a profile file each backend would time for itself, and the fastest may differ.
    backend.heuristic_gemms = backend.gemm_profile_path.empty();
    absl::StatusOr<CudaBackend> cuda = MakeCudaBackend(backend);
    EXPECT_TRUE(cuda.ok()) << cuda.status();
    engine.backend = std::move(cuda->backend);
    auto trainer = Trainer::Create(engine.backend.get(), TinyBase(jobs[0].format), options);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    engine.trainer = *std::move(trainer);
    for (const RandomJob& job : jobs) {
      JobSetup setup = MakeJob(job, cuda->profile);
      setup.mirror_dir = mirror;
      const auto opened = engine.trainer->OpenJob(std::move(setup));
      EXPECT_TRUE(opened.ok()) << opened.status();
      if (opened.ok()) gemms_tuned_ += opened->gemms_tuned;
    }
    return engine;
  }
  AdapterSnapshot Alone(const RandomJob& job, const Placement& placement,
                        int32_t micro_batches = -1, const CudaBackendOptions& backend = {},
                        const TrainerOptions& options = {}) {
    Engine e = Open({job}, backend, options);
    RunSteps(*e.trainer, job.id, 1, kSteps, placement, micro_batches);
    return Snapshot(*e.trainer, job.id);
  }

  int64_t gemms_tuned_ = 0;  // by all that were opened
};

// Timed once, then kept: no choice is made twice, whatever runs between, and a job that opens
// beside another one has the bits that it has alone.
TEST_F(CudaSameBits, TunedProductsAreKept) {
  const testing::TempDir dir;
  CudaBackendOptions tuned;
  tuned.gemm_profile_path = dir.path() + "/gemms";
  const AdapterSnapshot reference = Alone(JobA(BaseFormat::kNf4), kLeast, -1, tuned);
  EXPECT_GT(gemms_tuned_, 0);
  gemms_tuned_ = 0;
  for (const Placement& p : {kLeast, Place(3, Retention::kKeep, 3, true)}) {
    EXPECT_TRUE(SameBits(reference, Alone(JobA(BaseFormat::kNf4), p, 1, tuned)));
  }
  EXPECT_EQ(gemms_tuned_, 0);
  RandomJob b = JobB();
  b.format = BaseFormat::kNf4;
  Engine e = Open({JobA(BaseFormat::kNf4)}, tuned);
  RunSteps(*e.trainer, "a", 1, 3, kLeast);
  // Room for the operands of what b needs is made in the midst of a's run.
  absl::StatusOr<CudaBackend> profile = MakeCudaBackend(tuned);
  ASSERT_TRUE(profile.ok()) << profile.status();
  const auto opened = e.trainer->OpenJob(MakeJob(b, profile->profile));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_GT(opened->gemms_tuned, 0);
  RunSteps(*e.trainer, "a", 4, kSteps, kLeast);
  EXPECT_TRUE(SameBits(reference, Snapshot(*e.trainer, "a")));
}

TEST_F(CudaSameBits, PlacementsCutsAndRuns) {
  for (const BaseFormat format :
       {BaseFormat::kBf16, BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    SCOPED_TRACE(BaseFormatName(format));
    const AdapterSnapshot reference = Alone(JobA(format), kLeast);
    EXPECT_EQ(reference.optimizer_steps, kSteps);
    for (const Placement& p :
         {kLeast, Place(2, Retention::kKeep), Place(3, Retention::kRecompute, 1),
          Place(3, Retention::kKeep, 3, true), Place(3, Retention::kRecompute, 2, true)}) {
      EXPECT_TRUE(SameBits(reference, Alone(JobA(format), p)))
          << p.slots << " slots, " << p.resident_layers << " resident, " << RetentionText(p);
    }
    EXPECT_TRUE(SameBits(reference, Alone(JobA(format), kLeast, 1)));
  }
  RandomJob other = JobA();
  other.seed = 3;
  EXPECT_FALSE(SameBits(Alone(JobA(), kLeast), Alone(other, kLeast)));  // the comparison can fail
}

TEST_F(CudaSameBits, RelayoutPoisonAndPageableMemory) {
  const AdapterSnapshot reference = Alone(JobA(), kLeast);
  TrainerOptions relayout;
  relayout.always_relayout = true;
  EXPECT_TRUE(SameBits(reference, Alone(JobA(), kLeast, 1, {}, relayout)));
  CudaBackendOptions poison;
  poison.poison_arena = true;
  EXPECT_TRUE(SameBits(reference, Alone(JobA(), kLeast, 1, poison)));
  EXPECT_TRUE(SameBits(reference, Alone(JobA(), Place(2, Retention::kKeep), -1, poison)));
  CudaBackendOptions pageable;
  pageable.pin_host_memory = false;
  EXPECT_TRUE(SameBits(reference, Alone(JobA(), kLeast, -1, pageable)));
}

TEST_F(CudaSameBits, TwoJobsOfDifferentRankInOnePass) {
  const AdapterSnapshot a = Alone(JobA(), kLeast), b = Alone(JobB(), kLeast);
  for (const bool a_first : {true, false}) {
    Engine e = Open({JobA(), JobB()});
    for (int64_t step = 1; step <= kSteps; ++step) {
      PassRequest request;
      request.placement = Place(3, step % 2 == 0 ? Retention::kKeep : Retention::kRecompute);
      request.items = {{"a", step, 0, -1, false}, {"b", step, 0, -1, false}};
      if (!a_first) std::swap(request.items[0], request.items[1]);
      const auto result = e.trainer->RunPass(request);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->arena_planned_bytes, result->arena_measured_bytes);
    }
    EXPECT_TRUE(SameBits(a, Snapshot(*e.trainer, "a")));
    EXPECT_TRUE(SameBits(b, Snapshot(*e.trainer, "b")));
  }
}

TEST_F(CudaSameBits, ReopenedFromTheMirrorInMidStep) {
  const AdapterSnapshot reference = Alone(JobA(), kLeast);
  testing::TempDir dir(testing::TempDir::kInMemory);
  {
    Engine e = Open({JobA()}, {}, {}, dir / "mirror");
    RunSteps(*e.trainer, "a", 1, 4, kLeast);
    ASSERT_TRUE(e.trainer->RunPass({{{"a", 5, 0, 1, false}}, kLeast}).ok());  // lost
  }
  Engine e = Open({JobA()}, {}, {}, dir / "mirror");
  RunSteps(*e.trainer, "a", 5, kSteps, Place(3, Retention::kKeep));
  EXPECT_TRUE(SameBits(reference, Snapshot(*e.trainer, "a")));
}

}  // namespace
}  // namespace soup::engine
