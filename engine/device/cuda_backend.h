// The CUDA backend: bf16 weight operands, activations of bf16 or fp32, kernels of kernels/cuda, one
// arena from the device's allocator, a compute stream and a copy stream that do not wait for each
// other but by events. sm_80 and newer.
//
// Bytes on the device: the arena (planned), and the overhead, measured once when the backend is
// made: context, modules, and one fixed block that holds the matrix library's workspace, the
// partial sums of the gradient norm, and attention's tile lists. The workspace is no arena buffer
// because the library's choice of an algorithm, and with it the bits, depends on its size: it must
// be the same for every job and pass.
//
// No CUDA header is seen here; in a build without CUDA MakeCudaBackend says so.
#ifndef SOUP_ENGINE_DEVICE_CUDA_BACKEND_H_
#define SOUP_ENGINE_DEVICE_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/machine_profile.h"
#include "engine/device/backend.h"

namespace soup::engine {

struct CudaBackendOptions {
  int device = 0;
  // Where the algorithms of matrix products are kept (engine/device/gemm_profile.h): what is timed
  // once is never timed again, in this process or another. Empty: they live as long as the backend.
  std::string gemm_profile_path;
  // Takes the library's first choice for every product instead of timing: the same in every
  // process, and slower. For tests and tools.
  bool heuristic_gemms = false;
  // From how many rows on the gated MLP's products are kernels of our own, where the card has them;
  // 0: never. It decides bits. Others than the default are for tests.
  std::optional<int64_t> fused_gate_rows;
  // The limit of a wait for the device where the caller names none.
  absl::Duration wait_limit = absl::Minutes(10);
  // Fills every arena buffer with NaNs when it is taken: a read before a write shows. For tests:
  // each fill waits for the device.
  bool poison_arena = false;
  // False: host memory is read as it is, as if it could not be pinned. For tests.
  bool pin_host_memory = true;
};

struct CudaBackend {
  std::unique_ptr<Backend> backend;
  // Name, memory, overhead, and in blas_core what decides bits: architecture, multiprocessors and
  // the matrix library's version. Rates are 0: not measured.
  MachineProfile profile;
};

// Call in the thread that will drive the backend. Errors: FailedPrecondition (no device, no driver,
// a card older than sm_80, a build without code for it or without CUDA; says which),
// ResourceExhausted (not even the fixed block fits).
absl::StatusOr<CudaBackend> MakeCudaBackend(const CudaBackendOptions& options = {});

// Free bytes of a device, all processes counted. Any thread. Errors: as above, and those of a
// device that has failed.
absl::StatusOr<int64_t> CudaFreeDeviceBytes(int device = 0);

// Whether a card of this name and compute capability is new enough. Errors: FailedPrecondition,
// with its name.
absl::Status CheckCudaCard(absl::string_view name, int major, int minor);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_BACKEND_H_
