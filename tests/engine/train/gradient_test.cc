// Gradients against finite differences of the loss, tensor by tensor, with dropout and rslora. (The
// golden data check them without dropout, against autograd in float64.)
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/train/adapter.h"
#include "engine/train/peft_export.h"
#include "tests/engine/train/trainer_fixture.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

RandomJob OneStepJob(double dropout) {
  RandomJob job;
  job.records = 6;
  job.batch_size = 6;
  job.epochs = 1;
  job.r = 3;
  job.alpha = 4;
  job.rslora = true;
  job.dropout = dropout;
  return job;
}

// Loss and gradient of step 1 with these adapter weights.
struct Evaluation {
  double loss = 0;
  std::vector<float> gradients;
};

class Evaluator {
 public:
  Evaluator(const RandomJob& job, Retention retention) : job_(job) {
    Retain(retention, &placement_);
    const auto layout = AdapterLayout::Create(TinyBase().spec, MakeJob(job).shape.lora);
    EXPECT_TRUE(layout.ok());
    layout_ = std::make_unique<AdapterLayout>(*layout);
  }
  const AdapterLayout& layout() const { return *layout_; }

  Evaluation At(const std::vector<float>& weights) {
    PeftConfig config;
    config.base_model_name = "tiny";
    const std::string folder = dir_ / ("adapter" + std::to_string(count_++));
    EXPECT_TRUE(ExportPeftAdapter(RealFileSystem(), folder, *layout_, weights, {}, config).ok());
    JobSetup setup = MakeJob(job_);
    setup.init_adapter_path = folder + "/adapter_model.safetensors";
    Engine e = MakeEngine(TinyBase());
    EXPECT_TRUE(e.trainer->OpenJob(std::move(setup)).ok());
    Evaluation evaluation;
    evaluation.loss = RunStep(*e.trainer, "a", 1, placement_).loss;
    evaluation.gradients = Snapshot(*e.trainer, "a").gradients;
    return evaluation;
  }

 private:
  RandomJob job_;
  Placement placement_;
  std::unique_ptr<AdapterLayout> layout_;
  testing::TempDir dir_{testing::TempDir::kInMemory};
  int count_ = 0;
};

class Gradients : public ::testing::TestWithParam<std::tuple<double, Retention>> {};

TEST_P(Gradients, EqualFiniteDifferences) {
  const auto [dropout, retention] = GetParam();
  Evaluator evaluator(OneStepJob(dropout), retention);
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::vector<float> weights(evaluator.layout().elements());
  for (float& w : weights) w = normal(rng);
  const Evaluation here = evaluator.At(weights);
  for (const AdapterTensor& t : evaluator.layout().tensors()) {
    // Along the gradient itself the slope is its norm: the largest there is to measure.
    double norm = 0;
    for (int64_t i = 0; i < t.elements(); ++i) {
      norm += std::pow(static_cast<double>(here.gradients[t.offset + i]), 2);
    }
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 0) << t.name;
    const double step = std::min(0.05, 0.01 / norm);  // moves the loss by about 0.01
    double loss[2];
    for (const int side : {0, 1}) {
      std::vector<float> moved = weights;
      for (int64_t i = 0; i < t.elements(); ++i) {
        const double direction = here.gradients[t.offset + i] / norm;
        moved[t.offset + i] += static_cast<float>((side == 0 ? -step : step) * direction);
      }
      loss[side] = evaluator.At(moved).loss;
    }
    EXPECT_NEAR((loss[1] - loss[0]) / (2 * step) / norm, 1.0, 0.02) << t.name;
  }
}
INSTANTIATE_TEST_SUITE_P(All, Gradients,
                         ::testing::Combine(::testing::Values(0.0, 0.25),
                                            ::testing::Values(Retention::kRecompute,
                                                              Retention::kKeep)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) > 0 ? "dropout_" : "plain_") +
                                  RetentionName(std::get<1>(info.param));
                         });

// The mask depends on the step's number, and is not the identity.
TEST(Dropout, ChangesTheLoss) {
  std::vector<float> weights;
  Evaluator plain(OneStepJob(0), Retention::kRecompute);
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  weights.resize(plain.layout().elements());
  for (float& w : weights) w = normal(rng);
  Evaluator dropped(OneStepJob(0.25), Retention::kRecompute);
  EXPECT_NE(plain.At(weights).loss, dropped.At(weights).loss);
}

}  // namespace
}  // namespace soup::engine
