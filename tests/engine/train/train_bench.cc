// train_bench: speed of training steps on a random base of SmolLM2-135M's shape, without a store or
// a daemon: what the engine itself takes. Prints tokens/s and the rate of the matrix products.
//
//   train_bench [--layers N] [--records N] [--length N] [--batch N] [--steps N] [--slots N]
//               [--retention keep|recompute] [--format bf16|nf4|nf4-dq] [--rank N]
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "engine/base/dtype.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu_backend.h"
#include "engine/model/slab_contents.h"
#include "engine/train/trainer.h"
#include "kernels/cpu/nf4_quantize.h"
#include "tests/engine/train/golden_case.h"

namespace soup::engine {
namespace {

struct Options {
  int32_t layers = 30;
  int32_t records = 32;
  int32_t length = 256;
  int32_t batch = 8;
  int32_t steps = 3;
  int32_t slots = 4;
  int32_t resident = 0;
  int32_t rank = 16;
  std::string retention = "keep";
  std::string format = "bf16";
};

ModelSpec SmolLm2(int32_t layers) {
  ModelSpec m;
  m.family = "llama";
  m.hidden = 576;
  m.intermediate = 1536;
  m.layers = layers;
  m.heads = 9;
  m.kv_heads = 3;
  m.head_dim = 64;
  m.vocab = 49152;
  m.max_position = 8192;
  m.tied_head = true;
  m.rope.theta = 100000;
  return m;
}

// Weights from a small normal distribution; norms 1.
class RandomBase {
 public:
  RandomBase(const ModelSpec& spec, BaseFormat format) {
    base_.spec = spec;
    base_.format = format;
    for (int64_t i = 0; i < SlabCount(spec); ++i) {
      std::vector<uint8_t> slab(SlabBytes(spec, format, i));
      for (const SlabTensor& t : SlabContents(spec, format, i)) Fill(t, slab);
      slabs_.push_back(std::move(slab));
    }
    for (const auto& slab : slabs_) {
      base_.slabs.emplace_back(reinterpret_cast<const std::byte*>(slab.data()), slab.size());
    }
  }
  const ModelBase& base() const { return base_; }

 private:
  void Fill(const SlabTensor& t, std::vector<uint8_t>& slab) {
    int64_t n = 1;
    for (int64_t d : t.shape) n *= d;
    std::vector<uint16_t> w(n);
    for (uint16_t& x : w) x = F32ToBf16(t.shape.size() == 1 ? 1.0f : normal_(rng_));
    if (!t.is_linear || base_.format == BaseFormat::kBf16) {
      const int64_t offset = t.is_linear ? t.matrix.data_offset : t.offset;
      std::memcpy(slab.data() + offset, w.data(), n * 2);
      return;
    }
    const MatrixLayout& m = t.matrix;
    std::vector<float> absmax(m.blocks());
    kernels::cpu::Nf4QuantizeArgs args;
    args.src_bf16 = w.data();
    args.n = n;
    args.packed = slab.data() + m.data_offset;
    args.absmax = base_.format == BaseFormat::kNf4
                      ? reinterpret_cast<float*>(slab.data() + m.absmax_offset)
                      : absmax.data();
    kernels::cpu::Nf4QuantizeBlocks(args, 0, m.blocks());
    if (base_.format == BaseFormat::kNf4) return;
    kernels::cpu::Nf4QuantizeAbsmax(absmax.data(), m.blocks(), slab.data() + m.absmax_offset,
                                    reinterpret_cast<float*>(slab.data() + m.nested_absmax_offset),
                                    reinterpret_cast<float*>(slab.data() + m.offset_offset));
  }

  std::mt19937 rng_{7};
  std::normal_distribution<float> normal_{0.0f, 0.03f};
  ModelBase base_;
  std::vector<std::vector<uint8_t>> slabs_;
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

JobSetup MakeJob(const Options& options, const ModelBase& base) {
  std::mt19937 rng(3);
  std::vector<TokenRecord> records(options.records);
  for (TokenRecord& record : records) {
    const int32_t length = options.length / 2 + static_cast<int32_t>(rng() % options.length);
    for (int32_t i = 0; i < length; ++i) {
      record.ids.push_back(static_cast<int32_t>(rng() % base.spec.vocab));
      record.supervised.push_back(i >= length / 2);
    }
  }
  JobSetup setup;
  setup.job_id = "bench";
  setup.dataset = PreparedDataset::FromRecords(records);
  setup.shape.model = base.spec;
  setup.shape.format = base.format;
  setup.shape.lora.r = options.rank;
  setup.shape.lora.targets = AdaptableModules(setup.shape.model);
  setup.shape.lengths = setup.dataset->TrainLengths();
  setup.shape.batch.batch_size = options.batch;
  setup.shape.batch.packing = true;
  setup.shape.batch.epochs = 100;
  return setup;
}

// Multiply-adds of the frozen matrices and of the adapter, twice: forward and d input (recompute
// not counted: it is not useful work).
double UsefulFlops(const ModelSpec& m, const JobSetup& setup, const StepStats& s) {
  double layer = 0;
  for (int g = 0; g < kGroups; ++g) {
    const GroupShape shape = MakeGroupShape(m, static_cast<Group>(g));
    layer += static_cast<double>(shape.rows * shape.cols);
  }
  const double adapter = static_cast<double>(AdapterElements(m, setup.shape.lora));
  return 4.0 * static_cast<double>(s.tokens) * layer * static_cast<double>(m.layers) +
         6.0 * static_cast<double>(s.tokens) * adapter +
         4.0 * static_cast<double>(s.supervised_tokens * m.vocab * m.hidden);
}

absl::Status Bench(const Options& options) {
  SOUP_ASSIGN_OR_RETURN(const BaseFormat format, ParseBaseFormat(options.format));
  const RandomBase random(SmolLm2(options.layers), format);
  const ModelBase& base = random.base();
  JobSetup setup = MakeJob(options, base);
  SOUP_RETURN_IF_ERROR(PlanForCpu(setup));
  Placement placement;
  placement.slots = std::min(options.slots, options.layers);
  placement.resident_layers = options.resident;
  SOUP_RETURN_IF_ERROR(ParseRetention(options.retention, &placement));
  const std::unique_ptr<Backend> backend = MakeCpuBackend();
  SOUP_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(backend.get(), base));
  SOUP_RETURN_IF_ERROR(trainer->OpenJob(setup).status());
  for (int64_t step = 1; step <= options.steps; ++step) {
    const double cpu = CpuSeconds();
    SOUP_ASSIGN_OR_RETURN(const PassResult result,
                          trainer->RunPass({{{"bench", step, 0, -1, false}}, placement}));
    const StepStats& s = result.steps.at(0);
    const double flops = UsefulFlops(base.spec, setup, s);
    std::printf(
        "step %lld loss %.4f tokens %lld tail %lld seconds %.3f tok/s %.0f GFLOPS %.1f | a core: "
        "%.1f | copies %.1f MB stall %.3f | arena %.1f MB\n",
        static_cast<long long>(step), s.loss, static_cast<long long>(s.tokens),
        static_cast<long long>(s.bucket_tail_tokens), result.seconds,
        static_cast<double>(s.tokens) / result.seconds, flops / result.seconds * 1e-9,
        flops / (CpuSeconds() - cpu) * 1e-9, static_cast<double>(result.copy_bytes) * 1e-6,
        result.stall_seconds, static_cast<double>(result.arena_measured_bytes) * 1e-6);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace soup::engine

int main(int argc, char** argv) {
  soup::engine::Options o;
  CLI::App app("Speed of training steps on a random base of SmolLM2-135M's shape");
  app.add_option("--layers", o.layers);
  app.add_option("--records", o.records);
  app.add_option("--length", o.length, "Mean tokens of a record");
  app.add_option("--batch", o.batch);
  app.add_option("--steps", o.steps);
  app.add_option("--slots", o.slots);
  app.add_option("--resident", o.resident);
  app.add_option("--retention", o.retention);
  app.add_option("--format", o.format);
  app.add_option("--rank", o.rank);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = soup::engine::Bench(o);
  if (!status.ok()) std::fprintf(stderr, "train_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
