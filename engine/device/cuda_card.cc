// Which cards are new enough: in every build, so that every build tests it.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/device/cuda_backend.h"

namespace soup::engine {
namespace {

constexpr int kOldestMajor = 8;

}  // namespace

absl::Status CheckCudaCard(absl::string_view name, int major, int minor) {
  if (major >= kOldestMajor) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name, " is sm_", major, minor,
                                                    "; CUDA training needs sm_", kOldestMajor,
                                                    "0 (Ampere) or newer. Use --backend cpu"));
}

}  // namespace soup::engine
