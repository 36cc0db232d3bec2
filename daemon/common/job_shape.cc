#include "daemon/common/job_shape.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {

absl::StatusOr<engine::BaseFormat> FormatOf(const soup::v1::BaseSpec& base) {
  if (base.format() == "bf16") {
    if (base.double_quant())
      return absl::InvalidArgumentError("base.double_quant goes with base.format nf4 only");
    return engine::BaseFormat::kBf16;
  }
  if (base.format() == "nf4")
    return base.double_quant() ? engine::BaseFormat::kNf4DoubleQuant : engine::BaseFormat::kNf4;
  return absl::InvalidArgumentError(
      absl::StrCat("base.format \"", base.format(), "\" is not known; use bf16 or nf4"));
}

absl::StatusOr<engine::LoraShape> LoraShapeOf(const soup::v1::LoraSpec& lora,
                                              const engine::ModelSpec& model) {
  engine::LoraShape shape;
  if (lora.r() < 1)
    return absl::InvalidArgumentError(absl::StrCat("lora.r is ", lora.r(), "; use 1 or more"));
  shape.r = lora.r();
  shape.dropout = lora.dropout() > 0;
  for (const std::string& target : lora.targets()) {
    if (target == "all-linear") {
      for (const engine::Module m : engine::AdaptableModules(model)) shape.targets.push_back(m);
      continue;
    }
    SOUP_ASSIGN_OR_RETURN(const engine::Module module, engine::ParseModule(target));
    if (!engine::HasModule(model, module)) {
      return absl::InvalidArgumentError(
          absl::StrCat("lora.targets names ", target, ", which adapters of this ", model.family,
                       " model cannot have; use all-linear or some of ",
                       engine::ModuleNames(engine::AdaptableModules(model))));
    }
    shape.targets.push_back(module);
  }
  std::sort(shape.targets.begin(), shape.targets.end());
  shape.targets.erase(std::unique(shape.targets.begin(), shape.targets.end()), shape.targets.end());
  if (shape.targets.empty())
    return absl::InvalidArgumentError("lora.targets is empty; use all-linear or module names");
  return shape;
}

absl::StatusOr<engine::Precision> PrecisionOf(const soup::v1::TrainingSpec& training) {
  // Jobs that were submitted before there was a choice say nothing.
  if (training.precision().empty()) return engine::Precision::kAuto;
  return engine::ParsePrecision(training.precision());
}

engine::BatchParams BatchParamsOf(const soup::v1::JobSpec& spec) {
  engine::BatchParams batch;
  batch.epochs = spec.training().epochs();
  batch.max_steps = spec.training().max_steps();
  batch.batch_size = spec.training().batch_size();
  batch.packing = spec.data().packing();
  batch.seed = spec.training().seed();
  return batch;
}

absl::StatusOr<engine::JobShape> JobShapeOf(const soup::v1::JobSpec& spec,
                                            const engine::ModelSpec& model,
                                            std::vector<int32_t> lengths,
                                            std::vector<int32_t> validation_lengths) {
  engine::JobShape shape;
  shape.model = model;
  SOUP_ASSIGN_OR_RETURN(shape.format, FormatOf(spec.base()));
  SOUP_ASSIGN_OR_RETURN(shape.lora, LoraShapeOf(spec.lora(), model));
  shape.lengths = std::move(lengths);
  shape.validation_lengths = std::move(validation_lengths);
  shape.batch = BatchParamsOf(spec);
  shape.max_length = spec.data().max_length();
  SOUP_ASSIGN_OR_RETURN(shape.precision, PrecisionOf(spec.training()));
  return shape;
}

}  // namespace soup::daemon
