// Contract 2 of the design on the CUDA backend (same_bits.h), and what only it can show.
// Without a GPU the tests are reported as skipped; SOUP_REQUIRE_GPU=1 makes that a failure.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/cuda_backend.h"
#include "tests/engine/train/same_bits.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

Engine MakeCudaEngine(const ModelBase& base, CudaBackendOptions backend, TrainerOptions options,
                      MachineProfile* profile) {
  Engine engine;
  // Without a profile file each backend would time for itself, and the fastest may differ.
  backend.heuristic_gemms = backend.gemm_profile_path.empty();
  absl::StatusOr<CudaBackend> cuda = MakeCudaBackend(backend);
  EXPECT_TRUE(cuda.ok()) << cuda.status();
  *profile = cuda->profile;
  engine.backend = std::move(cuda->backend);
  auto trainer = Trainer::Create(engine.backend.get(), base, options);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  engine.trainer = *std::move(trainer);
  return engine;
}

}  // namespace

Engine MakeSameBitsEngine(const ModelBase& base, const SameBitsOptions& options,
                          MachineProfile* profile) {
  CudaBackendOptions backend;
  backend.poison_arena = options.poison_arena;
  TrainerOptions trainer;
  trainer.always_relayout = options.always_relayout;
  return MakeCudaEngine(base, backend, trainer, profile);
}

std::string NoDeviceForSameBits() {
  static const absl::Status made = MakeCudaBackend().status();
  return made.ok() ? "" : made.ToString();
}

namespace {

class CudaSameBits : public SameBitsTest {
 protected:
  // The state after kSameBitsSteps on a backend with these options.
  AdapterSnapshot AloneOn(const CudaBackendOptions& backend, const RandomJob& job,
                          const Placement& placement, int32_t micro_batches = -1) {
    MachineProfile profile;
    Engine e = MakeCudaEngine(TinyBase(job.format, job.layers, job.model), backend, {}, &profile);
    const auto opened = e.trainer->OpenJob(MakeJob(job, profile));
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) gemms_tuned_ += opened->gemms_tuned;
    RunSteps(*e.trainer, job.id, 1, kSameBitsSteps, placement, micro_batches);
    return Snapshot(*e.trainer, job.id);
  }

  int64_t gemms_tuned_ = 0;  // by all that were opened
};

TEST_F(CudaSameBits, PageableMemory) {
  CudaBackendOptions pageable;
  pageable.pin_host_memory = false;
  const AdapterSnapshot reference = Alone(JobA(), Place(2, Retention::kRecompute));
  for (const char* text : {"recompute", "host optimizer=host"}) {
    EXPECT_TRUE(SameBits(reference, AloneOn(pageable, JobA(), PlaceBy(text)))) << text;
  }
}

// Kernels that have the gate within the products beside it, at any number of rows: where adapters
// of gate, up or down stand between, and where gate and up are made again, they run in part only.
struct GateCase {
  const char* name;
  const char* model;
  std::vector<Module> targets;
};
class CudaGates : public CudaSameBits, public ::testing::WithParamInterface<GateCase> {};

TEST_P(CudaGates, WithinProductsGiveTheSameBitsInEveryPlacement) {
  CudaBackendOptions fused, apart;
  fused.fused_gate_rows = 1;
  fused.poison_arena = true;
  apart.fused_gate_rows = 0;
  if (MakeCudaBackend(fused)->backend->fused_gate_rows() == 0) {
    GTEST_SKIP() << "this card has no such kernels";
  }
  RandomJob job = JobA(BaseFormat::kNf4);
  job.model = GetParam().model;
  job.targets = GetParam().targets;
  const auto on = [&](const CudaBackendOptions& backend, const std::string& placement,
                      int32_t micro_batches = -1) {
    return AloneOn(backend, job, PlaceBy(placement), micro_batches);
  };
  const AdapterSnapshot reference = on(fused, "slots=2 recompute");
  for (const char* text :
       {"slots=2 keep", "slots=all resident=all head=resident host boundaries=host",
        "slots=3 attention=device:1+host:1 mlp=host:1", "mlp=device:2"}) {
    EXPECT_TRUE(SameBits(reference, on(fused, text))) << text;
  }
  EXPECT_TRUE(SameBits(reference, on(fused, "slots=2 keep", 1)));
  // And what they compute is what is computed without them, to a rounding of bf16 here and there.
  const AdapterSnapshot without = on(apart, "slots=2 keep");
  ASSERT_EQ(without.weights.size(), reference.weights.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < without.weights.size(); ++i) {
    difference += std::pow(without.weights[i] - reference.weights[i], 2);
    size += std::pow(without.weights[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / size), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Each, CudaGates,
                         ::testing::Values(GateCase{"attention",
                                                    "llama",
                                                    {Module::kQ, Module::kK, Module::kV,
                                                     Module::kO}},
                                           GateCase{"gate", "llama", {Module::kQ, Module::kGate}},
                                           GateCase{"down", "qwen2", {Module::kV, Module::kDown}},
                                           GateCase{"gelu", "gemma3", {Module::kQ, Module::kO}},
                                           GateCase{"gelu_down", "gemma2", {Module::kDown}}),
                         [](const auto& info) { return std::string(info.param.name); });

// Timed once, then kept: no choice is made twice, whatever runs between, and a job that opens
// beside another one has the bits that it has alone.
TEST_F(CudaSameBits, TunedProductsAreKept) {
  const testing::TempDir dir;
  CudaBackendOptions tuned;
  tuned.gemm_profile_path = dir.path() + "/gemms";
  const Placement least = Place(2, Retention::kRecompute);
  const AdapterSnapshot reference = AloneOn(tuned, JobA(BaseFormat::kNf4), least);
  EXPECT_GT(gemms_tuned_, 0);
  gemms_tuned_ = 0;
  for (const Placement& p :
       {least, Place(3, Retention::kKeep, 3, true), Place(2, Retention::kHost)}) {
    EXPECT_TRUE(SameBits(reference, AloneOn(tuned, JobA(BaseFormat::kNf4), p, 1)));
  }
  EXPECT_EQ(gemms_tuned_, 0);
  RandomJob b = JobB();
  b.format = BaseFormat::kNf4;
  MachineProfile profile;
  Engine e = MakeCudaEngine(TinyBase(BaseFormat::kNf4), tuned, {}, &profile);
  ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobA(BaseFormat::kNf4), profile)).ok());
  RunSteps(*e.trainer, "a", 1, 3, least);
  // Room for the operands of what b needs is made in the midst of a's run.
  const auto opened = e.trainer->OpenJob(MakeJob(b, profile));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_GT(opened->gemms_tuned, 0);
  RunSteps(*e.trainer, "a", 4, kSameBitsSteps, least);
  EXPECT_TRUE(SameBits(reference, Snapshot(*e.trainer, "a")));
}

// What the other tests do not run: fp32 activations, and experts in either type.
struct PrecisionCase {
  const char* model;
  Precision precision;
};
class Precisions : public SameBitsTest, public ::testing::WithParamInterface<PrecisionCase> {
 protected:
  RandomJob Job() const {
    RandomJob job = JobA(BaseFormat::kNf4);
    job.model = GetParam().model;
    job.cuda_precision = GetParam().precision;
    job.targets = AdaptableModules(TinyMemory(BaseFormat::kBf16, job.model).spec());
    return job;
  }
};

TEST_P(Precisions, GiveTheSameBitsInEveryPlacement) {
  const RandomJob job = Job();
  const AdapterSnapshot reference = Alone(job, Place(2, Retention::kRecompute));
  for (const char* text :
       {"slots=2 keep", "slots=all resident=all head=resident host boundaries=host optimizer=host",
        "slots=3 attention=device:1+host:1 mlp=host:1"}) {
    for (const int32_t micro_batches : {-1, 1}) {
      EXPECT_TRUE(SameBits(reference, Alone(job, PlaceBy(text), micro_batches))) << text;
    }
  }
  // The choice counts.
  RandomJob other = job;
  other.cuda_precision =
      job.cuda_precision == Precision::kBf16 ? Precision::kFp32 : Precision::kBf16;
  EXPECT_FALSE(SameBits(reference, Alone(other, Place(2, Retention::kRecompute))));
}

INSTANTIATE_TEST_SUITE_P(Each, Precisions,
                         ::testing::Values(PrecisionCase{"llama", Precision::kFp32},
                                           PrecisionCase{"qwen2", Precision::kFp32},
                                           PrecisionCase{"gemma3", Precision::kFp32},
                                           PrecisionCase{"phi3", Precision::kFp32},
                                           PrecisionCase{"mixtral", Precision::kBf16},
                                           PrecisionCase{"qwen3_moe", Precision::kBf16},
                                           PrecisionCase{"qwen3_moe", Precision::kFp32}),
                         [](const auto& info) {
                           return std::string(info.param.model) + "_" +
                                  PrecisionName(info.param.precision);
                         });

// On one base, in one engine: their passes alternate, and none holds both.
TEST_F(CudaSameBits, JobsOfDifferentPrecisionTakeTurns) {
  RandomJob narrow = JobA(), wide = JobB();
  wide.cuda_precision = Precision::kFp32;
  const Placement least = Place(2, Retention::kRecompute);
  const AdapterSnapshot narrow_alone = Alone(narrow, least), wide_alone = Alone(wide, least);
  Engine e = OpenJobs({narrow, wide});
  for (int64_t step = 1; step <= kSameBitsSteps; ++step) {
    PassRequest both;
    both.placement = least;
    both.items = {{"a", step, 0, -1, false}, {"b", step, 0, -1, false}};
    EXPECT_EQ(e.trainer->RunPass(both).status().code(), absl::StatusCode::kInvalidArgument);
    RunStep(*e.trainer, "a", step, least, 1);
    RunStep(*e.trainer, "b", step, least);
  }
  EXPECT_TRUE(SameBits(narrow_alone, Snapshot(*e.trainer, "a")));
  EXPECT_TRUE(SameBits(wide_alone, Snapshot(*e.trainer, "b")));
}

}  // namespace
}  // namespace soup::engine
