// The same bits whatever the placement and the co-tenants, for families whose layers hold what a
// Llama's do not: output norms and head norms, fused projections, experts.
#include <gtest/gtest.h>

#include "engine/model/layer_layout.h"
#include "tests/engine/train/trainer_fixture.h"

namespace soup::engine {
namespace {

constexpr int64_t kSteps = 3;

RandomJob FamilyJob(const std::string& model, BaseFormat format, const std::string& id = "a") {
  RandomJob job;
  job.id = id;
  job.model = model;
  job.format = format;
  job.dropout = 0.1;
  job.targets = AdaptableModules(TinyMemory(format, model).spec());
  return job;
}

AdapterSnapshot StateAfter(const RandomJob& job, const char* placement,
                           int32_t micro_batches = -1) {
  const auto parsed = ParsePlacement(placement);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  TrainerOptions options;
  options.always_relayout = true;
  CpuBackendOptions backend;
  backend.poison_arena = true;  // what is read before it is written shows
  Engine e = MakeEngine(TinyBase(job.format, 0, job.model), backend, options);
  const auto opened = e.trainer->OpenJob(MakeJob(job));
  EXPECT_TRUE(opened.ok()) << opened.status();
  RunSteps(*e.trainer, job.id, 1, kSteps, *parsed, micro_batches);
  return Snapshot(*e.trainer, job.id);
}

struct Model {
  const char* name;
  BaseFormat format;
};
class FamilyBits : public ::testing::TestWithParam<Model> {};

TEST_P(FamilyBits, DoNotDependOnThePlacement) {
  const RandomJob job = FamilyJob(GetParam().name, GetParam().format);
  const AdapterSnapshot reference = StateAfter(job, "slots=2");
  EXPECT_EQ(reference.optimizer_steps, kSteps);
  for (const char* placement :
       {"slots=all attention=device:all mlp=device:all head=resident",
        "slots=2 attention=host:2 mlp=device:1+host:1 boundaries=host",
        "slots=3 resident=1 mlp=device:all optimizer=host", "slots=2 attention=device:all"}) {
    EXPECT_TRUE(SameBits(reference, StateAfter(job, placement))) << placement;
  }
  EXPECT_TRUE(SameBits(reference, StateAfter(job, "slots=2", 1))) << "one micro-batch a pass";
  RandomJob other = job;
  other.seed = 9;
  EXPECT_FALSE(SameBits(reference, StateAfter(other, "slots=2")));  // the comparison can fail
}

TEST_P(FamilyBits, DoNotDependOnTheNeighbour) {
  const RandomJob job = FamilyJob(GetParam().name, GetParam().format);
  RandomJob neighbour = FamilyJob(GetParam().name, GetParam().format, "b");
  neighbour.seed = 5;
  neighbour.r = 3;
  neighbour.longest = 45;
  Engine e = MakeEngine(TinyBase(job.format, 0, job.model));
  for (const RandomJob& j : {neighbour, job}) {
    const auto opened = e.trainer->OpenJob(MakeJob(j));
    ASSERT_TRUE(opened.ok()) << opened.status();
  }
  for (int64_t step = 1; step <= kSteps; ++step) {
    PassRequest request;
    request.items = {{"b", step, 0, -1, false}, {"a", step, 0, -1, false}};
    const auto result = e.trainer->RunPass(request);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->faults.empty());
    EXPECT_EQ(result->arena_planned_bytes, result->arena_measured_bytes);
  }
  EXPECT_TRUE(SameBits(StateAfter(job, "slots=2"), Snapshot(*e.trainer, "a")));
}

INSTANTIATE_TEST_SUITE_P(All, FamilyBits,
                         ::testing::Values(Model{"qwen3_moe", BaseFormat::kBf16},
                                           Model{"mixtral", BaseFormat::kNf4DoubleQuant},
                                           Model{"gemma3", BaseFormat::kNf4},
                                           Model{"phi3", BaseFormat::kNf4DoubleQuant},
                                           Model{"qwen2", BaseFormat::kNf4}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace soup::engine
