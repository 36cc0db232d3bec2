// One folder of golden data (tests/golden/README.md) as the trainer takes it: records, prescribed
// runs, reference values. For golden_check and the tests of the trainer.
#ifndef SOUP_TESTS_ENGINE_TRAIN_GOLDEN_CASE_H_
#define SOUP_TESTS_ENGINE_TRAIN_GOLDEN_CASE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/slab_assembler.h"
#include "engine/data/dataset.h"
#include "engine/io/safetensors_reader.h"
#include "engine/plan/job_plan.h"
#include "engine/train/model_base.h"
#include "engine/train/trainer.h"

namespace soup::engine {

inline constexpr const char* kGoldenBatches[] = {"full", "masked"};

// Borrows the slabs of `memory`.
ModelBase BorrowBase(const cache::MemoryBase& memory);

// This host as a machine of the CPU backend.
MachineProfile CpuProfile();

struct GoldenCase {
  std::string folder;
  LoraShape lora;
  LoraConfig lora_config;
  std::map<std::string, std::vector<TokenRecord>> records;  // by batch
  std::map<std::string, double> losses;                     // "base_loss.full" ...
  std::vector<double> train_losses;                         // of the 8 steps
  std::vector<double> train_norms;
  MachineProfile profile = CpuProfile();   // of the jobs' numeric plans
  Precision precision = Precision::kAuto;  // that the jobs ask for
  std::unique_ptr<SafetensorsFile> golden;
  std::unique_ptr<SafetensorsFile> after;

  static absl::StatusOr<std::unique_ptr<GoldenCase>> Load(const std::string& folder);

  // A job of the batch's records, for training and validation alike: one step. Without the golden
  // adapter LoRA is fresh, B zero: the base itself.
  absl::StatusOr<JobSetup> BatchJob(const ModelBase& base, const std::string& job_id,
                                    const std::string& batch, bool with_adapter,
                                    int32_t records_a_micro_batch) const;
  // The 8 steps: full, masked, full, ...
  absl::StatusOr<JobSetup> TrainJob(const ModelBase& base, const std::string& job_id,
                                    int32_t records_a_micro_batch) const;
};

// Consecutive records in micro-batches of at most `records_a_micro_batch` (0: all in one).
std::vector<MicroBatch> CutRecords(const std::vector<TokenRecord>& records, int32_t first,
                                   int32_t records_a_micro_batch);

// Finishes a setup whose shape has its lengths: the numeric plan.
absl::Status PlanFor(const MachineProfile& profile, JobSetup& setup);
absl::Status PlanForCpu(JobSetup& setup);

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_TRAIN_GOLDEN_CASE_H_
