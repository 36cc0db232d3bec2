#include "engine/device/machine_measure.h"

#include <gtest/gtest.h>

#include "engine/base/clock.h"
#include "engine/device/cpu_backend.h"

namespace soup::engine {
namespace {

void ExpectCurve(const std::vector<MeasuredRate>& curve, int64_t first_size) {
  ASSERT_FALSE(curve.empty());
  EXPECT_EQ(curve.front().size, first_size);
  for (size_t i = 0; i < curve.size(); ++i) {
    EXPECT_GT(curve[i].flops, 1e6);
    if (i > 0) {
      EXPECT_GT(curve[i].size, curve[i - 1].size);
    }
  }
}

TEST(MachineMeasureTest, FillsEveryRateOnTheCpu) {
  const auto backend = MakeCpuBackend({.cpu_threads = 1});
  MachineProfile profile;
  profile.device_name = "as before";
  const MeasureOptions options = QuickMeasure(*backend);
  const absl::Status measured =
      MeasureMachine(backend.get(), TypicalWidths(*backend), options, &profile);
  ASSERT_TRUE(measured.ok()) << measured;
  for (const double rate :
       {profile.copy_bytes_per_second, profile.copy_to_host_bytes_per_second,
        profile.copy_both_ways_bytes_per_second, profile.device_copy_bytes_per_second,
        profile.dequant_bytes_per_second, profile.gemm_flops}) {
    EXPECT_GT(rate, 1e6);
    EXPECT_LT(rate, 1e15);
  }
  EXPECT_GT(profile.launch_seconds, 0);
  EXPECT_LT(profile.launch_seconds, 0.01);
  ExpectCurve(profile.gemm_rates, options.gemm_rows.front());
  ExpectCurve(profile.attention_forward_rates, options.attention_tokens.front());
  ExpectCurve(profile.attention_backward_rates, options.attention_tokens.front());
  EXPECT_EQ(profile.device_name, "as before");
  // The arena is back: a pass can have one.
  EXPECT_TRUE(backend->CreateArena(1 << 20).ok());
}

TEST(MachineMeasureTest, APointBeyondTheTimeLimitIsLeftOut) {
  const auto backend = MakeCpuBackend({.cpu_threads = 1});
  MeasureOptions options = QuickMeasure(*backend);
  options.seconds_limit = 0.02;
  options.gemm_rows = {8, 1 << 14};
  options.attention_tokens = {8, 1 << 12};
  MachineProfile profile;
  ASSERT_TRUE(MeasureMachine(backend.get(), TypicalWidths(*backend), options, &profile).ok());
  EXPECT_EQ(profile.gemm_rates.size(), 1u);
  EXPECT_EQ(profile.attention_forward_rates.size(), 1u);
  EXPECT_EQ(profile.attention_backward_rates.size(), 1u);
}

TEST(MachineMeasureTest, RefusesWhatItCannotMeasure) {
  const auto backend = MakeCpuBackend({.cpu_threads = 1});
  const MeasureOptions options = QuickMeasure(*backend);
  MachineProfile profile;
  EXPECT_EQ(MeasureMachine(backend.get(), {64, 0, 2, 1, 32}, options, &profile).code(),
            absl::StatusCode::kInvalidArgument);
  MeasureOptions small = options;
  small.arena_bytes = 1 << 20;
  const absl::Status refused =
      MeasureMachine(backend.get(), TypicalWidths(*backend), small, &profile);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("1048576"), absl::string_view::npos) << refused;
}

TEST(TimedEventTest, TellsTheTimeBetweenRecordsAndRefusesOneNotReached) {
  const auto backend = MakeCpuBackend({.cpu_threads = 1});
  Event begin = backend->MakeTimedEvent(), end = backend->MakeTimedEvent();
  ASSERT_TRUE(backend->Record(begin, backend->compute_stream()).ok());
  EXPECT_EQ(backend->SecondsBetween(begin, end).status().code(),
            absl::StatusCode::kFailedPrecondition);
  std::vector<std::byte> from(8 << 20), to(8 << 20);
  ASSERT_TRUE(
      backend->CopyToDeviceAsync(to.data(), from.data(), 8 << 20, backend->copy_stream()).ok());
  ASSERT_TRUE(backend->Record(end, backend->copy_stream()).ok());
  ASSERT_TRUE(backend->Synchronize(absl::Minutes(1)).ok());
  const auto seconds = backend->SecondsBetween(begin, end);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_GT(*seconds, 0);
}

}  // namespace
}  // namespace soup::engine
