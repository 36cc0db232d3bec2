// Faults that other trainers had (tests/cases), at the engine: data prepared from the case's files,
// trained on the byte-token base. Losses were computed in float64; B starts at zero, so a first
// step's loss is the base's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/data/prepare.h"
#include "tests/engine/train/golden_case.h"
#include "tests/engine/train/trainer_fixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::engine {
namespace {

const std::string kCases = SOUP_TEST_DATA_DIR "/cases/";
const std::string kBase = kCases + "_base/bytes";
constexpr double kTolerance = 2e-4;

nlohmann::json Expected(const std::string& name) {
  return nlohmann::json::parse(testing::ReadWhole(kCases + name + "/expected.json"));
}

struct CaseJob {
  std::string base_folder = kBase;
  std::string data;
  int32_t max_length = 512;
  bool packing = false;
  int32_t batch_size = 4;
  double epochs = 1;
  double learning_rate = 1e-9;
  int32_t r = 4;
  double alpha = 8;
  bool rslora = false;
  std::string init_adapter_path;
};

// A base, a prepared dataset and an open job "case".
class CaseRun {
 public:
  explicit CaseRun(const CaseJob& job) {
    auto memory = cache::MemoryBase::Assemble(job.base_folder, {}, BaseFormat::kBf16);
    if (!memory.ok()) {
      ADD_FAILURE() << memory.status();
      return;
    }
    memory_ = std::make_unique<cache::MemoryBase>(*std::move(memory));
    const ModelBase base = BorrowBase(*memory_);
    JobSetup setup;
    setup.job_id = "case";
    setup.dataset = Prepare(job);
    if (setup.dataset == nullptr) return;
    setup.shape.model = base.spec;
    setup.shape.lora.r = job.r;
    setup.shape.lora.targets = AdaptableModules(setup.shape.model);
    setup.shape.lengths = setup.dataset->TrainLengths();
    setup.shape.batch.batch_size = job.batch_size;
    setup.shape.batch.epochs = job.epochs;
    setup.shape.batch.packing = job.packing;
    setup.shape.batch.seed = 42;
    setup.lora.alpha = job.alpha;
    setup.lora.rslora = job.rslora;
    setup.training.learning_rate = job.learning_rate;
    setup.training.scheduler = LrScheduler::kConstant;
    setup.training.warmup_ratio = 0;
    setup.init_adapter_path = job.init_adapter_path;
    const absl::Status planned = PlanForCpu(setup);
    EXPECT_TRUE(planned.ok()) << planned;
    engine_ = MakeEngine(base);
    const auto opened = engine_.trainer->OpenJob(std::move(setup));
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) steps_ = opened->steps_total;
  }

  int64_t steps() const { return steps_; }
  StepStats Step(int64_t step) { return RunStep(*engine_.trainer, "case", step, Placement()); }
  std::vector<float> Weights() { return Snapshot(*engine_.trainer, "case").weights; }
  Trainer& trainer() { return *engine_.trainer; }

 private:
  std::shared_ptr<const PreparedDataset> Prepare(const CaseJob& job) {
    PrepareOptions options;
    options.tokenizer_dir = kBase;
    options.train = {{job.data}};
    options.max_length = job.max_length;
    options.output_path = dir_ / "dataset.sds";
    const auto report = PrepareDataset(options);
    EXPECT_TRUE(report.ok()) << report.status();
    auto dataset = PreparedDataset::Open(options.output_path);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }

  testing::TempDir dir_{testing::TempDir::kInMemory};
  std::unique_ptr<cache::MemoryBase> memory_;
  Engine engine_;
  int64_t steps_ = 0;
};

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST(Case11, PackedRowsDoNotSeeEachOther) {
  const nlohmann::json expected = Expected("11-pack-leak");
  const auto run = [&](bool packing, const std::string& data) {
    CaseJob job;
    job.data = data;
    job.max_length = 128;
    job.packing = packing;
    job.epochs = 8;
    job.learning_rate = 1e-3;
    CaseRun run(job);
    EXPECT_EQ(run.steps(), 8);
    const StepStats first = run.Step(1);
    EXPECT_NEAR(first.loss, expected.at("loss").get<double>(), kTolerance);
    EXPECT_EQ(first.supervised_tokens, expected.at("supervised").get<int64_t>());
    for (int64_t step = 2; step <= 8; ++step) run.Step(step);
    return std::make_pair(first.loss, run.Weights());
  };
  const std::string data = kCases + "11-pack-leak/train.jsonl";
  const auto [packed_loss, packed] = run(true, data);
  const auto [plain_loss, plain] = run(false, data);
  EXPECT_NEAR(packed_loss, plain_loss, 1e-5);
  EXPECT_LT(RelativeDistance(packed, plain), 1e-4);

  // The order in the pack does not matter.
  testing::TempDir dir(testing::TempDir::kInMemory);
  std::vector<std::string> lines;
  std::string text = testing::ReadWhole(data), line;
  for (const char c : text) {
    line.push_back(c);
    if (c == '\n') lines.push_back(std::exchange(line, ""));
  }
  if (!line.empty()) lines.push_back(line + "\n");
  std::reverse(lines.begin(), lines.end());
  std::string reversed;
  for (const std::string& l : lines) reversed += l;
  testing::WriteWhole(dir / "reversed.jsonl", reversed);
  EXPECT_NEAR(run(true, dir / "reversed.jsonl").first, packed_loss, 1e-5);
}

// The next of its kind: over steps that share an epoch, packed and plain runs have the same records
// in each step, so their losses and gradients agree to rounding, and so do the adapters.
TEST(PackedAndPlain, AgreeStepByStep) {
  testing::TempDir dir(testing::TempDir::kInMemory);
  std::string rows;
  for (int i = 0; i < 37; ++i) {
    rows += "{\"prompt\":\"row " + std::to_string(i * 7919) + "\",\"completion\":\"" +
            std::string(static_cast<size_t>(1 + (i * 29) % 60), static_cast<char>('a' + i % 26)) +
            "\"}\n";
  }
  testing::WriteWhole(dir / "rows.jsonl", rows);
  const auto run = [&](bool packing) {
    CaseJob job;
    job.data = dir / "rows.jsonl";
    job.packing = packing;
    job.batch_size = 8;
    job.epochs = 2;
    job.learning_rate = 1e-3;
    CaseRun run(job);
    EXPECT_EQ(run.steps(), 10);
    std::vector<StepStats> steps;
    for (int64_t step = 1; step <= run.steps(); ++step) steps.push_back(run.Step(step));
    return std::make_pair(steps, run.Weights());
  };
  const auto [packed, packed_weights] = run(true);
  const auto [plain, plain_weights] = run(false);
  for (size_t i = 0; i < packed.size(); ++i) {
    EXPECT_NEAR(packed[i].loss, plain[i].loss, 1e-5) << "step " << i + 1;
    EXPECT_NEAR(packed[i].grad_norm, plain[i].grad_norm, 1e-4 * plain[i].grad_norm);
    EXPECT_EQ(packed[i].supervised_tokens, plain[i].supervised_tokens);
    EXPECT_EQ(packed[i].tokens, plain[i].tokens);
    EXPECT_EQ(packed[i].padding_tokens, 0);
    EXPECT_LT(packed[i].bucket_tail_tokens, plain[i].bucket_tail_tokens);
  }
  EXPECT_LT(RelativeDistance(packed_weights, plain_weights), 1e-3);
}

TEST(Case13, LossWeighsTokensNotRows) {
  const nlohmann::json expected = Expected("13-token-weighting").at("unequal");
  for (const bool packing : {false, true}) {
    CaseJob job;
    job.data = kCases + "13-token-weighting/unequal.jsonl";
    job.batch_size = 5;
    job.packing = packing;
    const StepStats step = CaseRun(job).Step(1);
    EXPECT_NEAR(step.loss, expected.at("loss").get<double>(), kTolerance);
    EXPECT_EQ(step.supervised_tokens, expected.at("supervised").get<int64_t>());
  }
}

TEST(Case13, ASmallerLastBatchIsDividedByItsOwnTargets) {
  const nlohmann::json expected = Expected("13-token-weighting").at("equal");
  CaseJob job;
  job.data = kCases + "13-token-weighting/equal.jsonl";
  CaseRun run(job);
  ASSERT_EQ(run.steps(), expected.at("steps").get<int64_t>());
  const StepStats first = run.Step(1), second = run.Step(2);
  EXPECT_NEAR(first.loss, expected.at("loss").get<double>(), kTolerance);
  EXPECT_NEAR(second.loss, expected.at("loss").get<double>(), kTolerance);
  EXPECT_NEAR(second.grad_norm, first.grad_norm, 1e-5 * first.grad_norm);
}

TEST(Case21, Llama3RopeIsUsedInEverySpelling) {
  const nlohmann::json expected = Expected("21-llama3-rope");
  for (const char* spelling : {"new", "old", "oldest", "int"}) {
    SCOPED_TRACE(spelling);
    testing::TempDir dir(testing::TempDir::kInMemory);
    std::filesystem::copy(kBase, dir / "base");
    std::filesystem::copy_file(kCases + "21-llama3-rope/over-" + spelling + "/config.json",
                               dir / "base/config.json",
                               std::filesystem::copy_options::overwrite_existing);
    CaseJob job;
    job.base_folder = dir / "base";
    job.data = kCases + "21-llama3-rope/train.jsonl";
    job.batch_size = 1;
    const StepStats step = CaseRun(job).Step(1);
    EXPECT_NEAR(step.loss, expected.at("loss").get<double>(), kTolerance);
    EXPECT_EQ(step.supervised_tokens, expected.at("supervised").get<int64_t>());
  }
}

// What is exported with alpha and use_rslora is what was trained: a reader that applies alpha /
// sqrt(r) (here: an ordinary job whose alpha / r is that number) sees the loss of the next step.
TEST(Case23, ExportedScaleIsTheTrainedScale) {
  CaseJob job;
  job.data = kCases + "13-token-weighting/unequal.jsonl";
  job.batch_size = 5;
  job.epochs = 6;
  job.learning_rate = 5e-3;
  job.r = 8;
  job.alpha = 16;
  job.rslora = true;
  CaseRun trained(job);
  for (int64_t step = 1; step <= 5; ++step) trained.Step(step);
  testing::TempDir dir(testing::TempDir::kInMemory);
  ASSERT_TRUE(trained.trainer().ExportAdapter("case", dir / "adapter", "bytes").ok());
  const nlohmann::json config =
      nlohmann::json::parse(testing::ReadWhole(dir / "adapter/adapter_config.json"));
  EXPECT_EQ(config.at("lora_alpha").get<double>(), 16);
  EXPECT_TRUE(config.at("use_rslora").get<bool>());

  CaseJob reader = job;
  reader.init_adapter_path = dir / "adapter/adapter_model.safetensors";
  reader.rslora = false;
  reader.alpha = 16.0 / std::sqrt(8.0) * 8.0;
  const double sixth = trained.Step(6).loss;
  EXPECT_NEAR(CaseRun(reader).Step(1).loss, sixth, 1e-5);
  reader.alpha = 16.0;  // alpha / r: another loss
  EXPECT_GT(std::abs(CaseRun(reader).Step(1).loss - sixth), 10 * kTolerance);
}

}  // namespace
}  // namespace soup::engine
