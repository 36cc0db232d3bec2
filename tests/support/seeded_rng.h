// Random numbers of property tests: the seed is printed with every failure, and can be given again.
//
//   SeededRng rng;                     // seed from SOUP_TEST_SEED, else from the clock
//   SCOPED_TRACE(rng.Trace());         // "SOUP_TEST_SEED=123"
#ifndef SOUP_TESTS_SUPPORT_SEEDED_RNG_H_
#define SOUP_TESTS_SUPPORT_SEEDED_RNG_H_

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace soup::testing {

class SeededRng {
 public:
  SeededRng() : SeededRng(SeedFromEnvironment()) {}
  explicit SeededRng(uint64_t seed) : seed_(seed), engine_(seed) {}

  // Uniform in [low, high].
  int64_t Int(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  double Real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  bool Chance(double p) { return Real(0, 1) < p; }
  uint64_t seed() const { return seed_; }
  std::string Trace() const { return "SOUP_TEST_SEED=" + std::to_string(seed_); }

 private:
  static uint64_t SeedFromEnvironment() {
    if (const char* text = std::getenv("SOUP_TEST_SEED")) return std::strtoull(text, nullptr, 10);
    return static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  }
  uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace soup::testing

#endif  // SOUP_TESTS_SUPPORT_SEEDED_RNG_H_
