#include "engine/train/peft_export.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/io/safetensors_writer.h"
#include "engine/train/staged_directory.h"
#include "nlohmann/json.hpp"

namespace soup::engine {
namespace {

using nlohmann::json;

// 16, not 16.0: readers type it as an integer.
json Number(double x) {
  if (x == std::floor(x) && std::fabs(x) < 1e15) return static_cast<int64_t>(x);
  return x;
}

bool SomeBMoved(const AdapterLayout& layout, absl::Span<const float> weights,
                absl::Span<const float> initial) {
  for (const AdapterTensor& t : layout.tensors()) {
    if (t.part != LoraPart::kB) continue;
    for (int64_t i = t.offset; i < t.offset + t.elements(); ++i) {
      const float before = initial.empty() ? 0.0f : initial[static_cast<size_t>(i)];
      if (weights[static_cast<size_t>(i)] != before) return true;
    }
  }
  return false;
}

}  // namespace

std::string PeftConfigJson(const AdapterLayout& layout, const PeftConfig& config) {
  json targets = json::array();
  for (Module m : layout.targets()) targets.push_back(ModuleName(m));
  json j;
  j["peft_type"] = "LORA";
  j["task_type"] = "CAUSAL_LM";
  j["base_model_name_or_path"] = config.base_model_name;
  j["r"] = layout.r();
  j["lora_alpha"] = Number(config.alpha);
  j["use_rslora"] = config.rslora;
  j["target_modules"] = std::move(targets);
  j["lora_dropout"] = config.dropout;
  j["bias"] = "none";
  j["fan_in_fan_out"] = false;
  j["inference_mode"] = true;
  // What the adapter does not use; some readers ask for it by name.
  j["use_dora"] = false;
  j["modules_to_save"] = nullptr;
  j["rank_pattern"] = json::object();
  j["alpha_pattern"] = json::object();
  return j.dump(2) + "\n";
}

absl::Status ExportPeftAdapter(FileSystem& fs, const std::string& directory,
                               const AdapterLayout& layout, absl::Span<const float> weights,
                               absl::Span<const float> initial, const PeftConfig& config) {
  if (static_cast<int64_t>(weights.size()) != layout.elements() ||
      (!initial.empty() && initial.size() != weights.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the adapter has ", layout.elements(),
                                                   " elements, the weights ", weights.size()));
  }
  if (config.base_model_name.empty()) {
    return absl::InvalidArgumentError("an adapter's config needs the base model's name");
  }
  if (const std::string bad = FirstNonFinite(layout, weights); !bad.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the adapter is not exported: ", bad,
                     " holds a NaN or an infinity; lower the learning rate or look at the data"));
  }
  if (!SomeBMoved(layout, weights, initial)) {
    return absl::FailedPreconditionError(
        "the adapter is not exported: it is inert, as no lora_B has moved from where it began; "
        "raise the learning rate or the number of steps");
  }
  std::vector<TensorToWrite> tensors;
  for (const AdapterTensor& t : layout.tensors()) {
    tensors.push_back({t.name, DType::kF32, {t.rows, t.cols}, AsBytes(layout.Slice(weights, t))});
  }
  SOUP_ASSIGN_OR_RETURN(const std::string bytes, SerializeSafetensors(tensors));
  SOUP_ASSIGN_OR_RETURN(const auto staged, StagedDirectory::Create(fs, directory));
  SOUP_RETURN_IF_ERROR(staged->WriteFile("adapter_model.safetensors", bytes));
  SOUP_RETURN_IF_ERROR(staged->WriteFile("adapter_config.json", PeftConfigJson(layout, config)));
  return staged->Publish();
}

}  // namespace soup::engine
