#include "tests/engine/train/golden_case.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "kernels/cpu/context.h"

namespace soup::engine {
namespace {

constexpr double kLearningRate = 1e-2;  // tests/golden/README.md
constexpr double kWeightDecay = 0.01;
constexpr int64_t kIgnored = -100;

absl::StatusOr<nlohmann::json> ReadJson(const std::string& path) {
  SOUP_ASSIGN_OR_RETURN(const std::string text, RealFileSystem().ReadFile(path));
  nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return j;
}

// Names that the model has no module of match nothing, as in peft.
absl::Status ReadAdapterConfig(GoldenCase& golden, const ModelSpec& spec) {
  SOUP_ASSIGN_OR_RETURN(const nlohmann::json j, ReadJson(golden.folder + "/adapter.json"));
  golden.lora.r = j.at("r").get<int32_t>();
  golden.lora_config.alpha = j.at("lora_alpha").get<double>();
  golden.lora_config.rslora = j.value("use_rslora", false);
  for (const auto& name : j.at("target_modules")) {
    SOUP_ASSIGN_OR_RETURN(const Module m, ParseModule(name.get<std::string>()));
    if (HasModule(spec, m)) golden.lora.targets.push_back(m);
  }
  std::sort(golden.lora.targets.begin(), golden.lora.targets.end());
  return absl::OkStatus();
}

absl::Status ReadReference(GoldenCase& golden) {
  SOUP_ASSIGN_OR_RETURN(const nlohmann::json j, ReadJson(golden.folder + "/golden.json"));
  for (const auto& [key, value] : j.items()) {
    if (value.is_number()) golden.losses[key] = value.get<double>();
  }
  for (const auto& step : j.at("train")) {
    golden.train_losses.push_back(step.at("loss").get<double>());
    golden.train_norms.push_back(step.at("grad_norm").get<double>());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenRecord>> ReadRecords(const SafetensorsFile& file,
                                                     const std::string& batch) {
  SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, file.ReadI64(batch + ".input_ids"));
  SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> labels, file.ReadI64(batch + ".labels"));
  SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, file.ReadI64(batch + ".lengths"));
  const int64_t width = static_cast<int64_t>(ids.size() / std::max<size_t>(lengths.size(), 1));
  std::vector<TokenRecord> records;
  for (size_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] > width) {
      return absl::InvalidArgumentError(absl::StrCat(batch, ": row ", row, " is too long"));
    }
    TokenRecord record;
    for (int64_t i = 0; i < lengths[row]; ++i) {
      const int64_t id = ids[row * width + i], label = labels[row * width + i];
      if (label != kIgnored && label != id) {
        return absl::InvalidArgumentError(
            absl::StrCat(batch, ": row ", row, " has a label that is not its token"));
      }
      record.ids.push_back(static_cast<int32_t>(id));
      record.supervised.push_back(label != kIgnored);
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

ModelBase BorrowBase(const cache::MemoryBase& memory) {
  ModelBase base;
  base.spec = memory.spec();
  base.format = memory.format();
  for (int64_t i = 0; i < memory.slabs(); ++i) {
    const absl::Span<const uint8_t> slab = memory.slab(i);
    base.slabs.emplace_back(reinterpret_cast<const std::byte*>(slab.data()), slab.size());
  }
  return base;
}

absl::StatusOr<std::unique_ptr<GoldenCase>> GoldenCase::Load(const std::string& folder) {
  auto golden = std::make_unique<GoldenCase>();
  golden->folder = folder;
  SOUP_ASSIGN_OR_RETURN(const std::string config,
                        RealFileSystem().ReadFile(folder + "/config.json"));
  SOUP_ASSIGN_OR_RETURN(const ModelSpec spec, ParseModelSpec(config));
  try {
    SOUP_RETURN_IF_ERROR(ReadAdapterConfig(*golden, spec));
    SOUP_RETURN_IF_ERROR(ReadReference(*golden));
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": ", e.what()));
  }
  SOUP_ASSIGN_OR_RETURN(golden->golden, SafetensorsFile::Open(folder + "/golden.safetensors"));
  SOUP_ASSIGN_OR_RETURN(golden->after,
                        SafetensorsFile::Open(folder + "/adapter_after8.safetensors"));
  for (const char* batch : kGoldenBatches) {
    SOUP_ASSIGN_OR_RETURN(golden->records[batch], ReadRecords(*golden->golden, batch));
  }
  return golden;
}

std::vector<MicroBatch> CutRecords(const std::vector<TokenRecord>& records, int32_t first,
                                   int32_t records_a_micro_batch) {
  std::vector<MicroBatch> cut;
  for (size_t i = 0; i < records.size(); ++i) {
    const bool full = !cut.empty() && records_a_micro_batch > 0 &&
                      static_cast<int32_t>(cut.back().records.size()) == records_a_micro_batch;
    if (cut.empty() || full) cut.emplace_back();
    cut.back().records.push_back(first + static_cast<int32_t>(i));
    cut.back().tokens += static_cast<int64_t>(records[i].ids.size());
  }
  return cut;
}

MachineProfile CpuProfile() {
  MachineProfile profile;
  profile.backend = "cpu";
  profile.cpu_threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  profile.blas_core = kernels::cpu::BlasCoreName();
  return profile;
}

absl::Status PlanFor(const MachineProfile& profile, JobSetup& setup) {
  SOUP_ASSIGN_OR_RETURN(setup.numeric, MakeNumericPlan(setup.shape, profile));
  return absl::OkStatus();
}

absl::Status PlanForCpu(JobSetup& setup) { return PlanFor(CpuProfile(), setup); }

absl::StatusOr<JobSetup> GoldenCase::BatchJob(const ModelBase& base, const std::string& job_id,
                                              const std::string& batch, bool with_adapter,
                                              int32_t records_a_micro_batch) const {
  JobSetup setup;
  setup.job_id = job_id;
  setup.shape.model = base.spec;
  setup.shape.format = base.format;
  setup.shape.lora = lora;
  setup.shape.batch.packing = true;
  setup.shape.precision = precision;
  setup.lora = lora_config;
  setup.training.weight_decay = kWeightDecay;
  const std::vector<TokenRecord>& rows = records.at(batch);
  setup.dataset = PreparedDataset::FromRecords(rows, rows);
  setup.shape.lengths = setup.dataset->TrainLengths();
  setup.shape.validation_lengths = setup.dataset->ValidationLengths();
  if (with_adapter) setup.init_adapter_path = folder + "/adapter_init.safetensors";
  auto run = std::make_shared<PrescribedRun>();
  run->steps = {CutRecords(rows, 0, records_a_micro_batch)};
  run->learning_rates = {kLearningRate};
  setup.prescribed = std::move(run);
  SOUP_RETURN_IF_ERROR(PlanFor(profile, setup));
  return setup;
}

absl::StatusOr<JobSetup> GoldenCase::TrainJob(const ModelBase& base, const std::string& job_id,
                                              int32_t records_a_micro_batch) const {
  SOUP_ASSIGN_OR_RETURN(JobSetup setup,
                        BatchJob(base, job_id, kGoldenBatches[0], true, records_a_micro_batch));
  std::vector<TokenRecord> all = records.at(kGoldenBatches[0]);
  const int32_t second = static_cast<int32_t>(all.size());
  const std::vector<TokenRecord>& masked = records.at(kGoldenBatches[1]);
  all.insert(all.end(), masked.begin(), masked.end());
  setup.dataset = PreparedDataset::FromRecords(all);
  setup.shape.lengths = setup.dataset->TrainLengths();
  setup.shape.validation_lengths.clear();
  auto run = std::make_shared<PrescribedRun>();
  for (size_t step = 0; step < train_losses.size(); ++step) {
    run->steps.push_back(step % 2 == 0
                             ? CutRecords(records.at(kGoldenBatches[0]), 0, records_a_micro_batch)
                             : CutRecords(masked, second, records_a_micro_batch));
    run->learning_rates.push_back(step == 0 ? kLearningRate / 2 : kLearningRate);
  }
  setup.prescribed = std::move(run);
  SOUP_RETURN_IF_ERROR(PlanFor(profile, setup));
  return setup;
}

}  // namespace soup::engine
