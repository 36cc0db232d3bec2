// The slot ring over the CPU backend's copy thread: order, prefetch, stalls, wrong plans.
#include "engine/device/slot_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/device/cpu_backend.h"
#include "engine/plan/visit_schedule.h"
#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);

// True when `condition` came true before the deadline.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const absl::Time deadline = absl::Now() + kDeadline;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Slabs with bytes of their own, slots, a backend and a ring.
struct Rig {
  Rig(int32_t layers, int32_t slot_count, int64_t bytes, CpuBackendOptions options = {}) {
    options.cpu_threads = 1;
    backend = MakeCpuBackend(options);
    for (int32_t l = 0; l < layers; ++l) {
      std::vector<std::byte> slab(static_cast<size_t>(bytes));
      for (size_t i = 0; i < slab.size(); ++i) slab[i] = std::byte(l * 31 + i * 7 + i / 251);
      store.push_back(std::move(slab));
    }
    memory.resize(static_cast<size_t>(slot_count * bytes));
    std::vector<std::byte*> slots;
    for (int32_t s = 0; s < slot_count; ++s) slots.push_back(memory.data() + s * bytes);
    std::vector<absl::Span<const std::byte>> slabs(store.begin(), store.end());
    auto made = SlotRing::Create(backend.get(), slots, bytes, slabs);
    EXPECT_TRUE(made.ok()) << made.status();
    ring = std::move(*made);
    params.layers = layers;
    params.slots = slot_count;
  }
  VisitSchedule Schedule() {
    params.slot_layer_at_start = ring->slot_layers();
    auto s = MakeVisitSchedule(params);
    EXPECT_TRUE(s.ok()) << s.status();
    return *s;
  }
  bool Holds(const std::byte* slot, int32_t layer) const {
    const auto& slab = store[static_cast<size_t>(layer)];
    return std::memcmp(slot, slab.data(), slab.size()) == 0;
  }

  std::unique_ptr<Backend> backend;
  std::vector<std::vector<std::byte>> store;
  std::vector<std::byte> memory;
  VisitScheduleParams params;
  std::unique_ptr<SlotRing> ring;
};

TEST(SlotRingTest, EveryVisitReadsItsOwnSlabToTheEnd) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 40; ++round) {
    const int32_t layers = static_cast<int32_t>(rng.Int(2, 12));
    const int32_t slots = static_cast<int32_t>(rng.Int(2, layers));
    Rig rig(layers, slots, rng.Int(1, 50'000));
    rig.params.resident_layers =
        slots == layers ? layers : static_cast<int32_t>(rng.Int(0, slots - 2));
    int64_t copies = 0;
    for (int pass = 0; pass < 3; ++pass) {
      rig.params.backward = rng.Chance(0.7);
      const VisitSchedule schedule = rig.Schedule();
      copies += schedule.copies;
      ASSERT_TRUE(rig.ring->BeginPass(schedule).ok());
      for (size_t v = 0; v < schedule.visits.size(); ++v) {
        const auto slab = rig.ring->Acquire(static_cast<int32_t>(v));
        ASSERT_TRUE(slab.ok()) << slab.status();
        ASSERT_TRUE(rig.Holds(slab->data, schedule.visits[v].layer)) << "visit " << v;
        if (rng.Chance(0.2)) std::this_thread::yield();
        ASSERT_TRUE(rig.Holds(slab->data, schedule.visits[v].layer)) << "overwritten";
        ASSERT_TRUE(rig.ring->Release(static_cast<int32_t>(v)).ok());
      }
      ASSERT_TRUE(rig.ring->EndPass().ok());
      EXPECT_EQ(rig.ring->slot_layers(), schedule.slot_layer_at_end);
    }
    EXPECT_EQ(rig.ring->copies(), copies);
    ASSERT_TRUE(rig.backend->Synchronize(kDeadline).ok());
    EXPECT_EQ(rig.backend->counters().copy_bytes,
              copies * static_cast<int64_t>(rig.store[0].size()));
  }
}

TEST(SlotRingTest, PrefetchRunsAheadByTheFreeSlotsAndNoFurther) {
  constexpr int64_t kBytes = 1000;
  Rig rig(8, 3, kBytes);
  ASSERT_TRUE(rig.ring->BeginPass(rig.Schedule()).ok());
  ASSERT_TRUE(rig.ring->Acquire(0).ok());
  EXPECT_EQ(rig.ring->copies_ahead(), 2);
  // The copies of visits 1 and 2 run while visit 0 computes, and nothing after them.
  ASSERT_TRUE(rig.backend->Synchronize(kDeadline).ok());
  EXPECT_EQ(rig.backend->counters().copy_bytes, 3 * kBytes);
  EXPECT_EQ(rig.ring->copies(), 3);
  ASSERT_TRUE(rig.ring->Release(0).ok());
  EXPECT_EQ(rig.ring->copies(), 4);
  ASSERT_TRUE(rig.backend->Synchronize(kDeadline).ok());
  const auto slab = rig.ring->Acquire(1);
  ASSERT_TRUE(slab.ok());
  EXPECT_EQ(slab->stall_seconds, 0) << "it was there";
  EXPECT_EQ(rig.backend->counters().copy_bytes, 4 * kBytes);
}

TEST(SlotRingTest, ACopyOverlapsWithTheVisitBeforeIt) {
  Rig rig(6, 2, 100, {.copy_delay = absl::Milliseconds(60)});
  const VisitSchedule schedule = rig.Schedule();
  ASSERT_TRUE(rig.ring->BeginPass(schedule).ok());
  double stall = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(schedule.visits.size()); ++v) {
    const auto slab = rig.ring->Acquire(v);
    ASSERT_TRUE(slab.ok()) << slab.status();
    stall += slab->stall_seconds;
    if (v == 0) {
      EXPECT_GT(slab->stall_seconds, 0) << "nothing could hide the first copy";
    } else {
      EXPECT_EQ(slab->stall_seconds, 0) << "visit " << v;
    }
    // Computes until the copies under way have landed, as a slow layer would. They do, though this
    // visit has not released its slot.
    ASSERT_TRUE(
        Eventually([&] { return rig.backend->counters().copy_bytes == rig.ring->copies() * 100; }));
    ASSERT_TRUE(rig.backend->Synchronize(kDeadline).ok());
    ASSERT_TRUE(rig.ring->Release(v).ok());
  }
  ASSERT_TRUE(rig.ring->EndPass().ok());
  EXPECT_DOUBLE_EQ(rig.backend->counters().stall_seconds, stall);
}

TEST(SlotRingTest, StallsAndBusyTimeAreCounted) {
  Rig rig(5, 2, 100, {.copy_delay = absl::Milliseconds(60)});
  const absl::Time start = absl::Now();
  const VisitSchedule schedule = rig.Schedule();
  ASSERT_TRUE(rig.ring->BeginPass(schedule).ok());
  double stall = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(schedule.visits.size()); ++v) {
    const auto slab = rig.ring->Acquire(v);
    ASSERT_TRUE(slab.ok());
    EXPECT_TRUE(schedule.visits[static_cast<size_t>(v)].copy || slab->stall_seconds == 0);
    stall += slab->stall_seconds;
    ASSERT_TRUE(rig.ring->Release(v).ok());
  }
  ASSERT_TRUE(rig.ring->EndPass().ok());
  const BackendCounters counters = rig.backend->counters();
  // Compute does nothing, so it waits for nearly every copy in full.
  const double copying = 0.060 * static_cast<double>(schedule.copies);
  EXPECT_GE(counters.copy_busy_seconds, 0.9 * copying);
  EXPECT_GE(stall, 0.5 * copying);
  EXPECT_LE(stall, absl::ToDoubleSeconds(absl::Now() - start));
  EXPECT_DOUBLE_EQ(counters.stall_seconds, stall);
  EXPECT_EQ(counters.copy_bytes, 100 * schedule.copies);
}

TEST(SlotRingTest, TheLinkCanBeLimited) {
  constexpr int64_t kBytes = 1 << 20;
  Rig rig(2, 2, kBytes, {.copy_bytes_per_second = 64.0 * kBytes});
  const absl::Time start = absl::Now();
  ASSERT_TRUE(rig.ring->BeginPass(rig.Schedule()).ok());
  ASSERT_TRUE(rig.backend->Synchronize(kDeadline).ok());
  EXPECT_GE(absl::ToDoubleSeconds(absl::Now() - start), 0.9 * 2 / 64);
  EXPECT_GE(rig.backend->counters().copy_busy_seconds, 0.9 * 2 / 64);
}

TEST(SlotRingTest, TheHeadIsStreamedByTheSameClass) {
  // Slices of unequal size through two buffers: score passes of "layers" that are slices.
  auto backend = MakeCpuBackend({.cpu_threads = 1});
  std::vector<std::byte> head(1000), buffers(2 * 300);
  for (size_t i = 0; i < head.size(); ++i) head[i] = std::byte(i * 13 + i / 256);
  std::vector<absl::Span<const std::byte>> slices;
  for (size_t at = 0; at < head.size(); at += 300) {
    slices.push_back(absl::MakeConstSpan(head).subspan(at, 300));
  }
  ASSERT_EQ(slices.back().size(), 100u);
  auto ring = SlotRing::Create(backend.get(), {buffers.data(), buffers.data() + 300}, 300, slices);
  ASSERT_TRUE(ring.ok()) << ring.status();
  for (int pass = 0; pass < 3; ++pass) {
    auto schedule = MakeVisitSchedule({.layers = 4,
                                       .slots = 2,
                                       .backward = false,
                                       .slot_layer_at_start = (*ring)->slot_layers()});
    ASSERT_TRUE(schedule.ok());
    ASSERT_TRUE((*ring)->BeginPass(*schedule).ok());
    for (int32_t i = 0; i < 4; ++i) {
      const auto slab = (*ring)->Acquire(i);
      ASSERT_TRUE(slab.ok());
      const auto& slice = slices[static_cast<size_t>(i)];
      EXPECT_EQ(std::memcmp(slab->data, slice.data(), slice.size()), 0);
      ASSERT_TRUE((*ring)->Release(i).ok());
    }
    ASSERT_TRUE((*ring)->EndPass().ok());
  }
}

TEST(SlotRingTest, AWrongPlanIsAnErrorBeforeAnythingMoves) {
  Rig rig(4, 2, 100);
  const VisitSchedule good = rig.Schedule();
  const auto message = [&](VisitSchedule schedule) {
    const absl::Status status = rig.ring->BeginPass(std::move(schedule));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  VisitSchedule bad = good;
  bad.visits[2].copy = false;
  EXPECT_THAT(message(bad), AllOf(HasSubstr("visit 2"), HasSubstr("layer 2 is needed")));
  bad = good;
  bad.visits[2].copy_after_visit = -1;
  EXPECT_THAT(message(bad), AllOf(HasSubstr("visit 2"), HasSubstr("still reads it")));
  bad = good;
  bad.visits[3].copy_after_visit = 3;
  EXPECT_THAT(message(bad), HasSubstr("visit 3"));
  bad = good;
  bad.visits[1].slot = 2;
  EXPECT_THAT(message(bad), HasSubstr("slot 2 of 2"));
  bad = good;
  bad.visits[0].layer = 4;
  EXPECT_THAT(message(bad), HasSubstr("layer 4 of 4"));
  EXPECT_EQ(rig.ring->copies(), 0);
  EXPECT_TRUE(rig.ring->BeginPass(good).ok()) << "the ring is as before";
}

TEST(SlotRingTest, TheOrderOfCallsIsHeld) {
  Rig rig(4, 2, 100);
  const auto refused = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  };
  refused(rig.ring->Acquire(0).status());
  refused(rig.ring->EndPass());
  ASSERT_TRUE(rig.ring->BeginPass(rig.Schedule()).ok());
  refused(rig.ring->BeginPass(rig.Schedule()));
  refused(rig.ring->Acquire(1).status());
  refused(rig.ring->Release(0));
  ASSERT_TRUE(rig.ring->Acquire(0).ok());
  refused(rig.ring->Acquire(0).status());
  ASSERT_TRUE(rig.ring->Acquire(1).ok()) << "both slots may be in use";
  refused(rig.ring->Acquire(2).status());  // its slot is that of visit 0
  refused(rig.ring->Release(1));
  ASSERT_TRUE(rig.ring->Release(0).ok());
  ASSERT_TRUE(rig.ring->Acquire(2).ok());
  refused(rig.ring->EndPass());
}

TEST(SlotRingTest, AnAbortedPassForgetsTheSlots) {
  Rig rig(4, 2, 100, {.copy_delay = absl::Milliseconds(5)});
  ASSERT_TRUE(rig.ring->BeginPass(rig.Schedule()).ok());
  ASSERT_TRUE(rig.ring->Acquire(0).ok());
  ASSERT_TRUE(rig.ring->AbortPass().ok());
  EXPECT_THAT(rig.ring->slot_layers(), ::testing::ElementsAre(-1, -1));
  const VisitSchedule schedule = rig.Schedule();
  ASSERT_TRUE(rig.ring->BeginPass(schedule).ok());
  for (int32_t v = 0; v < 8; ++v) {
    const auto slab = rig.ring->Acquire(v);
    ASSERT_TRUE(slab.ok());
    EXPECT_TRUE(rig.Holds(slab->data, schedule.visits[static_cast<size_t>(v)].layer));
    ASSERT_TRUE(rig.ring->Release(v).ok());
  }
  EXPECT_TRUE(rig.ring->EndPass().ok());
}

TEST(SlotRingTest, ASlabLargerThanASlotIsRefused) {
  auto backend = MakeCpuBackend({.cpu_threads = 1});
  std::vector<std::byte> slab(200), slot(100);
  const auto ring =
      SlotRing::Create(backend.get(), {slot.data()}, 100, {absl::MakeConstSpan(slab)});
  EXPECT_EQ(ring.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ring.status().message()), AllOf(HasSubstr("200"), HasSubstr("100")));
}

TEST(CpuBackendTest, WaitsHaveDeadlinesAndQueuesAreBounded) {
  auto backend = MakeCpuBackend({.cpu_threads = 1,
                                 .copy_queue_commands = 2,
                                 .wait_limit = absl::Milliseconds(20),
                                 .copy_delay = absl::Hours(1)});
  std::byte from{1}, to{0};
  Event done = backend->MakeEvent();
  ASSERT_TRUE(backend->CopyToDeviceAsync(&to, &from, 1, backend->copy_stream()).ok());
  ASSERT_TRUE(backend->Record(done, backend->copy_stream()).ok());
  const auto timed_out = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  };
  timed_out(backend->Wait(backend->compute_stream(), done));
  timed_out(backend->HostWait(done, absl::Milliseconds(1)));
  timed_out(backend->Synchronize(absl::Milliseconds(1)));
  absl::Status last;
  for (int i = 0; i < 4 && last.ok(); ++i) {
    last = backend->CopyToDeviceAsync(&to, &from, 1, backend->copy_stream());
  }
  timed_out(last);
  EXPECT_THAT(std::string(last.message()), HasSubstr("queue of 2 commands"));
  // The destructor does not wait for the hour to pass.
}

TEST(CpuBackendTest, EventsFollowTheirStreams) {
  auto backend = MakeCpuBackend({.cpu_threads = 1});
  Event event = backend->MakeEvent();
  EXPECT_TRUE(backend->HostWait(event, kDeadline).ok()) << "never recorded: complete";
  ASSERT_TRUE(backend->Record(event, backend->compute_stream()).ok());
  EXPECT_TRUE(backend->HostWait(event, absl::ZeroDuration()).ok()) << "inline";
  std::vector<std::byte> from(1 << 20, std::byte{7}), to(1 << 20);
  for (int i = 0; i < 20; ++i) {
    from[0] = std::byte(i);
    ASSERT_TRUE(
        backend->CopyToDeviceAsync(to.data(), from.data(), 1 << 20, backend->copy_stream()).ok());
    ASSERT_TRUE(backend->Record(event, backend->copy_stream()).ok());
    Event moved = std::move(event);
    ASSERT_TRUE(backend->Wait(backend->compute_stream(), moved).ok());
    EXPECT_EQ(to, from);
    event = std::move(moved);
  }
  EXPECT_EQ(backend->counters().copy_bytes, 20 << 20);
}

}  // namespace
}  // namespace soup::engine
