#include "bench/machine.h"

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu_backend.h"
#include "engine/device/cuda_backend.h"
#include "engine/device/machine_measure.h"
#include "kernels/cpu/context.h"

namespace soup::bench {
namespace {

std::string CpuName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

Machine OpenCpu(int threads) {
  Machine machine;
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  machine.backend = engine::MakeCpuBackend({.cpu_threads = threads});
  machine.profile.backend = "cpu";
  machine.profile.device_name = CpuName();
  machine.profile.cpu_threads = threads;
  machine.profile.blas_core = kernels::cpu::BlasCoreName();
  return machine;
}

}  // namespace

absl::StatusOr<Machine> OpenMachine(const MachineOptions& options) {
  if (options.backend == "cpu") return OpenCpu(options.cpu_threads);
  if (options.backend != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend ", options.backend, " is not known; use cpu or cuda"));
  }
  SOUP_ASSIGN_OR_RETURN(engine::CudaBackend cuda,
                        engine::MakeCudaBackend({.device = options.device,
                                                 .gemm_profile_path = options.gemm_profile_path}));
  SOUP_ASSIGN_OR_RETURN(const int64_t free_at_start, engine::CudaFreeDeviceBytes());
  Machine machine;
  machine.backend = std::move(cuda.backend);
  machine.profile = std::move(cuda.profile);
  machine.device_bytes = [free_at_start, overhead = machine.profile.overhead_bytes]() -> int64_t {
    const auto free = engine::CudaFreeDeviceBytes();
    return free.ok() ? overhead + free_at_start - *free : 0;
  };
  return machine;
}

absl::Status MeasureCeilings(const engine::ModelSpec& model, bool quick, Machine& machine) {
  const engine::DecoderWidths widths = {model.hidden, model.intermediate, model.heads,
                                        model.kv_heads, model.head_dim};
  SOUP_RETURN_IF_ERROR(engine::CheckAttentionLibrary(machine.backend.get(), &machine.profile));
  engine::MeasureOptions options =
      quick ? engine::QuickMeasure(*machine.backend) : engine::ThoroughMeasure(*machine.backend);
  return engine::MeasureMachine(machine.backend.get(), widths, options, &machine.profile);
}

}  // namespace soup::bench
