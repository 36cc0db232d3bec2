// The CPU backend: fp32 activations and weight operands, kernels of kernels/cpu, an arena in
// anonymous memory. Compute runs inline in the thread that drives it; the copy stream is a thread
// with a bounded queue, so prefetch, slots and stalls behave as they do on a device.
#ifndef SOUP_ENGINE_DEVICE_CPU_BACKEND_H_
#define SOUP_ENGINE_DEVICE_CPU_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "engine/device/backend.h"

namespace soup::engine {

struct CpuBackendOptions {
  // Threads of the kernels. 0: the host's.
  int cpu_threads = 0;
  // Commands (copies and records) that the copy stream's queue holds.
  int32_t copy_queue_commands = 256;
  // The limit of a wait for the copy stream.
  absl::Duration wait_limit = absl::Minutes(2);
  // Slows the copy stream down, to study stalls and prefetch: a fixed time before each copy, and
  // the most bytes a second (0: as fast as memory allows).
  absl::Duration copy_delay = absl::ZeroDuration();
  double copy_bytes_per_second = 0;
  // Fills every arena buffer with NaNs when it is taken: a read before a write shows.
  bool poison_arena = false;
  // Bytes that others leave for arenas, asked when one is made: plays a card whose memory is shared
  // with strangers. Empty: the host's memory is the limit. For tests.
  std::function<int64_t()> free_bytes;
};

// Bytes of host memory that the backend's kernels hold beside the arena: their scratch, which is
// made once. `cpu_threads`: as in the options, not 0.
int64_t CpuBackendOverheadBytes(int cpu_threads);

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options = {});

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CPU_BACKEND_H_
