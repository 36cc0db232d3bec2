// The backend that a run of the bench uses, and what this machine reaches.
#ifndef SOUP_BENCH_MACHINE_H_
#define SOUP_BENCH_MACHINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/machine_profile.h"
#include "engine/device/backend.h"
#include "engine/model/model_spec.h"

namespace soup::bench {

struct MachineOptions {
  std::string backend;  // cpu | cuda
  int device = 0;
  int cpu_threads = 0;            // 0: the host's
  std::string gemm_profile_path;  // cuda: where algorithms are kept; empty: timed in every run
};

struct Machine {
  std::unique_ptr<engine::Backend> backend;
  engine::MachineProfile profile;
  // Bytes that this process takes on the device now; null on the CPU.
  std::function<int64_t()> device_bytes;
};

// Errors: InvalidArgument (a backend that is not known), those of MakeCudaBackend.
absl::StatusOr<Machine> OpenMachine(const MachineOptions& options);
// Fills the rates of the machine's profile at the model's widths. Errors: those of MeasureMachine.
absl::Status MeasureCeilings(const engine::ModelSpec& model, bool quick, Machine& machine);

}  // namespace soup::bench

#endif  // SOUP_BENCH_MACHINE_H_
