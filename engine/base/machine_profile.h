// Measured facts about this host and device that plans are made with. Written by a worker at start,
// exchanged as text. Plain values; any thread.
#ifndef SOUP_ENGINE_BASE_MACHINE_PROFILE_H_
#define SOUP_ENGINE_BASE_MACHINE_PROFILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

struct MachineProfile {
  std::string backend = "cpu";  // cpu | cuda
  std::string device_name;
  int64_t device_memory_bytes = 0;      // cpu: the host's memory
  int64_t overhead_bytes = 0;           // context and modules; 0 on the CPU
  double copy_bytes_per_second = 0;     // host store -> slot
  double gemm_flops = 0;                // at the job's shapes, mean
  double dequant_bytes_per_second = 0;  // output bytes
  int32_t cpu_threads = 1;              // decides bits on the CPU: frozen into the numeric plan
  std::string blas_core;                // OpenBLAS core type, e.g. "SkylakeX": decides bits too

  std::string ToText() const;  // JSON, one line, keys sorted
  static absl::StatusOr<MachineProfile> FromText(absl::string_view text);
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_MACHINE_PROFILE_H_
