#include "daemon/control/device_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/text.h"

namespace soup::daemon {
namespace {

constexpr double kCpuShare = 0.5;  // of available host memory, when nothing else is said
constexpr int64_t kLeastReserve = int64_t{64} << 20;
constexpr int64_t kMostReserve = int64_t{512} << 20;

int64_t ReserveOf(const DeviceMemoryView& memory, const DeviceLimits& limits) {
  return limits.reserve_bytes > 0 ? limits.reserve_bytes : DefaultDeviceReserve(memory.total_bytes);
}

}  // namespace

int64_t DefaultDeviceReserve(int64_t total_bytes) {
  return std::clamp(total_bytes / 100, kLeastReserve, kMostReserve);
}

int64_t ArenaBudget(const DeviceMemoryView& memory, const DeviceLimits& limits) {
  const int64_t free = std::max<int64_t>(memory.free_bytes, 0);
  const int64_t allowed = limits.limit_bytes - memory.overhead_bytes;
  int64_t budget = 0;
  if (memory.apart) {
    budget = memory.arena_bytes + std::max<int64_t>(0, free - ReserveOf(memory, limits));
    if (limits.limit_bytes > 0) budget = std::min(budget, allowed);
  } else {
    const double ours = static_cast<double>(free + memory.arena_bytes);
    budget = limits.limit_bytes > 0 ? allowed : static_cast<int64_t>(kCpuShare * ours);
  }
  return std::max<int64_t>(budget, 0);
}

int64_t LargestProcess(const DeviceMemoryView& memory, const DeviceLimits& limits) {
  if (!memory.apart) {
    if (limits.limit_bytes > 0) return limits.limit_bytes;
    if (memory.total_bytes <= 0) return 0;
    return static_cast<int64_t>(kCpuShare * static_cast<double>(memory.total_bytes)) +
           memory.overhead_bytes;
  }
  const int64_t card = memory.total_bytes - ReserveOf(memory, limits);
  return limits.limit_bytes > 0 ? std::min(limits.limit_bytes, card) : card;
}

std::string NeverFits(const DeviceMemoryView& memory, const DeviceLimits& limits,
                      int64_t needed_bytes, int64_t asked_bytes) {
  constexpr char kSmaller[] = "lower data.max_length or lora.r";
  const int64_t most = LargestProcess(memory, limits);
  // First: a larger resources.vram would not help then.
  if (most > 0 && most < needed_bytes) {
    const std::string bytes = absl::StrCat(most, " (", HumanBytes(most), ")");
    if (most == limits.limit_bytes)
      return absl::StrCat("--device-memory-limit of soupd allows ", bytes, ": raise it, or ",
                          kSmaller);
    if (memory.apart) return absl::StrCat("the device has ", bytes, ": ", kSmaller);
    if (needed_bytes > memory.total_bytes)
      return absl::StrCat("the host has ", memory.total_bytes, " (", HumanBytes(memory.total_bytes),
                          "): ", kSmaller);
    return absl::StrCat("soupd takes at most ", bytes,
                        ", half of the host's memory: let it take more with "
                        "--device-memory-limit, or ",
                        kSmaller);
  }
  if (asked_bytes > 0 && asked_bytes < needed_bytes)
    return absl::StrCat("resources.vram allows ", asked_bytes, ": raise it, or ", kSmaller);
  return "";
}

}  // namespace soup::daemon
