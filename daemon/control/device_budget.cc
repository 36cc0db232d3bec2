#include "daemon/control/device_budget.h"

#include <algorithm>

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
  if (!memory.apart) return limits.limit_bytes > 0 ? limits.limit_bytes : memory.total_bytes;
  const int64_t card = memory.total_bytes - ReserveOf(memory, limits);
  return limits.limit_bytes > 0 ? std::min(limits.limit_bytes, card) : card;
}

}  // namespace soup::daemon
