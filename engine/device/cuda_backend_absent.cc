// MakeCudaBackend in a build without CUDA.
#include "absl/status/status.h"
#include "engine/device/cuda_backend.h"

namespace soup::engine {
namespace {

absl::Status Absent() {
  return absl::FailedPreconditionError(
      "this build has no CUDA backend; configure with the preset cuda, or use --backend cpu");
}

}  // namespace

absl::StatusOr<CudaBackend> MakeCudaBackend(const CudaBackendOptions&) { return Absent(); }
absl::StatusOr<int64_t> CudaFreeDeviceBytes(int) { return Absent(); }

}  // namespace soup::engine
