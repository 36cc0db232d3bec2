// What tests of the trainer share: a tiny base, jobs of random records, runs to the end.
#ifndef SOUP_TESTS_ENGINE_TRAIN_TRAINER_FIXTURE_H_
#define SOUP_TESTS_ENGINE_TRAIN_TRAINER_FIXTURE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/slab_assembler.h"
#include "engine/device/cpu_backend.h"
#include "engine/train/trainer.h"
#include "tests/engine/train/golden_case.h"

namespace soup::engine {

// A tiny model of tests/golden, assembled once a process and format.
const cache::MemoryBase& TinyMemory(BaseFormat format = BaseFormat::kBf16,
                                    const std::string& model = "llama");
// `layers` > 0: so many of them, the model's own one after the other and again.
ModelBase TinyBase(BaseFormat format = BaseFormat::kBf16, int64_t layers = 0,
                   const std::string& model = "llama");

struct RandomJob {
  std::string id = "a";
  uint64_t seed = 1;
  int32_t records = 20;
  int32_t validation_records = 0;
  int32_t longest = 30;
  int32_t batch_size = 5;
  double epochs = 2;  // 20 records, 5 a step, 2 epochs: 8 steps
  int32_t r = 4;
  double alpha = 8;
  double dropout = 0;
  bool rslora = false;
  std::vector<Module> targets = {Module::kQ,    Module::kK,  Module::kV,   Module::kO,
                                 Module::kGate, Module::kUp, Module::kDown};
  int32_t first_token = 0;  // ids are drawn from here up
  // Small, so that a step has several micro-batches.
  int64_t micro_batch_tokens = 64;
  BaseFormat format = BaseFormat::kBf16;
  int64_t layers = 0;           // as TinyBase's
  std::string model = "llama";  // of tests/golden
  // Where the profile is a card's. Models of real size run in bf16 there; these are so tiny that
  // auto would not.
  Precision cuda_precision = Precision::kBf16;
};
JobSetup MakeJob(const RandomJob& job, const MachineProfile& profile = CpuProfile());

// A trainer with its backend; members in order of construction.
struct Engine {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Trainer> trainer;
};
Engine MakeEngine(const ModelBase& base, const CpuBackendOptions& backend = {},
                  const TrainerOptions& options = {});

// Runs a job's next step in passes of `micro_batches` items each (< 0: one pass). Checks that plan
// and arena agree and that nothing faulted.
StepStats RunStep(Trainer& trainer, const std::string& job, int64_t step,
                  const Placement& placement, int32_t micro_batches = -1);
// The same until `last_step`, from the step after `steps_done`.
void RunSteps(Trainer& trainer, const std::string& job, int64_t first_step, int64_t last_step,
              const Placement& placement, int32_t micro_batches = -1);
AdapterSnapshot Snapshot(Trainer& trainer, const std::string& job);

// Equal to the bit: weights, moments, step counts. Gradients too when `gradients`.
bool SameBits(const AdapterSnapshot& a, const AdapterSnapshot& b, bool gradients = true);

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_TRAIN_TRAINER_FIXTURE_H_
