#include "engine/base/clock.h"

#include <chrono>

namespace soup::engine {
namespace {
class HostClock final : public Clock {
 public:
  int64_t MonotonicNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  int64_t UnixNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};
}  // namespace

const Clock& RealClock() {
  static const HostClock* clock = new HostClock;
  return *clock;
}
}  // namespace soup::engine
