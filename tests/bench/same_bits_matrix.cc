#include "tests/bench/same_bits_matrix.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/machine.h"
#include "bench/synthetic_base.h"
#include "engine/data/dataset.h"
#include "engine/train/trainer.h"
#include "kernels/philox.h"
#include "tests/support/temp_dir.h"

namespace soup::bench {
namespace {

using namespace engine;  // NOLINT: a test of the engine

constexpr int kThreads = 2;     // of the CPU backend
constexpr char kJob[] = "a";    // the job that is looked at
constexpr char kOther[] = "b";  // the one that may stand in its passes
constexpr uint64_t kSeed = 1;

// What a job has come to.
struct Bits {
  std::string hash;  // of weights, moments, counts and losses
  std::vector<double> losses;
};

enum class How { kFirst, kAgain, kKilled };
const char* HowName(How how) {
  return how == How::kFirst ? "run 1" : how == How::kAgain ? "run 2" : "killed";
}

struct Combination {
  Placement placement;
  bool with_other = false;
  How how = How::kFirst;
  uint64_t seed = kSeed;
  std::string Text() const {
    return absl::StrFormat("%-46s | %-10s | %-6s", PlacementText(placement),
                           with_other ? "with other" : "alone", HowName(how));
  }
};

void Hash(XXH3_state_t* state, const void* data, size_t bytes) {
  XXH3_128bits_update(state, data, bytes);
}
template <typename T>
void Hash(XXH3_state_t* state, const std::vector<T>& values) {
  Hash(state, values.data(), values.size() * sizeof(T));
}

std::string HashOf(const AdapterSnapshot& state, const std::vector<double>& losses) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(XXH3_createState(),
                                                                             XXH3_freeState);
  XXH3_128bits_reset(hash.get());
  Hash(hash.get(), &state.steps_done, sizeof state.steps_done);
  Hash(hash.get(), &state.optimizer_steps, sizeof state.optimizer_steps);
  Hash(hash.get(), state.weights);
  Hash(hash.get(), state.first_moment);
  Hash(hash.get(), state.second_moment);
  Hash(hash.get(), losses);
  const XXH128_hash_t digest = XXH3_128bits_digest(hash.get());
  return absl::StrFormat("%016x%016x", digest.high64, digest.low64);
}

// In memory where an adapter of the 8B shape fits: a mirror has two halves of three vectors.
std::unique_ptr<testing::TempDir> MirrorFolder() {
  constexpr uintmax_t kEnough = uintmax_t{2} << 30;
  std::error_code error;
  const std::filesystem::space_info shm = std::filesystem::space("/dev/shm", error);
  const bool memory = !error && shm.available >= kEnough;
  return std::make_unique<testing::TempDir>(memory ? testing::TempDir::kInMemory
                                                   : testing::TempDir::kDisk);
}

// One base, and one backend at a time that has it pinned.
class Matrix {
 public:
  explicit Matrix(const MatrixShape& shape) : shape_(shape) {}

  absl::Status Open() {
    if (absl::Status s = OpenBackend(); !s.ok()) return s;
    const int threads = std::max(1u, std::thread::hardware_concurrency());
    const absl::Time start = absl::Now();
    auto base = SyntheticBase::Make(shape_.model, shape_.format, threads);
    if (!base.ok()) return base.status();
    base_ = *std::move(base);
    std::printf(
        "# %s: %d layers of %d, %s, %.2f GB in %.1f s, %d steps of %d records; on %s (%s)\n",
        shape_.name.c_str(), static_cast<int>(shape_.model.layers),
        static_cast<int>(shape_.model.hidden), BaseFormatName(shape_.format),
        static_cast<double>(base_->bytes()) * 1e-9, absl::ToDoubleSeconds(absl::Now() - start),
        static_cast<int>(shape_.steps), shape_.batch, machine_->profile.device_name.c_str(),
        machine_->profile.blas_core.c_str());
    std::fflush(stdout);
    return absl::OkStatus();
  }

  // What the jobs of a run come to, kJob first (when it is there). Empty after a failure.
  std::vector<Bits> Run(const std::vector<std::string>& jobs, const Combination& c) {
    std::vector<Bits> bits(jobs.size());
    const bool killed = c.how == How::kKilled;
    const std::unique_ptr<testing::TempDir> mirrors = killed ? MirrorFolder() : nullptr;
    const std::string mirror = killed ? mirrors->path() : "";
    std::unique_ptr<Trainer> trainer = OpenJobs(jobs, c, mirror, /*steps_done=*/0);
    const int64_t kill_at = shape_.steps / 2 + 1;
    for (int64_t step = 1; trainer != nullptr && step <= shape_.steps; ++step) {
      if (killed && step == kill_at) {
        LoseMidStep(*trainer, step, c.placement);
        trainer.reset();
        machine_.reset();  // the base is let go before another backend pins it
        const absl::Status opened = OpenBackend();
        EXPECT_TRUE(opened.ok()) << opened;
        if (!opened.ok()) return {};
        trainer = OpenJobs(jobs, c, mirror, step - 1);
        if (trainer == nullptr) return {};
      }
      if (!RunStep(*trainer, jobs, step, c.placement, bits)) return {};
    }
    if (trainer == nullptr) return {};
    for (size_t j = 0; j < jobs.size(); ++j) {
      const absl::StatusOr<AdapterSnapshot> state = trainer->AdapterState(jobs[j]);
      EXPECT_TRUE(state.ok()) << state.status();
      if (!state.ok()) return {};
      EXPECT_EQ(state->steps_done, shape_.steps);
      EXPECT_EQ(state->optimizer_steps, shape_.steps);
      bits[j].hash = HashOf(*state, bits[j].losses);
    }
    return bits;
  }

  double arena_gb() const { return arena_gb_; }  // of the last pass

 private:
  absl::Status OpenBackend() {
    MachineOptions options;
    options.backend = kMatrixBackend;
    options.cpu_threads = kThreads;
    // Chosen once, then read by every backend: a choice that is timed again may be another one.
    options.gemm_profile_path = profile_dir_ / "gemms";
    auto machine = OpenMachine(options);
    if (!machine.ok()) return machine.status();
    machine_ = *std::move(machine);
    return absl::OkStatus();
  }

  std::vector<TokenRecord> Records(const std::string& job, uint64_t seed) const {
    const bool other = job == kOther;
    const int64_t count = shape_.steps * BatchOf(job);
    const int32_t longest = other ? shape_.longest * 5 / 8 : shape_.longest;
    const kernels::PhiloxStream random(seed, 0, other ? 1 : 0);
    uint64_t draw = 0;
    std::vector<TokenRecord> records(static_cast<size_t>(count));
    for (TokenRecord& record : records) {
      const int32_t length =
          longest - static_cast<int32_t>(random.Draw(draw++) % static_cast<uint32_t>(longest / 4));
      for (int32_t i = 0; i < length; ++i) {
        record.ids.push_back(
            static_cast<int32_t>(random.Draw(draw++) % static_cast<uint64_t>(shape_.model.vocab)));
        record.supervised.push_back(i >= length / 8);
      }
    }
    return records;
  }

  int32_t BatchOf(const std::string& job) const {
    return job == kOther ? std::max(1, shape_.batch / 2) : shape_.batch;
  }

  absl::StatusOr<JobSetup> Setup(const std::string& job, uint64_t seed) const {
    const bool other = job == kOther;
    JobSetup setup;
    setup.job_id = job;
    setup.dataset = PreparedDataset::FromRecords(Records(job, seed));
    setup.shape.model = shape_.model;
    setup.shape.format = shape_.format;
    setup.shape.lora.r = other ? 5 : shape_.r;
    setup.shape.lora.dropout = !other;
    setup.shape.lora.targets = {Module::kQ,    Module::kK,  Module::kV,   Module::kO,
                                Module::kGate, Module::kUp, Module::kDown};
    if (other) setup.shape.lora.targets = {Module::kQ, Module::kV};
    setup.shape.lengths = setup.dataset->TrainLengths();
    setup.shape.max_length = shape_.longest;
    setup.shape.batch.batch_size = BatchOf(job);
    setup.shape.batch.packing = shape_.packing;
    setup.shape.batch.seed = seed;
    setup.shape.precision = shape_.precision;
    setup.lora.dropout = other ? 0 : 0.1;
    setup.training.learning_rate = 1e-3;
    setup.training.weight_decay = 0.01;
    auto numeric = MakeNumericPlan(setup.shape, machine_->profile);
    if (!numeric.ok()) return numeric.status();
    setup.numeric = *std::move(numeric);
    return setup;
  }

  // Null after a failure.
  std::unique_ptr<Trainer> OpenJobs(const std::vector<std::string>& jobs, const Combination& c,
                                    const std::string& mirror, int64_t steps_done) {
    TrainerOptions options;
    options.profile = machine_->profile;
    auto trainer = Trainer::Create(machine_->backend.get(), base_->base(), options);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return nullptr;
    for (const std::string& job : jobs) {
      absl::StatusOr<JobSetup> setup = Setup(job, c.seed);
      EXPECT_TRUE(setup.ok()) << setup.status();
      if (!setup.ok()) return nullptr;
      if (!mirror.empty()) setup->mirror_dir = absl::StrCat(mirror, "/", job);
      const absl::StatusOr<JobOpened> opened = (*trainer)->OpenJob(*std::move(setup));
      EXPECT_TRUE(opened.ok()) << opened.status();
      if (!opened.ok()) return nullptr;
      EXPECT_EQ(opened->steps_total, shape_.steps);
      EXPECT_EQ(opened->steps_done, steps_done);
      EXPECT_EQ(opened->from_mirror, steps_done > 0);
    }
    return *std::move(trainer);
  }

  // The first micro-batch of a step that will never end, where a step has more than one.
  void LoseMidStep(Trainer& trainer, int64_t step, const Placement& placement) const {
    if (shape_.packing || shape_.batch < 2) return;
    const auto pass = trainer.RunPass({{{kJob, step, 0, 1, false}}, placement});
    EXPECT_TRUE(pass.ok()) << pass.status();
    EXPECT_TRUE(!pass.ok() || pass->steps.empty());
  }

  bool RunStep(Trainer& trainer, const std::vector<std::string>& jobs, int64_t step,
               const Placement& placement, std::vector<Bits>& bits) {
    PassRequest request;
    request.placement = placement;
    for (const std::string& job : jobs) request.items.push_back({job, step, 0, -1, false});
    const absl::StatusOr<PassResult> pass = trainer.RunPass(request);
    EXPECT_TRUE(pass.ok()) << pass.status();
    if (!pass.ok()) return false;
    for (const JobFaultInfo& fault : pass->faults) ADD_FAILURE() << fault.status;
    EXPECT_EQ(pass->arena_planned_bytes, pass->arena_measured_bytes);
    arena_gb_ = static_cast<double>(pass->arena_measured_bytes) * 1e-9;
    EXPECT_EQ(pass->steps.size(), jobs.size());
    for (const StepStats& done : pass->steps) {
      EXPECT_FALSE(done.skipped) << done.warning;
      EXPECT_TRUE(std::isfinite(done.loss));
      for (size_t j = 0; j < jobs.size(); ++j) {
        if (jobs[j] != done.job_id) continue;
        bits[j].losses.push_back(done.loss);
        bits[j].losses.push_back(done.grad_norm);
      }
    }
    return pass->faults.empty() && pass->steps.size() == jobs.size();
  }

  const MatrixShape shape_;
  testing::TempDir profile_dir_;
  std::unique_ptr<SyntheticBase> base_;
  std::optional<Machine> machine_;  // after the base: it is gone first
  double arena_gb_ = 0;
};

std::vector<Placement> Placements(int64_t layers) {
  const int32_t all = static_cast<int32_t>(layers), half = all / 2;
  std::vector<Placement> placements;
  for (const auto& [slots, resident] :
       {std::pair(2, 0), std::pair(half + 2, half), std::pair(all, all)}) {
    for (const Retention retention : {Retention::kRecompute, Retention::kKeep, Retention::kHost}) {
      Placement p;
      p.slots = slots;
      p.resident_layers = resident;
      p.head_resident = slots == all;
      Retain(retention, &p);
      placements.push_back(p);
    }
  }
  return placements;
}

std::string Difference(const Bits& a, const Bits& b) {
  if (a.hash == b.hash) return "same";
  for (size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i) {
    if (std::memcmp(&a.losses[i], &b.losses[i], sizeof(double)) == 0) continue;
    return absl::StrFormat("DIFFERS in the %s of step %d: %.17g, not %.17g",
                           i % 2 == 0 ? "loss" : "gradient's norm", static_cast<int>(i / 2 + 1),
                           b.losses[i], a.losses[i]);
  }
  return "DIFFERS in the adapter";
}

void Tell(const Combination& c, const Bits& bits, const std::string& verdict, double arena_gb,
          double seconds) {
  std::printf("%s | %s | %7.3f GB | %6.2f s | %s\n", c.Text().c_str(), bits.hash.c_str(), arena_gb,
              seconds, verdict.c_str());
  std::fflush(stdout);
}

void RunMatrix(const MatrixShape& shape) {
  const absl::Time begin = absl::Now();
  Matrix matrix(shape);
  if (const absl::Status opened = matrix.Open(); !opened.ok()) {
    const char* required = std::getenv("SOUP_REQUIRE_GPU");
    if (!absl::IsFailedPrecondition(opened) ||
        (required != nullptr && std::strcmp(required, "1") == 0)) {
      FAIL() << opened;
    }
    GTEST_SKIP() << opened;
  }
  std::optional<Bits> reference, other_reference;
  int runs = 0, same = 0;
  const auto run = [&](const std::vector<std::string>& jobs, const Combination& c) {
    const absl::Time start = absl::Now();
    std::vector<Bits> bits = matrix.Run(jobs, c);
    return std::pair(std::move(bits), absl::ToDoubleSeconds(absl::Now() - start));
  };
  // The other job alone, for what it must come to in every pass that it shares.
  Combination c;
  c.placement = Placements(shape.model.layers).front();
  {
    auto [bits, seconds] = run({kOther}, c);
    ASSERT_FALSE(bits.empty());
    Tell(c, bits[0], "the other job alone", matrix.arena_gb(), seconds);
    other_reference = bits[0];
  }
  for (const Placement& placement : Placements(shape.model.layers)) {
    for (const bool with_other : {false, true}) {
      for (const How how : {How::kFirst, How::kAgain, How::kKilled}) {
        c = {placement, with_other, how};
        SCOPED_TRACE(c.Text());
        const std::vector<std::string> jobs =
            with_other ? std::vector<std::string>{kJob, kOther} : std::vector<std::string>{kJob};
        auto [bits, seconds] = run(jobs, c);
        ++runs;
        if (bits.empty()) {
          std::printf("%s | FAILED\n", c.Text().c_str());
          continue;
        }
        if (!reference.has_value()) reference = bits[0];
        std::string verdict = Difference(*reference, bits[0]);
        if (with_other && verdict == "same" && bits[1].hash != other_reference->hash) {
          verdict = absl::StrCat("the other job ", Difference(*other_reference, bits[1]));
        }
        EXPECT_EQ(verdict, "same");
        same += verdict == "same" ? 1 : 0;
        Tell(c, bits[0], verdict, matrix.arena_gb(), seconds);
      }
    }
  }
  ASSERT_TRUE(reference.has_value());
  // And it can fail.
  c = {Placements(shape.model.layers).front(), false, How::kFirst, kSeed + 1};
  auto [bits, seconds] = run({kJob}, c);
  ASSERT_FALSE(bits.empty());
  EXPECT_NE(bits[0].hash, reference->hash);
  Tell(c, bits[0], "another seed: must differ", matrix.arena_gb(), seconds);
  std::printf("# %s: %d of %d runs the same, %.1f s", shape.name.c_str(), same, runs,
              absl::ToDoubleSeconds(absl::Now() - begin));
  if (shape.predicted_seconds > 0) std::printf(", predicted %.0f s", shape.predicted_seconds);
  std::printf("\n");
}

TEST(SameBitsMatrix, Wide) { RunMatrix(WideMatrixShape()); }
TEST(SameBitsMatrix, Deep) { RunMatrix(DeepMatrixShape()); }

}  // namespace
}  // namespace soup::bench
