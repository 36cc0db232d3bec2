// Sequences that an attention library takes, through the whole engine on a synthetic base: one
// adapter to the bit whatever the placement, the cut and the run, plan = arena, close to what our
// own kernels give, and refused where the library is another. Skipped without a GPU or cuDNN;
// SOUP_REQUIRE_GPU=1 makes the first a failure.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/synthetic_base.h"
#include "engine/data/dataset.h"
#include "engine/device/cuda_backend.h"
#include "engine/train/trainer.h"
#include "kernels/philox.h"

namespace soup::bench {
namespace {

using namespace engine;  // NOLINT: a test of the engine

constexpr int64_t kSteps = 2;

ModelSpec Model() {
  ModelSpec m;
  m.family = "llama";
  m.hidden = 512;
  m.intermediate = 1024;
  m.layers = 3;
  m.heads = 16;
  m.kv_heads = 4;
  m.head_dim = 128;
  m.vocab = 1024;
  m.max_position = 8192;
  return m;
}

// A sequence that fills its class, one that does not, one for our own kernel, in two micro-batches.
std::shared_ptr<const PreparedDataset> Dataset() {
  const kernels::PhiloxStream random(3, 0, 0);
  uint64_t draw = 0;
  std::vector<TokenRecord> records;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (const int32_t length : {4096, 7000, 300}) {
      TokenRecord record;
      for (int32_t i = 0; i < length; ++i) {
        record.ids.push_back(static_cast<int32_t>(random.Draw(draw++) % 1024));
      }
      record.supervised.assign(static_cast<size_t>(length), 1);
      records.push_back(std::move(record));
    }
  }
  return PreparedDataset::FromRecords(std::move(records));
}

class LongAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<CudaBackend> made = MakeCudaBackend({.heuristic_gemms = true});
    if (!made.ok()) {
      const char* required = std::getenv("SOUP_REQUIRE_GPU");
      if (required != nullptr && std::strcmp(required, "1") == 0) FAIL() << made.status();
      GTEST_SKIP() << made.status();
    }
    if (made->profile.attention_library.empty()) GTEST_SKIP() << "no cuDNN for this device";
    backend_ = std::move(made->backend);
    profile_ = made->profile;
    auto base = SyntheticBase::Make(Model(), BaseFormat::kBf16, 4);
    ASSERT_TRUE(base.ok()) << base.status();
    base_ = *std::move(base);
  }

  JobSetup Setup(bool own) {
    JobSetup setup;
    setup.job_id = "long";
    setup.dataset = Dataset();
    setup.shape.model = Model();
    setup.shape.format = BaseFormat::kBf16;
    setup.shape.lora.r = 4;
    setup.shape.lora.targets = {Module::kQ, Module::kK, Module::kV, Module::kO};
    setup.shape.lengths = setup.dataset->TrainLengths();
    setup.shape.max_length = 8192;
    setup.shape.batch.batch_size = 3;
    setup.shape.batch.packing = true;
    setup.shape.precision = Precision::kBf16;  // the library's type
    MachineProfile profile = profile_;
    if (own) profile.attention_library.clear();
    const auto numeric = MakeNumericPlan(setup.shape, profile);
    EXPECT_TRUE(numeric.ok()) << numeric.status();
    setup.numeric = *numeric;
    EXPECT_EQ(setup.numeric.attention.library.empty(), own);
    EXPECT_EQ(setup.numeric.attention.backward.holds(7000), !own);
    return setup;
  }

  AdapterSnapshot Run(const std::string& placement, int32_t micro_batches, bool own = false) {
    AdapterSnapshot none;
    auto trainer = Trainer::Create(backend_.get(), base_->base());
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    const auto opened = (*trainer)->OpenJob(Setup(own));
    EXPECT_TRUE(opened.ok()) << opened.status();
    const absl::StatusOr<Placement> parsed = ParsePlacement(placement);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (!opened.ok() || !parsed.ok()) return none;
    for (int64_t step = 1; step <= kSteps; ++step) {
      for (int32_t first = 0;; first += micro_batches) {
        const auto pass =
            (*trainer)->RunPass({{{"long", step, first, micro_batches, false}}, *parsed});
        EXPECT_TRUE(pass.ok()) << pass.status();
        if (!pass.ok()) return none;
        EXPECT_EQ(pass->arena_planned_bytes, pass->arena_measured_bytes);
        if (micro_batches < 0 || !pass->steps.empty()) break;
      }
    }
    absl::StatusOr<AdapterSnapshot> state = (*trainer)->AdapterState("long");
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? *std::move(state) : none;
  }

  std::unique_ptr<Backend> backend_;
  MachineProfile profile_;
  std::unique_ptr<SyntheticBase> base_;
};

TEST_F(LongAttention, SameBitsWhateverThePlacementAndTheCut) {
  const std::string recompute = "slots=2";
  const AdapterSnapshot reference = Run(recompute, -1);
  ASSERT_FALSE(reference.weights.empty());
  for (const std::string& placement :
       {recompute, std::string("slots=3 resident=3 head=resident attention=device:3 mlp=device:3"),
        std::string("slots=2 attention=device:1+host:1 mlp=host:1")}) {
    for (const int32_t micro_batches : {-1, 1}) {
      const AdapterSnapshot run = Run(placement, micro_batches);
      EXPECT_EQ(reference.weights, run.weights) << placement << ", " << micro_batches;
      EXPECT_EQ(reference.first_moment, run.first_moment) << placement << ", " << micro_batches;
    }
  }
}

TEST_F(LongAttention, CloseToOurOwnKernels) {
  const AdapterSnapshot library = Run("slots=2", -1), own = Run("slots=2", -1, /*own=*/true);
  ASSERT_EQ(library.gradients.size(), own.gradients.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < own.gradients.size(); ++i) {
    difference += std::pow(library.gradients[i] - own.gradients[i], 2);
    norm += std::pow(own.gradients[i], 2);
  }
  EXPECT_LE(std::sqrt(difference / norm), 3e-2);
  EXPECT_NE(library.weights, own.weights);  // it was another kernel
}

TEST_F(LongAttention, AnotherLibraryIsRefused) {
  auto trainer = Trainer::Create(backend_.get(), base_->base());
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  JobSetup setup = Setup(false);
  setup.numeric.attention.library = "cudnn-8.0.0";
  const auto opened = (*trainer)->OpenJob(std::move(setup));
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
}

}  // namespace
}  // namespace soup::bench
