// Contract 2 of the design: under one numeric plan a job's adapter is the same to the bit whatever
// the placement, co-tenants, cuts of a step into passes, and restarts.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/dtype.h"
#include "engine/model/slab_contents.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/nf4_dequant.h"
#include "tests/engine/train/golden_case.h"
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

Placement Parse(const char* text) {
  const auto placement = ParsePlacement(text);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *placement : Placement();
}

const Placement kLeast = Place(2, Retention::kRecompute);

// Dropout on and every linear adapted: all that could depend on the order of things.
RandomJob JobA() {
  RandomJob job;
  job.id = "a";
  job.dropout = 0.1;
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

AdapterSnapshot Alone(const RandomJob& job, const Placement& placement, int32_t micro_batches = -1,
                      const CpuBackendOptions& backend = {}, const TrainerOptions& options = {}) {
  Engine e = MakeEngine(TinyBase(job.format), backend, options);
  const auto opened = e.trainer->OpenJob(MakeJob(job));
  EXPECT_TRUE(opened.ok()) << opened.status();
  RunSteps(*e.trainer, job.id, 1, kSteps, placement, micro_batches);
  return Snapshot(*e.trainer, job.id);
}

const AdapterSnapshot& Reference() {
  static const auto& reference = *new AdapterSnapshot(Alone(JobA(), kLeast));
  return reference;
}

TEST(SameBits, ReferenceHasTrained) {
  EXPECT_EQ(Reference().steps_done, kSteps);
  EXPECT_EQ(Reference().optimizer_steps, kSteps);
  RandomJob other = JobA();
  other.seed = 3;
  EXPECT_FALSE(SameBits(Reference(), Alone(other, kLeast)));  // the comparison can fail
}

TEST(SameBits, StepsHaveSeveralMicroBatches) {
  const JobSetup setup = MakeJob(JobA());
  const auto schedule = MakeTrainSchedule(setup.shape, setup.numeric);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->steps(), kSteps);
  EXPECT_GE(schedule->max_micro_batches(), 2);
}

class Placements : public ::testing::TestWithParam<Placement> {};
TEST_P(Placements, GiveTheSameBits) {
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), GetParam())));
}
INSTANTIATE_TEST_SUITE_P(
    All, Placements,
    ::testing::Values(
        Place(2, Retention::kKeep), Place(3, Retention::kRecompute), Place(3, Retention::kKeep),
        Place(3, Retention::kRecompute, 3), Place(3, Retention::kKeep, 3, true),
        Place(3, Retention::kRecompute, 1), Place(2, Retention::kRecompute, 0, true),
        Place(2, Retention::kHost),
        Parse("slots=2 attention=host:2 mlp=device:1+host:1 boundaries=host"),
        Parse("slots=2 head=resident:1 attention=device:1 mlp=device:all optimizer=host"),
        Parse("slots=3 resident=1 head=resident:2 attention=device:1+host:all mlp=host:all optimizer=host"),
        Parse("slots=all attention=recompute mlp=device:2 boundaries=host optimizer=host")),
    [](const auto& info) {
      std::string name = PlacementText(info.param);
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

TEST(SameBits, OnePassAMicroBatch) { EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), kLeast, 1))); }

TEST(SameBits, LaidOutAnewInEveryPass) {
  TrainerOptions options;
  options.always_relayout = true;
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), kLeast, 1, {}, options)));
}

// Buffers that were never written before they are read would show.
TEST(SameBits, PoisonedArena) {
  CpuBackendOptions backend;
  backend.poison_arena = true;
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), kLeast, 1, backend)));
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), Place(2, Retention::kKeep), -1, backend)));
}

// Compute really waits for its copies.
TEST(SameBits, SlowCopies) {
  CpuBackendOptions backend;
  backend.copy_delay = absl::Milliseconds(2);
  EXPECT_TRUE(SameBits(Reference(), Alone(JobA(), kLeast, -1, backend)));
}

TEST(SameBits, TwoJobsOfDifferentRankInOnePass) {
  const AdapterSnapshot b_alone = Alone(JobB(), kLeast);
  for (const bool a_first : {true, false}) {
    Engine e = MakeEngine(TinyBase());
    ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobA())).ok());
    ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobB())).ok());
    for (int64_t step = 1; step <= kSteps; ++step) {
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
TEST(SameBits, CoTenantInTheMiddleOfAStep) {
  Engine e = MakeEngine(TinyBase());
  ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobA())).ok());
  ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobB())).ok());
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (const WorkRequest& work :
         {WorkRequest{"a", step, 0, 1, false}, WorkRequest{"b", step, 0, -1, false},
          WorkRequest{"a", step, 1, -1, false}}) {
      const auto result = e.trainer->RunPass({{work}, kLeast});
      ASSERT_TRUE(result.ok()) << result.status();
    }
  }
  EXPECT_TRUE(SameBits(Reference(), Snapshot(*e.trainer, "a")));
}

TEST(SameBits, ReopenedFromTheMirrorInMidRun) {
  for (const bool mid_step : {false, true}) {
    testing::TempDir dir(testing::TempDir::kInMemory);
    JobSetup setup = MakeJob(JobA());
    setup.mirror_dir = dir / "mirror";
    {
      Engine e = MakeEngine(TinyBase());
      const auto opened = e.trainer->OpenJob(setup);
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_FALSE(opened->from_mirror);
      RunSteps(*e.trainer, "a", 1, 4, kLeast);
      // A worker that dies in the middle of step 5: its first micro-batch is lost.
      if (mid_step) ASSERT_TRUE(e.trainer->RunPass({{{"a", 5, 0, 1, false}}, kLeast}).ok());
    }
    Engine e = MakeEngine(TinyBase());
    const auto opened = e.trainer->OpenJob(setup);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(opened->from_mirror);
    EXPECT_EQ(opened->steps_done, 4);
    EXPECT_EQ(opened->steps_total, kSteps);
    ASSERT_TRUE(opened->last_step.has_value());
    EXPECT_EQ(opened->last_step->step, 4);
    EXPECT_GT(opened->last_step->loss, 0);
    RunSteps(*e.trainer, "a", 5, kSteps, Place(3, Retention::kKeep));
    EXPECT_TRUE(SameBits(Reference(), Snapshot(*e.trainer, "a")));
  }
}

TEST(SameBits, ReopenedFromACheckpoint) {
  testing::TempDir dir(testing::TempDir::kInMemory);
  JobSetup setup = MakeJob(JobA());
  setup.checkpoint_dir = dir / "checkpoints";
  {
    Engine e = MakeEngine(TinyBase());
    ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
    RunSteps(*e.trainer, "a", 1, 3, kLeast);
    const auto saved = e.trainer->SaveCheckpoint("a");
    ASSERT_TRUE(saved.ok()) << saved.status();
    RunSteps(*e.trainer, "a", 4, 5, kLeast);  // lost
  }
  Engine e = MakeEngine(TinyBase());
  const auto opened = e.trainer->OpenJob(setup);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->from_checkpoint);
  EXPECT_EQ(opened->steps_done, 3);
  RunSteps(*e.trainer, "a", 4, kSteps, kLeast);
  EXPECT_TRUE(SameBits(Reference(), Snapshot(*e.trainer, "a")));
}

// A base in bf16 whose weights are those that an NF4 base dequantises to.
std::vector<std::vector<std::byte>> Dequantised(BaseFormat format) {
  const cache::MemoryBase& nf4 = TinyMemory(format);
  const ModelSpec& spec = nf4.spec();
  const LayerLayout from = MakeLayerLayout(spec, format);
  const LayerLayout to = MakeLayerLayout(spec, BaseFormat::kBf16);
  kernels::cpu::CpuContext context;
  std::vector<std::vector<std::byte>> slabs;
  for (int64_t l = 0; l < spec.layers; ++l) {
    const uint8_t* src = nf4.slab(l).data();
    std::vector<std::byte> slab(to.bytes);
    for (int m = 0; m < kModules; ++m) {
      const MatrixLayout& q = from.matrices[m];
      if (q.rows == 0) continue;
      std::vector<float> w(q.rows * q.cols);
      kernels::Nf4DequantArgs args = {};
      args.packed = src + q.data_offset;
      if (format == BaseFormat::kNf4) {
        args.absmax = reinterpret_cast<const float*>(src + q.absmax_offset);
      } else {
        args.absmax_q = src + q.absmax_offset;
        args.nested_absmax = reinterpret_cast<const float*>(src + q.nested_absmax_offset);
        args.nested_offset = reinterpret_cast<const float*>(src + q.offset_offset);
      }
      args.dst = w.data();
      args.n = q.rows * q.cols;
      kernels::cpu::Nf4Dequant(args, context);
      uint16_t* dst = reinterpret_cast<uint16_t*>(slab.data() + to.matrices[m].data_offset);
      for (size_t i = 0; i < w.size(); ++i) dst[i] = F32ToBf16(w[i]);
    }
    const int64_t norm = spec.hidden * 2;
    std::memcpy(slab.data() + to.input_norm_offset, src + from.input_norm_offset, norm);
    std::memcpy(slab.data() + to.post_attention_norm_offset, src + from.post_attention_norm_offset,
                norm);
    slabs.push_back(std::move(slab));
  }
  const absl::Span<const uint8_t> globals = nf4.slab(spec.layers);
  const std::byte* g = reinterpret_cast<const std::byte*>(globals.data());
  slabs.emplace_back(g, g + globals.size());
  return slabs;
}

TEST(SameBits, Nf4EqualsBf16OfItsDequantisedWeights) {
  for (const BaseFormat format : {BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    SCOPED_TRACE(BaseFormatName(format));
    RandomJob job = JobA();
    job.format = format;
    const AdapterSnapshot quantised = Alone(job, kLeast);
    EXPECT_FALSE(SameBits(Reference(), quantised));  // quantisation is not the identity
    const std::vector<std::vector<std::byte>> slabs = Dequantised(format);
    ModelBase base;
    base.spec = TinyMemory(format).spec();
    for (const auto& slab : slabs) base.slabs.emplace_back(slab.data(), slab.size());
    for (const Retention retention : {Retention::kRecompute, Retention::kKeep}) {
      Engine e = MakeEngine(base);
      ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobA())).ok());
      RunSteps(*e.trainer, "a", 1, kSteps, Place(2, retention));
      EXPECT_TRUE(SameBits(quantised, Snapshot(*e.trainer, "a")));
    }
  }
}

}  // namespace
}  // namespace soup::engine
