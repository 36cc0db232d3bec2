// Blocks through a spill ring on the CPU backend: each comes back as it was written, whatever the
// numbers of blocks and slots, also when copies are slow.
#include "engine/device/spill_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/device/cpu_backend.h"

namespace soup::engine {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = 4096;

struct Ring {
  Ring(Backend* backend, int32_t blocks, int32_t slots)
      : device(static_cast<size_t>(slots * kBytes)),
        host(static_cast<size_t>((blocks - slots) * kBytes)),
        ring(backend, {blocks, slots, kBytes}, device.data(), host.data()) {}
  std::vector<std::byte> device;
  std::vector<std::byte> host;
  SpillRing ring;
};

TEST(SpillRing, BlocksComeBackAsTheyWere) {
  for (const int delay_ms : {0, 2}) {
    CpuBackendOptions options;
    options.copy_delay = absl::Milliseconds(delay_ms);
    const std::unique_ptr<Backend> backend = MakeCpuBackend(options);
    for (const auto& [blocks, slots] : {std::pair{1, 1}, {2, 2}, {3, 2}, {7, 2}, {8, 3}, {5, 5}}) {
      SCOPED_TRACE(testing::Message() << blocks << " blocks, " << slots << " slots");
      Ring r(backend.get(), blocks, slots);
      const BackendCounters before = backend->counters();

      for (int32_t b = 0; b < blocks; ++b) {
        const auto p = r.ring.Write(b);
        ASSERT_TRUE(p.ok()) << p.status();
        std::memset(*p, 17 + b, kBytes);
        ASSERT_TRUE(r.ring.Written(b).ok());
      }
      for (int32_t b = blocks - 1; b >= 0; --b) {
        const auto p = r.ring.Read(b);
        ASSERT_TRUE(p.ok()) << p.status();
        EXPECT_EQ(static_cast<int>((*p)[0]), 17 + b);
        EXPECT_EQ(static_cast<int>((*p)[kBytes - 1]), 17 + b);
        // The reader may spoil it: the next block of the slot must come after.
        std::memset(*p, 0, kBytes);
        ASSERT_TRUE(r.ring.Done(b).ok());
      }
      ASSERT_TRUE(backend->Synchronize(absl::Seconds(30)).ok());
      // Out and back, all but those that stay in their slots.
      const BackendCounters after = backend->counters();
      const int64_t spilled = (blocks - slots) * kBytes;
      EXPECT_EQ(after.offload_out_bytes - before.offload_out_bytes, spilled);
      EXPECT_EQ(after.offload_in_bytes - before.offload_in_bytes, spilled);
      EXPECT_EQ(after.copy_bytes, before.copy_bytes);
    }
  }
}

TEST(SpillRing, RefusesAnotherOrder) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend();
  Ring r(backend.get(), 4, 2);
  EXPECT_THAT(std::string(r.ring.Write(1).status().message()), HasSubstr("block 1 out of order"));
  ASSERT_TRUE(r.ring.Write(0).ok());
  EXPECT_FALSE(r.ring.Write(1).ok());  // 0 is not written
  ASSERT_TRUE(r.ring.Written(0).ok());
  EXPECT_FALSE(r.ring.Read(0).ok());  // not all are written
  for (int32_t b = 1; b < 4; ++b) {
    ASSERT_TRUE(r.ring.Write(b).ok());
    ASSERT_TRUE(r.ring.Written(b).ok());
  }
  EXPECT_FALSE(r.ring.Read(2).ok());
  ASSERT_TRUE(r.ring.Read(3).ok());
  EXPECT_FALSE(r.ring.Read(2).ok());  // 3 is not done
  ASSERT_TRUE(r.ring.Done(3).ok());
  ASSERT_TRUE(r.ring.Read(2).ok());
  ASSERT_TRUE(r.ring.Done(2).ok());
  ASSERT_TRUE(backend->Synchronize(absl::Seconds(30)).ok());
}

}  // namespace
}  // namespace soup::engine
