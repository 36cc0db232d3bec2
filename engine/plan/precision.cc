#include "engine/plan/precision.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace soup::engine {
namespace {

std::string WhyAuto(const ModelSpec& model) {
  if (model.has_sparse_layers()) return "auto: the model has experts";
  const bool tiny = model.hidden <= kTinyHidden;
  return absl::StrCat("auto: hidden size ", model.hidden, tiny ? " is at most " : " is above ",
                      kTinyHidden, tiny ? "" : ", no experts");
}

}  // namespace

const char* PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kAuto:
      return "auto";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp32:
      return "fp32";
  }
  return "?";
}

absl::StatusOr<Precision> ParsePrecision(absl::string_view name) {
  for (const Precision p : {Precision::kAuto, Precision::kBf16, Precision::kFp32}) {
    if (name == PrecisionName(p)) return p;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("precision \"", name, "\" is not known; use auto, bf16 or fp32"));
}

bool AutoPrecisionIsFp32(const ModelSpec& model) {
  return model.has_sparse_layers() || model.hidden <= kTinyHidden;
}

absl::StatusOr<PrecisionChoice> ChoosePrecision(Precision asked, const ModelSpec& model,
                                                absl::string_view backend) {
  if (backend == "cpu") {
    if (asked != Precision::kBf16) {
      return PrecisionChoice{Precision::kFp32, "the CPU backend has no other"};
    }
    return absl::InvalidArgumentError(
        "training.precision is bf16: activations on the CPU backend are always fp32; use auto or "
        "fp32, or run the job on a CUDA device");
  }
  if (asked != Precision::kAuto) return PrecisionChoice{asked, "the job asks for it"};
  return PrecisionChoice{AutoPrecisionIsFp32(model) ? Precision::kFp32 : Precision::kBf16,
                         WhyAuto(model)};
}

}  // namespace soup::engine
