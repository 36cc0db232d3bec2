// Contract 2 of the design, as tests of any backend: under one numeric plan a job's adapter is the
// same to the bit whatever the placement, co-tenants, cuts of a step into passes, what the arena
// held before, and restarts. same_bits_cases.cc holds the tests; each test program links it with
// the engine of its own backend.
#ifndef SOUP_TESTS_ENGINE_TRAIN_SAME_BITS_H_
#define SOUP_TESTS_ENGINE_TRAIN_SAME_BITS_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/machine_profile.h"
#include "tests/engine/train/trainer_fixture.h"

namespace soup::engine {

inline constexpr int64_t kSameBitsSteps = 8;

struct SameBitsOptions {
  bool poison_arena = false;
  bool always_relayout = false;
  std::string mirror_dir;  // of every job; empty: none
};

// Of the linked backend. `profile`: what jobs' numeric plans are made with.
Engine MakeSameBitsEngine(const ModelBase& base, const SameBitsOptions& options,
                          MachineProfile* profile);
// Empty when there is a device; else why not.
std::string NoDeviceForSameBits();

// Dropout on and every linear adapted: all that could depend on the order of things.
RandomJob JobA(BaseFormat format = BaseFormat::kBf16);
RandomJob JobB();
Placement Place(int32_t slots, Retention retention, int32_t resident = 0,
                bool head_resident = false);
Placement PlaceBy(const std::string& text);  // ParsePlacement

// Skips every test where there is no device, or fails it when SOUP_REQUIRE_GPU=1.
class SameBitsTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// A fresh backend and trainer with the jobs open; all of one model, format and layer count.
Engine OpenJobs(const std::vector<RandomJob>& jobs, const SameBitsOptions& options = {});
// The state after kSameBitsSteps of a job alone.
AdapterSnapshot Alone(const RandomJob& job, const Placement& placement, int32_t micro_batches = -1,
                      const SameBitsOptions& options = {});

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_TRAIN_SAME_BITS_H_
