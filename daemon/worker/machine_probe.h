// Measures the rates that plans are made with, on the backend itself: the machine profile. Takes
// about a tenth of a second on the CPU.
#ifndef SOUP_DAEMON_WORKER_MACHINE_PROBE_H_
#define SOUP_DAEMON_WORKER_MACHINE_PROBE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/base/machine_profile.h"
#include "engine/device/backend.h"

namespace soup::worker {

// `cpu_threads`: that the backend was made with. Errors: those of the backend.
absl::StatusOr<engine::MachineProfile> ProbeMachine(engine::Backend& backend, int cpu_threads);

// The host's memory, and what of it is available, from /proc/meminfo. 0: unknown.
int64_t HostMemoryTotal();
int64_t HostMemoryAvailable();

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_MACHINE_PROBE_H_
