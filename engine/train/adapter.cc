#include "engine/train/adapter.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
std::string PeftTensorName(int64_t layer, Module module, LoraPart part) {
  return absl::StrCat("base_model.model.model.layers.", layer, ".", ModulePath(module), ".lora_",
                      part == LoraPart::kA ? "A" : "B", ".weight");
}

absl::StatusOr<AdapterLayout> AdapterLayout::Create(const ModelSpec& model, const LoraShape& lora) {
  if (lora.r < 1) {
    return absl::InvalidArgumentError(absl::StrCat("lora.r is ", lora.r, "; a rank is at least 1"));
  }
  if (lora.targets.empty()) {
    return absl::InvalidArgumentError("lora.targets is empty; name modules, or all-linear");
  }
  AdapterLayout layout;
  layout.r_ = lora.r;
  layout.targets_ = lora.targets;
  std::sort(layout.targets_.begin(), layout.targets_.end());
  for (const Module m : layout.targets_) {
    if (HasModule(model, m)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "lora.targets names ", ModuleName(m), ", which adapters of this ", model.family,
        " model cannot have; it has ", ModuleNames(AdaptableModules(model))));
  }
  for (size_t i = 1; i < layout.targets_.size(); ++i) {
    if (layout.targets_[i] == layout.targets_[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat("lora.targets names ", ModuleName(layout.targets_[i]), " twice"));
    }
  }
  layout.MakeLayerOrder();
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    for (const auto& [module, part] : layout.layer_order_) {
      AdapterTensor t;
      t.layer = layer;
      t.module = module;
      t.part = part;
      t.offset = layout.elements_;
      t.rows = part == LoraPart::kA ? lora.r : ModuleOutput(model, module);
      t.cols = part == LoraPart::kA ? ModuleInput(model, module) : lora.r;
      t.name = PeftTensorName(layer, module, part);
      layout.elements_ += t.elements();
      layout.tensors_.push_back(std::move(t));
    }
  }
  return layout;
}

void AdapterLayout::MakeLayerOrder() {
  place_.fill(-1);
  place_b_.fill(-1);
  for (int g = 0; g < kGroups; ++g) {
    for (const LoraPart part : {LoraPart::kA, LoraPart::kB}) {
      for (const Module m : targets_) {
        if (ModuleGroup(m) != static_cast<Group>(g)) continue;
        (part == LoraPart::kA ? place_ : place_b_)[static_cast<size_t>(m)] =
            static_cast<int32_t>(layer_order_.size());
        layer_order_.emplace_back(m, part);
      }
    }
  }
}

const AdapterTensor& AdapterLayout::tensor(int64_t layer, Module module, LoraPart part) const {
  const int32_t place = (part == LoraPart::kA ? place_ : place_b_)[static_cast<size_t>(module)];
  SOUP_CHECK(place >= 0);
  const int64_t index = layer * static_cast<int64_t>(layer_order_.size()) + place;
  SOUP_CHECK(index >= 0 && index < static_cast<int64_t>(tensors_.size()));
  return tensors_[static_cast<size_t>(index)];
}

namespace {

// Whether the file holds the layout's tensors, in their shapes, and no others.
absl::Status CheckNamesAndShapes(const AdapterLayout& layout, const SafetensorsFile& file) {
  const std::string wanted = absl::StrCat("the job's adapter has rank ", layout.r(),
                                          " and targets ", ModuleNames(layout.targets()));
  for (const AdapterTensor& t : layout.tensors()) {
    const TensorInfo* info = file.Find(t.name);
    if (info == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": tensor ", t.name, " is missing; ", wanted));
    }
    if (info->shape != std::vector<int64_t>{t.rows, t.cols}) {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", t.name,
                                                     " has shape ", info->ShapeText(), ", not [",
                                                     t.rows, ", ", t.cols, "]; ", wanted));
    }
  }
  if (file.tensors().size() == layout.tensors().size()) return absl::OkStatus();
  for (const TensorInfo& info : file.tensors()) {
    const auto known = [&info](const AdapterTensor& t) { return t.name == info.name; };
    if (std::none_of(layout.tensors().begin(), layout.tensors().end(), known)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": tensor ", info.name, " has no place; ", wanted));
    }
  }
  return absl::OkStatus();
}

bool IsFinite(absl::Span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Calls take(tensor, values) for each of the layout, in its order.
template <typename Take>
absl::Status ReadAdapter(const AdapterLayout& layout, const SafetensorsFile& file,
                         const Take& take) {
  SOUP_RETURN_IF_ERROR(CheckNamesAndShapes(layout, file));
  for (const AdapterTensor& t : layout.tensors()) {
    SOUP_ASSIGN_OR_RETURN(const std::vector<float> values, file.ReadF32(t.name));
    if (!IsFinite(values)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": tensor ", t.name, " holds a NaN or an infinity"));
    }
    take(t, values);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<float>> LoadAdapterWeights(const AdapterLayout& layout,
                                                      const SafetensorsFile& file) {
  std::vector<float> weights(static_cast<size_t>(layout.elements()));
  SOUP_RETURN_IF_ERROR(ReadAdapter(
      layout, file, [&weights](const AdapterTensor& t, const std::vector<float>& values) {
        std::copy(values.begin(), values.end(), weights.begin() + t.offset);
      }));
  return weights;
}

absl::Status CheckAdapterWeights(const AdapterLayout& layout, const SafetensorsFile& file) {
  return ReadAdapter(layout, file, [](const AdapterTensor&, const std::vector<float>&) {});
}

std::string FirstNonFinite(const AdapterLayout& layout, absl::Span<const float> vector) {
  for (const AdapterTensor& t : layout.tensors()) {
    if (!IsFinite(layout.Slice(vector, t))) return t.name;
  }
  return "";
}

}  // namespace soup::engine
