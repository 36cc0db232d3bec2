// Every matrix product of a run is told to the backend before the run: on a backend that refuses
// what it was not told of, whole jobs go through.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/forwarding_backend.h"
#include "engine/device/cpu_backend.h"
#include "engine/model/layer_layout.h"
#include "tests/engine/train/trainer_fixture.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

// The CPU backend as one that chooses algorithms: notes products that were not prepared.
class StrictBackend final : public bench::ForwardingBackend {
 public:
  explicit StrictBackend(Backend* next) : ForwardingBackend(next) {}

  bool chooses_gemms() const override { return true; }
  absl::StatusOr<GemmPreparation> PrepareGemms(
      absl::Span<const kernels::GemmArgs> products,
      const std::function<absl::Status()>& make_room) override {
    if (make_room) {
      ++rooms_made_;
      const absl::Status made = make_room();
      if (!made.ok()) return made;
    }
    GemmPreparation preparation;
    for (const kernels::GemmArgs& g : products) preparation.tuned += known_.insert(Key(g)).second;
    preparation.shapes = static_cast<int64_t>(products.size());
    preparation.fingerprint = fingerprint_;
    return preparation;
  }
  void Gemm(const kernels::GemmArgs& g) override {
    if (known_.count(Key(g)) == 0) {
      unknown_.push_back(absl::StrCat(g.M, " x ", g.N, " x ", g.K));
    }
    next().Gemm(g);
  }
  void GateUp(const kernels::GateUpArgs& a) override { Backend::GateUp(a); }
  void DownBackward(const kernels::DownBackwardArgs& a) override { Backend::DownBackward(a); }

  const std::vector<std::string>& unknown() const { return unknown_; }
  int rooms_made() const { return rooms_made_; }
  void set_fingerprint(std::string text) { fingerprint_ = std::move(text); }

 private:
  static std::array<int64_t, 8> Key(const kernels::GemmArgs& g) {
    return {g.M,
            g.N,
            g.K,
            g.lda,
            g.ldb,
            g.ldc,
            g.transpose_a * 2 + g.transpose_b,
            (g.beta != 0) * 16 + static_cast<int>(g.c_type)};
  }

  std::set<std::array<int64_t, 8>> known_;
  std::vector<std::string> unknown_;
  std::string fingerprint_ = "a";
  int rooms_made_ = 0;
};

struct StrictEngine {
  std::unique_ptr<Backend> cpu = MakeCpuBackend({});
  StrictBackend backend{cpu.get()};
  std::unique_ptr<Trainer> trainer;

  explicit StrictEngine(BaseFormat format = BaseFormat::kBf16, const std::string& model = "llama") {
    auto made = Trainer::Create(&backend, TinyBase(format, 0, model));
    EXPECT_TRUE(made.ok()) << made.status();
    trainer = *std::move(made);
  }
};

Placement TwoSlots() {
  Placement p;
  p.slots = 2;
  return p;
}

RandomJob SmallJob() {
  RandomJob job;
  job.validation_records = 4;
  return job;
}

TEST(PrepareGemms, KnowsEveryProductOfARun) {
  for (const double dropout : {0.0, 0.1}) {
    for (const int32_t r : {4, 8}) {
      SCOPED_TRACE(absl::StrCat("dropout ", dropout, ", rank ", r));
      StrictEngine e;
      RandomJob job = SmallJob();
      job.dropout = dropout;
      job.r = r;
      const auto opened = e.trainer->OpenJob(MakeJob(job));
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_GT(opened->gemms_tuned, 0);
      RunSteps(*e.trainer, job.id, 1, 8, TwoSlots());
      PassRequest score;
      score.placement = TwoSlots();
      score.items = {{job.id, 8, 0, -1, true}};
      const auto scored = e.trainer->RunPass(score);
      ASSERT_TRUE(scored.ok()) << scored.status();
      EXPECT_EQ(e.backend.unknown(), std::vector<std::string>());
      EXPECT_EQ(e.backend.rooms_made(), 0);
    }
  }
}

// Fused projections, biases, output norms; experts, whose row counts only a run tells.
TEST(PrepareGemms, KnowsEveryFamily) {
  for (const char* model : {"qwen2", "phi3", "gemma2", "qwen3_moe", "mixtral"}) {
    SCOPED_TRACE(model);
    StrictEngine e(BaseFormat::kBf16, model);
    RandomJob job = SmallJob();
    job.model = model;
    job.targets = AdaptableModules(TinyMemory(BaseFormat::kBf16, model).spec());
    const auto opened = e.trainer->OpenJob(MakeJob(job));
    ASSERT_TRUE(opened.ok()) << opened.status();
    RunSteps(*e.trainer, job.id, 1, 2, TwoSlots());
    EXPECT_EQ(e.backend.unknown(), std::vector<std::string>());
  }
}

// Looks like a CUDA backend until a job is open: what follows would need one.
class LooksLikeCuda final : public bench::ForwardingBackend {
 public:
  explicit LooksLikeCuda(Backend* cpu) : ForwardingBackend(cpu) {}

  const char* name() const override { return "cuda"; }
  DType activation_type() const override { return act_; }
  DType weight_type() const override { return DType::kBF16; }
  absl::Status UseActivations(DType type, void*) override {
    act_ = type;
    return absl::OkStatus();
  }
  bool chooses_gemms() const override { return true; }
  int64_t fused_gate_rows() const override { return fused_gate_rows_; }
  void set_fused_gate_rows(int64_t rows) { fused_gate_rows_ = rows; }
  absl::StatusOr<GemmPreparation> PrepareGemms(absl::Span<const kernels::GemmArgs> products,
                                               const std::function<absl::Status()>&) override {
    types_.insert(act_);
    products_.insert(products_.end(), products.begin(), products.end());
    return GemmPreparation();
  }

  const std::vector<kernels::GemmArgs>& products() const { return products_; }
  const std::set<DType>& types() const { return types_; }  // at preparations

 private:
  DType act_ = DType::kBF16;
  int64_t fused_gate_rows_ = 0;
  std::set<DType> types_;
  std::vector<kernels::GemmArgs> products_;
};

// The dry pass that tells the products checks that its memory is what was planned, to the byte:
// here with bf16 weights, and activations of either type. All products of fp32 activations are of
// the forms that CUDA has for them (kernels/cuda/gemm_split.h).
TEST(PrepareGemms, OnCudaAPassTakesWhatIsPlannedInEitherType) {
  for (const char* model : {"llama", "llama31", "smollm", "mistral", "phi3", "qwen2", "qwen3",
                            "gemma2", "gemma3", "qwen3_moe", "mixtral"}) {
    for (const bool f32 : {false, true}) {
      SCOPED_TRACE(absl::StrCat(model, f32 ? ", f32" : ", bf16"));
      const std::unique_ptr<Backend> cpu = MakeCpuBackend({});
      LooksLikeCuda backend(cpu.get());
      auto trainer = Trainer::Create(&backend, TinyBase(BaseFormat::kBf16, 0, model));
      ASSERT_TRUE(trainer.ok()) << trainer.status();
      RandomJob job = SmallJob();
      job.model = model;
      job.r = 16;
      job.dropout = 0.1;
      job.targets = AdaptableModules(TinyMemory(BaseFormat::kBf16, model).spec());
      JobSetup setup = MakeJob(job);
      setup.numeric.backend = "cuda";
      setup.numeric.f32_activations = f32;
      const auto opened = (*trainer)->OpenJob(setup);
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_EQ(backend.types(), std::set<DType>{f32 ? DType::kF32 : DType::kBF16});
      EXPECT_GT(backend.products().size(), 0u);
      for (const kernels::GemmArgs& g : backend.products()) {
        EXPECT_EQ(g.a_type, kernels::Operand::kAct);
        EXPECT_NE(g.b_type, kernels::Operand::kF32);
        if (!g.transpose_a) continue;
        EXPECT_EQ(g.b_type, kernels::Operand::kAct);
        EXPECT_FALSE(g.transpose_b);
      }
    }
  }
}

// A product that a kernel has with the gate in its last stage needs no algorithm, unless an adapter
// stands between, there are too few rows, or activations are fp32.
TEST(PrepareGemms, GatesWithinProductsNeedNoAlgorithm) {
  const ModelSpec& m = TinyMemory(BaseFormat::kBf16).spec();
  const auto asked_for = [&](const std::vector<Module>& targets, int64_t rows, bool f32) {
    const std::unique_ptr<Backend> cpu = MakeCpuBackend({});
    LooksLikeCuda backend(cpu.get());
    backend.set_fused_gate_rows(rows);
    auto trainer = Trainer::Create(&backend, TinyBase(BaseFormat::kBf16));
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    RandomJob job = SmallJob();
    job.targets = targets;
    JobSetup setup = MakeJob(job);
    setup.numeric.backend = "cuda";
    setup.numeric.f32_activations = f32;
    const auto opened = (*trainer)->OpenJob(setup);
    EXPECT_TRUE(opened.ok()) << opened.status();
    std::string found;
    for (const kernels::GemmArgs& g : backend.products()) {
      const bool gate_up = g.transpose_b && g.N == 2 * m.intermediate && g.K == m.hidden;
      const bool down_back = !g.transpose_a && !g.transpose_b && g.N == m.intermediate;
      if (gate_up && found.find("gate_up ") == std::string::npos) found += "gate_up ";
      if (down_back && found.find("down ") == std::string::npos) found += "down ";
    }
    return found;
  };
  const std::vector<Module> attention = {Module::kQ, Module::kV};
  EXPECT_EQ(asked_for(attention, 0, false), "gate_up down ");
  EXPECT_EQ(asked_for(attention, 1, false), "");
  EXPECT_EQ(asked_for(attention, 1 << 20, false), "gate_up down ");
  EXPECT_EQ(asked_for(attention, 1, true), "gate_up down ");
  EXPECT_EQ(asked_for({Module::kQ, Module::kUp}, 1, false), "gate_up ");
}

TEST(PrepareGemms, WhatWasNotToldIsSeen) {
  StrictEngine e;
  std::vector<float> x(4, 1.0f);
  kernels::GemmArgs g{};
  g.M = g.N = g.K = g.lda = g.ldb = g.ldc = 2;
  g.alpha = 1;
  g.A = g.B = x.data();
  std::vector<float> y(4);
  g.C = y.data();
  e.backend.Gemm(g);
  EXPECT_EQ(e.backend.unknown().size(), 1u);
}

// A second job opens while the first lies in the arena: the arena makes room, and the first goes on
// with the bits that it has alone.
TEST(PrepareGemms, OpenJobsMakeRoom) {
  StrictEngine alone, both;
  RandomJob a = SmallJob(), b = SmallJob();
  b.id = "b";
  b.seed = 5;
  b.longest = 60;
  ASSERT_TRUE(alone.trainer->OpenJob(MakeJob(a)).ok());
  RunSteps(*alone.trainer, "a", 1, 8, TwoSlots());
  ASSERT_TRUE(both.trainer->OpenJob(MakeJob(a)).ok());
  RunSteps(*both.trainer, "a", 1, 3, TwoSlots());
  ASSERT_TRUE(both.trainer->OpenJob(MakeJob(b)).ok());
  EXPECT_EQ(both.backend.rooms_made(), 1);
  RunSteps(*both.trainer, "a", 4, 8, TwoSlots());
  EXPECT_EQ(both.backend.unknown(), std::vector<std::string>());
  EXPECT_TRUE(SameBits(Snapshot(*alone.trainer, "a"), Snapshot(*both.trainer, "a")));
}

// Algorithms decide bits: a state that was made under others is refused.
TEST(PrepareGemms, AStateOfOtherAlgorithmsIsRefused) {
  const testing::TempDir dir;
  const auto setup = [&dir] {
    JobSetup made = MakeJob(SmallJob());
    made.mirror_dir = dir / "mirror";
    return made;
  };
  {
    StrictEngine e;
    ASSERT_TRUE(e.trainer->OpenJob(setup()).ok());
    RunSteps(*e.trainer, "a", 1, 2, TwoSlots());
  }
  {
    StrictEngine e;
    e.backend.set_fingerprint("b");
    const auto opened = e.trainer->OpenJob(setup());
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
  }
  StrictEngine e;
  const auto opened = e.trainer->OpenJob(setup());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->steps_done, 2);
}

}  // namespace
}  // namespace soup::engine
