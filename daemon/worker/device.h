// The device that a worker computes on: which backend, its machine profile, how much memory is
// free.
//
// "auto" takes CUDA where a card can be used, and the CPU where there is none (or none that is new
// enough), and says which and why. A card that is there but has no room is an error, not a reason
// to compute elsewhere: the bits would be others.
//
// The profile is measured when the device is first used and kept in `profile_dir`; a later start
// reads it there when it was made with the same device, library and version. Overhead is measured
// at each start.
#ifndef SOUP_DAEMON_WORKER_DEVICE_H_
#define SOUP_DAEMON_WORKER_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/machine_profile.h"
#include "engine/device/backend.h"

namespace soup::worker {

struct DeviceOptions {
  std::string backend = "auto";  // auto | cpu | cuda
  int device = 0;                // CUDA's number
  int cpu_threads = 0;           // 0: every core
  std::string profile_dir;       // empty: nothing is kept
  // A hook of tests: the CPU backend plays a card with memory of its own. The file holds the bytes
  // that others leave on it, and then, for a card that lies, those that can really be had; it is
  // read anew each time.
  std::string test_card;
};

struct Device {
  std::unique_ptr<engine::Backend> backend;
  engine::MachineProfile profile;
  // Bytes free on the device (the CPU: available on the host), all processes counted. Any thread;
  // -1: not known.
  std::function<int64_t()> free_bytes;
  bool memory_apart = false;  // the device's memory is not the host's
  std::string why;            // this backend; empty unless "auto" chose it
};

// Call in the thread that will drive the backend. Errors: FailedPrecondition (no device that can be
// used, with the remedy), ResourceExhausted (it has no room, with both numbers), InvalidArgument.
absl::StatusOr<Device> OpenDevice(const DeviceOptions& options);

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_DEVICE_H_
