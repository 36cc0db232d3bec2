#include "tests/engine/train/trainer_fixture.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "tests/engine/train/golden_case.h"
#include "tests/support/test_data.h"

namespace soup::engine {
namespace {

TokenRecord RandomRecord(std::mt19937& rng, const RandomJob& job, int64_t vocab) {
  TokenRecord record;
  const int32_t length = 4 + static_cast<int32_t>(rng() % (job.longest - 3));
  const int32_t prompt = 1 + static_cast<int32_t>(rng() % 3);
  for (int32_t i = 0; i < length; ++i) {
    record.ids.push_back(job.first_token + static_cast<int32_t>(rng() % (vocab - job.first_token)));
    record.supervised.push_back(i >= prompt);
  }
  return record;
}

template <typename T>
bool SameBytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

const cache::MemoryBase& TinyMemory(BaseFormat format, const std::string& model) {
  using Key = std::pair<BaseFormat, std::string>;
  static auto& bases = *new std::map<Key, std::unique_ptr<cache::MemoryBase>>();
  std::unique_ptr<cache::MemoryBase>& base = bases[{format, model}];
  if (base == nullptr) {
    auto made = cache::MemoryBase::Assemble(TestDataPath("golden/" + model), {}, format);
    if (!made.ok()) ADD_FAILURE() << made.status();
    base = std::make_unique<cache::MemoryBase>(*std::move(made));
  }
  return *base;
}

ModelBase TinyBase(BaseFormat format, int64_t layers, const std::string& model) {
  ModelBase base = BorrowBase(TinyMemory(format, model));
  if (layers <= 0) return base;
  std::vector<absl::Span<const std::byte>> slabs;
  for (int64_t l = 0; l < layers; ++l) slabs.push_back(base.slabs[l % base.spec.layers]);
  slabs.push_back(base.slabs.back());
  base.slabs = std::move(slabs);
  base.spec.layers = layers;
  return base;
}

JobSetup MakeJob(const RandomJob& job, const MachineProfile& profile) {
  ModelSpec spec = TinyMemory(BaseFormat::kBf16, job.model).spec();
  if (job.layers > 0) spec.layers = job.layers;
  std::mt19937 rng(static_cast<uint32_t>(job.seed) * 7919u + 13u);
  std::vector<TokenRecord> train, validation;
  for (int i = 0; i < job.records; ++i) train.push_back(RandomRecord(rng, job, spec.vocab));
  for (int i = 0; i < job.validation_records; ++i) {
    validation.push_back(RandomRecord(rng, job, spec.vocab));
  }
  JobSetup setup;
  setup.job_id = job.id;
  setup.dataset = PreparedDataset::FromRecords(train, validation);
  setup.shape.model = spec;
  setup.shape.format = job.format;
  setup.shape.lora.r = job.r;
  setup.shape.lora.dropout = job.dropout > 0;
  setup.shape.lora.targets = job.targets;
  setup.shape.lengths = setup.dataset->TrainLengths();
  setup.shape.validation_lengths = setup.dataset->ValidationLengths();
  setup.shape.batch.epochs = job.epochs;
  setup.shape.batch.batch_size = job.batch_size;
  setup.shape.batch.packing = true;
  setup.shape.batch.seed = job.seed;
  setup.lora.alpha = job.alpha;
  setup.lora.dropout = job.dropout;
  setup.lora.rslora = job.rslora;
  setup.training.learning_rate = 1e-2;
  setup.training.weight_decay = 0.01;
  const auto cpu_plan = MakeNumericPlan(setup.shape, CpuProfile());
  EXPECT_TRUE(cpu_plan.ok()) << cpu_plan.status();
  if (profile.backend == "cuda") setup.shape.precision = job.cuda_precision;
  const absl::Status planned = PlanFor(profile, setup);
  EXPECT_TRUE(planned.ok()) << planned;
  setup.numeric.micro_batch_tokens = job.micro_batch_tokens;
  // The same steps on every backend: tests count on their micro-batches.
  if (cpu_plan.ok()) setup.numeric.order_tile = cpu_plan->order_tile;
  return setup;
}

Engine MakeEngine(const ModelBase& base, const CpuBackendOptions& backend,
                  const TrainerOptions& options) {
  Engine engine;
  engine.backend = MakeCpuBackend(backend);
  auto trainer = Trainer::Create(engine.backend.get(), base, options);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  engine.trainer = *std::move(trainer);
  return engine;
}

StepStats RunStep(Trainer& trainer, const std::string& job, int64_t step,
                  const Placement& placement, int32_t micro_batches) {
  // Bounded: no step of these tests has as many micro-batches.
  for (int32_t first = 0; first < 1000; first += micro_batches) {
    PassRequest request;
    request.placement = placement;
    request.items = {{job, step, first, micro_batches, false}};
    absl::StatusOr<PassResult> result = trainer.RunPass(request);
    if (!result.ok() && micro_batches > 1) {
      request.items[0].micro_batches = -1;  // fewer are left
      result = trainer.RunPass(request);
    }
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_TRUE(result->faults.empty());
    EXPECT_GT(result->arena_planned_bytes, 0);
    EXPECT_EQ(result->arena_planned_bytes, result->arena_measured_bytes);
    if (!result->steps.empty()) return result->steps[0];
    if (micro_batches < 0) break;
  }
  ADD_FAILURE() << "step " << step << " of job " << job << " did not end";
  return {};
}

void RunSteps(Trainer& trainer, const std::string& job, int64_t first_step, int64_t last_step,
              const Placement& placement, int32_t micro_batches) {
  for (int64_t step = first_step; step <= last_step; ++step) {
    RunStep(trainer, job, step, placement, micro_batches);
  }
}

AdapterSnapshot Snapshot(Trainer& trainer, const std::string& job) {
  absl::StatusOr<AdapterSnapshot> snapshot = trainer.AdapterState(job);
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  return snapshot.ok() ? *std::move(snapshot) : AdapterSnapshot();
}

bool SameBits(const AdapterSnapshot& a, const AdapterSnapshot& b, bool gradients) {
  return !a.weights.empty() && a.steps_done == b.steps_done &&
         a.optimizer_steps == b.optimizer_steps && SameBytes(a.weights, b.weights) &&
         SameBytes(a.first_moment, b.first_moment) && SameBytes(a.second_moment, b.second_moment) &&
         (!gradients || SameBytes(a.gradients, b.gradients));
}

}  // namespace soup::engine
