// golden_check DIR: holds the engine against one folder of golden data (tests/golden/README.md).
//
//   golden_check DIR [--backend cpu|cuda] [--precision auto|bf16|fp32] [--slots N] [--resident N]
//                    [--retention keep|recompute] [--placement TEXT] [--or-skip] [--format bf16]
//                    [--records N] [--relayout] [--round] [--gemm-profile FILE] [--export DIR]
//
// The precision is a job's (training.precision): by default fp32 on CUDA too, where the model of
// the folder is tiny or has experts. The limits there are those of bf16 in either.
//
// With a profile the products run by algorithms timed here, or kept there; without, by the
// library's first choice.
//
// A line a check, `name measured limit PASS|FAIL`; exit 1 on any FAIL, 2 when the check could not
// be made (an unsupported family, a missing file).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu_backend.h"
#include "engine/device/cuda_backend.h"
#include "engine/train/adapter.h"
#include "engine/train/peft_export.h"
#include "tests/engine/train/golden_case.h"
#include "tests/engine/train/rounding_backend.h"

namespace soup::engine {
namespace {

constexpr int kSkipped = 77;

// Relative; what each is for: docs/NUMERICS.md.
struct Limits {
  double loss, logits, gradient, train_loss, train_norm, adapter;
};
constexpr Limits kFp32 = {2e-5, 1e-5, 1e-4, 1e-4, 1e-4, 1e-3};
// bf16 activations and operands: 2^-9 a rounding.
constexpr Limits kBf16 = {5e-3, 2e-2, 3e-2, 5e-3, 3e-2, 1e-1};

struct Options {
  std::string folder;
  std::string base;  // empty: the folder
  std::string backend = "cpu";
  std::string format = "bf16";
  std::string precision = "auto";
  std::string gemm_profile;
  std::string retention = "recompute";
  std::string placement;
  int32_t slots = 2;
  int32_t resident = 0;
  int32_t records = 0;
  bool relayout = false;
  bool head_resident = false;
  bool or_skip = false;
  bool round = false;
  std::string export_to;
};

double RelativeL2(absl::Span<const float> x, absl::Span<const float> reference) {
  if (x.size() != reference.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(reference[i]);
    difference += d * d;
    norm += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

double Relative(double x, double reference) {
  return std::abs(x - reference) / std::max(std::abs(reference), 1e-300);
}

class Checker {
 public:
  Checker(const GoldenCase& golden, Trainer* trainer, const ModelBase& base, const Options& options,
          const Placement& placement)
      : golden_(golden),
        trainer_(*trainer),
        base_(base),
        options_(options),
        limits_(options.backend == "cuda" || options.round ? kBf16 : kFp32),
        placement_(placement) {}

  absl::Status Run() {
    for (const char* batch : kGoldenBatches) {
      SOUP_RETURN_IF_ERROR(CheckBase(batch));
      SOUP_RETURN_IF_ERROR(CheckAdapter(batch));
    }
    SOUP_RETURN_IF_ERROR(CheckTraining());
    // RunPass itself fails when a pass leaves its plan; this line shows the largest.
    Line("arena.planned_minus_measured", static_cast<double>(planned_ - measured_), 0);
    std::printf("# arena planned %lld measured %lld bytes, %lld passes\n",
                static_cast<long long>(planned_), static_cast<long long>(measured_),
                static_cast<long long>(passes_));
    return absl::OkStatus();
  }
  bool failed() const { return failed_; }

 private:
  void Line(const std::string& name, double measured, double limit) {
    const bool pass = measured <= limit;  // false for NaN
    failed_ |= !pass;
    std::printf("%s %.3e %.1e %s\n", name.c_str(), measured, limit, pass ? "PASS" : "FAIL");
  }

  absl::StatusOr<PassResult> Pass(const std::string& job, int64_t step, bool score) {
    PassRequest request;
    request.placement = placement_;
    request.items.push_back({job, step, 0, -1, score});
    SOUP_ASSIGN_OR_RETURN(PassResult result, trainer_.RunPass(request));
    for (const JobFaultInfo& fault : result.faults) return fault.status;
    planned_ = std::max(planned_, result.arena_planned_bytes);
    measured_ = std::max(measured_, result.arena_measured_bytes);
    ++passes_;
    return result;
  }

  absl::Status CheckLogits(const std::string& job, const std::string& batch,
                           const std::string& name) {
    MicroBatch all;
    for (const MicroBatch& m : CutRecords(golden_.records.at(batch), 0, 0)) all = m;
    SOUP_ASSIGN_OR_RETURN(const std::vector<float> logits, trainer_.Logits(job, all, placement_));
    SOUP_ASSIGN_OR_RETURN(const std::vector<float> reference, golden_.golden->ReadF32(name));
    Line(name, RelativeL2(logits, reference), limits_.logits);
    return absl::OkStatus();
  }

  absl::Status CheckScore(const std::string& job, const std::string& batch,
                          const std::string& name) {
    SOUP_ASSIGN_OR_RETURN(const PassResult result, Pass(job, 0, true));
    if (result.validations.size() != 1) return absl::InternalError("no validation came back");
    Line(name, Relative(result.validations[0].loss, golden_.losses.at(name)), limits_.loss);
    return absl::OkStatus();
  }

  absl::Status CheckBase(const std::string& batch) {
    const std::string job = absl::StrCat("base-", batch);
    SOUP_ASSIGN_OR_RETURN(JobSetup setup,
                          golden_.BatchJob(base_, job, batch, false, options_.records));
    SOUP_RETURN_IF_ERROR(trainer_.OpenJob(std::move(setup)).status());
    SOUP_RETURN_IF_ERROR(CheckScore(job, batch, absl::StrCat("base_loss.", batch)));
    SOUP_RETURN_IF_ERROR(CheckLogits(job, batch, absl::StrCat("base_logits.", batch)));
    return trainer_.CloseJob(job);
  }

  absl::Status CheckAdapter(const std::string& batch) {
    const std::string job = absl::StrCat("lora-", batch);
    SOUP_ASSIGN_OR_RETURN(JobSetup setup,
                          golden_.BatchJob(base_, job, batch, true, options_.records));
    SOUP_RETURN_IF_ERROR(trainer_.OpenJob(std::move(setup)).status());
    const std::string loss = absl::StrCat("lora_loss.", batch);
    SOUP_RETURN_IF_ERROR(CheckScore(job, batch, loss));
    SOUP_RETURN_IF_ERROR(CheckLogits(job, batch, absl::StrCat("lora_logits.", batch)));
    SOUP_ASSIGN_OR_RETURN(const PassResult result, Pass(job, 1, false));
    if (result.steps.size() != 1) return absl::InternalError("no step came back");
    Line(absl::StrCat(loss, ".train"), Relative(result.steps[0].loss, golden_.losses.at(loss)),
         limits_.loss);
    SOUP_ASSIGN_OR_RETURN(const AdapterSnapshot snapshot, trainer_.AdapterState(job));
    SOUP_ASSIGN_OR_RETURN(const AdapterLayout layout,
                          AdapterLayout::Create(base_.spec, golden_.lora));
    for (const AdapterTensor& t : layout.tensors()) {
      const std::string name = absl::StrCat("grad.", batch, ".", t.name);
      SOUP_ASSIGN_OR_RETURN(const std::vector<float> reference, golden_.golden->ReadF32(name));
      Line(name, RelativeL2(layout.Slice(snapshot.gradients, t), reference), limits_.gradient);
    }
    return trainer_.CloseJob(job);
  }

  absl::Status CheckTraining() {
    SOUP_ASSIGN_OR_RETURN(JobSetup setup, golden_.TrainJob(base_, "train", options_.records));
    SOUP_RETURN_IF_ERROR(trainer_.OpenJob(std::move(setup)).status());
    for (size_t i = 0; i < golden_.train_losses.size(); ++i) {
      SOUP_ASSIGN_OR_RETURN(const PassResult result,
                            Pass("train", static_cast<int64_t>(i) + 1, false));
      if (result.steps.size() != 1) return absl::InternalError("no step came back");
      const StepStats& step = result.steps[0];
      Line(absl::StrCat("train.", i + 1, ".loss"), Relative(step.loss, golden_.train_losses[i]),
           limits_.train_loss);
      Line(absl::StrCat("train.", i + 1, ".grad_norm"),
           Relative(step.grad_norm, golden_.train_norms[i]), limits_.train_norm);
    }
    SOUP_ASSIGN_OR_RETURN(const AdapterSnapshot snapshot, trainer_.AdapterState("train"));
    SOUP_ASSIGN_OR_RETURN(const AdapterLayout layout,
                          AdapterLayout::Create(base_.spec, golden_.lora));
    SOUP_ASSIGN_OR_RETURN(const std::vector<float> reference,
                          LoadAdapterWeights(layout, *golden_.after));
    Line("adapter_after8", RelativeL2(snapshot.weights, reference), limits_.adapter);
    return trainer_.CloseJob("train");
  }

  const GoldenCase& golden_;
  Trainer& trainer_;
  const ModelBase& base_;
  const Options& options_;
  const Limits limits_;
  const Placement placement_;
  bool failed_ = false;
  int64_t planned_ = 0;
  int64_t measured_ = 0;
  int64_t passes_ = 0;
};

// No device: with --or-skip the program ends here as a skipped test.
absl::Status SkipOr(const Options& options, const absl::Status& why) {
  const char* required = std::getenv("SOUP_REQUIRE_GPU");
  if (!options.or_skip || (required != nullptr && std::strcmp(required, "1") == 0)) return why;
  std::printf("skipped: %s\n", std::string(why.message()).c_str());
  std::exit(kSkipped);
}

// The folder's adapter in PEFT's form: for check_peft.py.
absl::Status Export(const Options& options) {
  SOUP_ASSIGN_OR_RETURN(const std::string config,
                        RealFileSystem().ReadFile(options.folder + "/config.json"));
  SOUP_ASSIGN_OR_RETURN(const ModelSpec spec, ParseModelSpec(config));
  SOUP_ASSIGN_OR_RETURN(const std::unique_ptr<GoldenCase> golden, GoldenCase::Load(options.folder));
  SOUP_ASSIGN_OR_RETURN(const AdapterLayout layout, AdapterLayout::Create(spec, golden->lora));
  SOUP_ASSIGN_OR_RETURN(const auto file,
                        SafetensorsFile::Open(options.folder + "/adapter_init.safetensors"));
  SOUP_ASSIGN_OR_RETURN(const std::vector<float> weights, LoadAdapterWeights(layout, *file));
  PeftConfig peft;
  peft.base_model_name = options.folder;
  peft.alpha = golden->lora_config.alpha;
  peft.rslora = golden->lora_config.rslora;
  return ExportPeftAdapter(RealFileSystem(), options.export_to, layout, weights, {}, peft);
}

absl::StatusOr<bool> CheckFolder(const Options& options) {
  if (!options.export_to.empty()) {
    SOUP_RETURN_IF_ERROR(Export(options));
    return true;
  }
  if (options.round && options.backend != "cpu") {
    return absl::InvalidArgumentError("--round is of the cpu backend; cuda rounds by itself");
  }
  if (options.backend != "cpu" && options.backend != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("backend ", options.backend, " is not known; use cpu or cuda"));
  }
  SOUP_ASSIGN_OR_RETURN(const BaseFormat format, ParseBaseFormat(options.format));
  SOUP_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options.precision));
  if (options.round && precision != Precision::kAuto) {
    return absl::InvalidArgumentError("--round is bf16 by itself; leave --precision out");
  }
  SOUP_ASSIGN_OR_RETURN(const cache::MemoryBase memory,
                        cache::MemoryBase::Assemble(
                            options.base.empty() ? options.folder : options.base, {}, format));
  const ModelBase base = BorrowBase(memory);
  SOUP_ASSIGN_OR_RETURN(std::unique_ptr<GoldenCase> golden, GoldenCase::Load(options.folder));
  golden->precision = precision;
  SOUP_ASSIGN_OR_RETURN(const PrecisionChoice choice,
                        ChoosePrecision(precision, base.spec, options.backend));
  Placement placement;
  const int32_t layers = static_cast<int32_t>(base.spec.layers);
  placement.slots = options.slots == 0 ? layers : std::min(options.slots, layers);
  placement.resident_layers = std::min(options.resident, layers);
  // Resident layers lie in slots of their own, beside a ring of two.
  if (placement.resident_layers > 0) {
    placement.slots = std::max(placement.slots, std::min(layers, placement.resident_layers + 2));
  }
  placement.head_resident = options.head_resident;
  SOUP_RETURN_IF_ERROR(ParseRetention(options.retention, &placement));
  if (!options.placement.empty()) {
    SOUP_ASSIGN_OR_RETURN(placement, ParsePlacement(options.placement));
  }
  std::unique_ptr<Backend> backend;
  int64_t free_before = 0;
  if (options.backend == "cuda") {
    CudaBackendOptions cuda_options;
    cuda_options.gemm_profile_path = options.gemm_profile;
    cuda_options.heuristic_gemms = options.gemm_profile.empty();
    absl::StatusOr<CudaBackend> made = MakeCudaBackend(cuda_options);
    if (!made.ok()) return SkipOr(options, made.status());
    CudaBackend cuda = *std::move(made);
    golden->profile = cuda.profile;
    backend = std::move(cuda.backend);
    SOUP_ASSIGN_OR_RETURN(free_before, CudaFreeDeviceBytes());
    std::printf("# %s\n", cuda.profile.ToText().c_str());
  } else {
    backend = MakeCpuBackend();
  }
  std::unique_ptr<Backend> exact;
  if (options.round) {
    exact = std::move(backend);
    backend = std::make_unique<RoundingBackend>(exact.get());
  }
  TrainerOptions trainer_options;
  trainer_options.always_relayout = options.relayout;
  SOUP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                        Trainer::Create(backend.get(), base, trainer_options));
  std::printf("# activations %s (%s)%s\n", PrecisionName(choice.precision), choice.why.c_str(),
              options.round ? ", rounded to bf16" : "");
  Checker checker(*golden, trainer.get(), base, options, placement);
  SOUP_RETURN_IF_ERROR(checker.Run());
  if (options.backend == "cuda") {
    SOUP_ASSIGN_OR_RETURN(const int64_t free_after, CudaFreeDeviceBytes());
    const BackendCounters c = backend->counters();
    std::printf("# device bytes taken since the start, arena given back: %lld\n",
                static_cast<long long>(free_before - free_after));
    std::printf("# copied %lld bytes in %.6f s, stalled %.6f s\n",
                static_cast<long long>(c.copy_bytes), c.copy_busy_seconds, c.stall_seconds);
  }
  return !checker.failed();
}

}  // namespace
}  // namespace soup::engine

int main(int argc, char** argv) {
  soup::engine::Options options;
  CLI::App app("Holds the engine against one folder of golden data");
  app.add_option("dir", options.folder, "Folder of golden data")->required();
  app.add_option("--base", options.base, "The base's weights, instead of the folder's: a .gguf");
  app.add_option("--backend", options.backend, "cpu or cuda");
  app.add_option("--gemm-profile", options.gemm_profile, "file of GEMM algorithms (cuda)");
  app.add_option("--format", options.format, "Storage of the base: bf16");
  app.add_option("--precision", options.precision,
                 "Activations, as training.precision of a job: auto, bf16 (cuda) or fp32");
  app.add_option("--slots", options.slots, "Slots; 0 or more than the layers: every layer");
  app.add_option("--resident", options.resident, "Layers that keep their slot");
  app.add_option("--retention", options.retention, "keep or recompute");
  app.add_option("--placement", options.placement,
                 "A whole placement (engine/plan/placement.h) instead of the four above");
  app.add_option("--records", options.records, "Records a micro-batch; 0: all in one");
  app.add_flag("--relayout", options.relayout, "Lay the arena out anew in every pass");
  app.add_flag("--head-resident", options.head_resident, "Keep the head on the device");
  app.add_option("--export", options.export_to,
                 "Only write the folder's adapter in PEFT's form to this new folder");
  app.add_flag("--round", options.round,
               "cpu: round to bf16 what the CUDA backend stores so, and hold it to its limits");
  app.add_flag("--or-skip", options.or_skip,
               "Exit with 77 where there is no device, unless SOUP_REQUIRE_GPU=1");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<bool> passed = soup::engine::CheckFolder(options);
  if (!passed.ok()) {
    std::fprintf(stderr, "golden_check: %s: %s\n", options.folder.c_str(),
                 std::string(passed.status().message()).c_str());
    return 2;
  }
  return *passed ? 0 : 1;
}
