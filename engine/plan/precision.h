// The type of a job's activations on CUDA: what the job asks for, and what it gets. Decided once,
// when its numeric plan is made; the plan holds what was decided (docs/NUMERICS.md). Pure
// functions; any thread.
#ifndef SOUP_ENGINE_PLAN_PRECISION_H_
#define SOUP_ENGINE_PLAN_PRECISION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

enum class Precision : uint8_t { kAuto, kBf16, kFp32 };
const char* PrecisionName(Precision precision);  // "auto" | "bf16" | "fp32"
// Errors: InvalidArgument, with the names that are known.
absl::StatusOr<Precision> ParsePrecision(absl::string_view name);

// Models no wider than this take milliseconds a step in either type.
inline constexpr int64_t kTinyHidden = 256;

// What kAuto is on CUDA, by the model alone: fp32 for
//   - models with experts: rows whose k-th and next expert are nearly as probable must not turn on
//     a rounding;
//   - tiny ones (hidden size at most kTinyHidden), which then agree with an fp32 reference;
// and bf16 for all others.
bool AutoPrecisionIsFp32(const ModelSpec& model);

struct PrecisionChoice {
  Precision precision = Precision::kFp32;  // never kAuto
  std::string why;                         // a phrase: "the model has experts"
};
// `backend`: cpu or cuda. Errors: InvalidArgument (bf16 on the CPU, whose activations are fp32).
absl::StatusOr<PrecisionChoice> ChoosePrecision(Precision asked, const ModelSpec& model,
                                                absl::string_view backend);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_PRECISION_H_
