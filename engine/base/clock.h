// Clock port. main() builds RealClock and hands it down; tests hand down FakeClock.
// Thread-safe.
#ifndef SOUP_ENGINE_BASE_CLOCK_H_
#define SOUP_ENGINE_BASE_CLOCK_H_

#include <atomic>
#include <cstdint>

namespace soup::engine {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds of a clock that never goes back; zero point unspecified.
  virtual int64_t MonotonicNs() const = 0;
  // Nanoseconds since the Unix epoch.
  virtual int64_t UnixNs() const = 0;
};

// The host's clocks. The reference lives for ever.
const Clock& RealClock();

class FakeClock final : public Clock {
 public:
  int64_t MonotonicNs() const override { return ns_.load(); }
  int64_t UnixNs() const override { return kEpochNs + ns_.load(); }
  void AdvanceNs(int64_t ns) { ns_.fetch_add(ns); }

 private:
  static constexpr int64_t kEpochNs = 1'700'000'000'000'000'000;
  std::atomic<int64_t> ns_{0};
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_CLOCK_H_
