// Contract 2 of the design on the CPU backend (same_bits.h), and what only it can show.
#include "tests/engine/train/same_bits.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/dtype.h"
#include "engine/base/file_system.h"
#include "engine/model/slab_contents.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/nf4_dequant.h"
#include "tests/engine/train/golden_case.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {

Engine MakeSameBitsEngine(const ModelBase& base, const SameBitsOptions& options,
                          MachineProfile* profile) {
  CpuBackendOptions backend;
  backend.poison_arena = options.poison_arena;
  TrainerOptions trainer;
  trainer.always_relayout = options.always_relayout;
  *profile = CpuProfile();
  return MakeEngine(base, backend, trainer);
}

std::string NoDeviceForSameBits() { return ""; }

namespace {

// Compute really waits for its copies, and for what comes back from host memory.
TEST(CpuSameBits, SlowCopies) {
  CpuBackendOptions backend;
  backend.copy_delay = absl::Milliseconds(2);
  const AdapterSnapshot reference = Alone(JobA(), Place(2, Retention::kRecompute));
  for (const char* text : {"recompute", "host optimizer=host"}) {
    Engine e = MakeEngine(TinyBase(), backend);
    ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobA())).ok());
    RunSteps(*e.trainer, "a", 1, kSameBitsSteps, PlaceBy(text));
    EXPECT_TRUE(SameBits(reference, Snapshot(*e.trainer, "a"))) << text;
  }
}

// Bits follow from the job, not from how many threads share its work.
TEST(CpuSameBits, AnyNumberOfThreads) {
  const AdapterSnapshot reference = Alone(JobA(), Place(2, Retention::kRecompute));
  for (const int threads : {1, 2, 3, 7}) {
    CpuBackendOptions backend;
    backend.cpu_threads = threads;
    Engine e = MakeEngine(TinyBase(), backend);
    ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobA())).ok());
    RunSteps(*e.trainer, "a", 1, kSameBitsSteps, Place(2, Retention::kRecompute));
    EXPECT_TRUE(SameBits(reference, Snapshot(*e.trainer, "a"))) << threads << " threads";
  }
}

TEST(CpuSameBits, ReopenedFromACheckpoint) {
  testing::TempDir dir(testing::TempDir::kInMemory);
  JobSetup setup = MakeJob(JobA());
  setup.checkpoint_dir = dir / "checkpoints";
  {
    Engine e = MakeEngine(TinyBase());
    ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
    RunSteps(*e.trainer, "a", 1, 3, Place(2, Retention::kRecompute));
    const auto saved = e.trainer->SaveCheckpoint("a");
    ASSERT_TRUE(saved.ok()) << saved.status();
    RunSteps(*e.trainer, "a", 4, 5, Place(2, Retention::kRecompute));  // lost
  }
  Engine e = MakeEngine(TinyBase());
  const auto opened = e.trainer->OpenJob(setup);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->from_checkpoint);
  EXPECT_EQ(opened->steps_done, 3);
  RunSteps(*e.trainer, "a", 4, kSameBitsSteps, Place(2, Retention::kRecompute));
  EXPECT_TRUE(SameBits(Alone(JobA(), Place(2, Retention::kRecompute)), Snapshot(*e.trainer, "a")));
}

// A mirror whose file is cut or whose header is broken is made anew; checkpoints are what is left.
TEST(CpuSameBits, ReopenedFromACheckpointBesideABrokenMirror) {
  const AdapterSnapshot reference = Alone(JobA(), Place(2, Retention::kRecompute));
  for (const bool cut : {false, true}) {
    testing::TempDir dir(testing::TempDir::kInMemory);
    JobSetup setup = MakeJob(JobA());
    setup.checkpoint_dir = dir / "checkpoints";
    setup.mirror_dir = dir / "mirror";
    {
      Engine e = MakeEngine(TinyBase());
      ASSERT_TRUE(e.trainer->OpenJob(setup).ok());
      RunSteps(*e.trainer, "a", 1, 3, Place(2, Retention::kRecompute));
      ASSERT_TRUE(e.trainer->SaveCheckpoint("a").ok());
      RunSteps(*e.trainer, "a", 4, 5, Place(2, Retention::kRecompute));  // lost with the mirror
    }
    const std::string path = setup.mirror_dir + "/mirror.bin";
    auto bytes = RealFileSystem().ReadFile(path);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    if (cut) {
      bytes->resize(1000);
    } else {
      (*bytes)[3] ^= 1;
    }
    ASSERT_TRUE(RealFileSystem().WriteFileSynced(path, *bytes).ok());
    Engine e = MakeEngine(TinyBase());
    const auto opened = e.trainer->OpenJob(setup);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(opened->from_checkpoint);
    EXPECT_EQ(opened->steps_done, 3);
    EXPECT_EQ(opened->warnings.size(), 1u);
    RunSteps(*e.trainer, "a", 4, kSameBitsSteps, Place(2, Retention::kRecompute));
    EXPECT_TRUE(SameBits(reference, Snapshot(*e.trainer, "a")));
  }
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

TEST(CpuSameBits, Nf4EqualsBf16OfItsDequantisedWeights) {
  for (const BaseFormat format : {BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    SCOPED_TRACE(BaseFormatName(format));
    RandomJob job = JobA();
    job.format = format;
    const AdapterSnapshot quantised = Alone(job, Place(2, Retention::kRecompute));
    EXPECT_FALSE(SameBits(Alone(JobA(), Place(2, Retention::kRecompute)),
                          quantised));  // quantisation is not the identity
    const std::vector<std::vector<std::byte>> slabs = Dequantised(format);
    ModelBase base;
    base.spec = TinyMemory(format).spec();
    for (const auto& slab : slabs) base.slabs.emplace_back(slab.data(), slab.size());
    for (const Retention retention : {Retention::kRecompute, Retention::kKeep}) {
      Engine e = MakeEngine(base);
      ASSERT_TRUE(e.trainer->OpenJob(MakeJob(JobA())).ok());
      RunSteps(*e.trainer, "a", 1, kSameBitsSteps, Place(2, retention));
      EXPECT_TRUE(SameBits(quantised, Snapshot(*e.trainer, "a")));
    }
  }
}

}  // namespace
}  // namespace soup::engine
