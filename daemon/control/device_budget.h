// How many bytes an arena may take on the worker's device. Pure; any thread.
//
// All numbers are the process's bytes on the device: `vram` in a job and --device-memory-limit
// count the worker's overhead (context, modules, fixed blocks) and its arena together, so the arena
// has what is left after the overhead. A card is shared with strangers: what they hold is not ours,
// and a reserve stays free for what they and the driver take later. An arena that is held already
// stays ours, whatever strangers do.
#ifndef SOUP_DAEMON_CONTROL_DEVICE_BUDGET_H_
#define SOUP_DAEMON_CONTROL_DEVICE_BUDGET_H_

#include <cstdint>
#include <string>

namespace soup::daemon {

struct DeviceMemoryView {
  // True: a card's own memory. False: the host's, which the worker shares with everything (CPU).
  bool apart = false;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;      // all processes counted; the CPU: available on the host
  int64_t arena_bytes = 0;     // held by the worker when free_bytes was read
  int64_t overhead_bytes = 0;  // of the worker, not in free_bytes any more
};

struct DeviceLimits {
  int64_t limit_bytes = 0;    // --device-memory-limit; 0: none
  int64_t reserve_bytes = 0;  // --device-reserve; 0: DefaultDeviceReserve
};

// 1 % of the card, at least 64 MiB and at most 512 MiB.
int64_t DefaultDeviceReserve(int64_t total_bytes);

// The most that an arena may take now; never negative.
int64_t ArenaBudget(const DeviceMemoryView& memory, const DeviceLimits& limits);

// The most that the process could ever take, were nobody else there: no ArenaBudget to come is
// larger, its overhead taken off. 0: not known.
int64_t LargestProcess(const DeviceMemoryView& memory, const DeviceLimits& limits);

// Why a process of `needed_bytes` never fits, and the remedy ("resources.vram allows 5: raise it");
// empty: it may, once others leave it more. `asked_bytes`: resources.vram; 0: auto.
std::string NeverFits(const DeviceMemoryView& memory, const DeviceLimits& limits,
                      int64_t needed_bytes, int64_t asked_bytes);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_DEVICE_BUDGET_H_
