// Properties of visit schedules, held against an exact search on small cases.
#include "engine/plan/visit_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;
using ::testing::HasSubstr;

std::vector<int32_t> LayersOf(const VisitSchedule& schedule) {
  std::vector<int32_t> layers;
  for (const Visit& v : schedule.visits) layers.push_back(v.layer);
  return layers;
}

// Runs the schedule as an executor would and fails where a visit does not find its layer, a copy
// would overwrite a slot in use, or counts are wrong. Returns false after a failure.
void ExpectSound(const VisitScheduleParams& p, const VisitSchedule& s) {
  std::vector<int32_t> order;
  for (int32_t l = 0; l < p.layers; ++l) order.push_back(l);
  for (int32_t l = p.layers - 1; p.backward && l >= 0; --l) order.push_back(l);
  ASSERT_EQ(LayersOf(s), order);

  std::vector<int32_t> held = p.slot_layer_at_start;
  if (held.empty()) held.assign(static_cast<size_t>(p.slots), -1);
  std::vector<int32_t> last_use(static_cast<size_t>(p.slots), -1);
  int64_t copies = 0;
  for (size_t i = 0; i < s.visits.size(); ++i) {
    SCOPED_TRACE("visit " + std::to_string(i));
    const Visit& v = s.visits[i];
    ASSERT_GE(v.slot, 0);
    ASSERT_LT(v.slot, std::min(p.slots, p.layers));
    ASSERT_EQ(v.direction,
              static_cast<int32_t>(i) < p.layers ? Direction::kForward : Direction::kBackward);
    int32_t& layer = held[static_cast<size_t>(v.slot)];
    if (v.copy) {
      ++copies;
      ASSERT_NE(layer, v.layer) << "a copy of what is there";
      // Not before the slot's last reader, and no later than that: prefetch is as deep as can be.
      ASSERT_EQ(v.copy_after_visit, last_use[static_cast<size_t>(v.slot)]);
      // Some visit lies between, so that the copy can overlap with it.
      ASSERT_LT(v.copy_after_visit, static_cast<int32_t>(i) - (i > 0 ? 1 : 0));
      layer = v.layer;
    }
    ASSERT_EQ(layer, v.layer);
    last_use[static_cast<size_t>(v.slot)] = static_cast<int32_t>(i);
  }
  EXPECT_EQ(copies, s.copies);
  // What is in a slot at the end is what the schedule says, where it says anything.
  ASSERT_EQ(s.slot_layer_at_end.size(), static_cast<size_t>(p.slots));
  for (size_t slot = 0; slot < held.size(); ++slot) {
    if (s.slot_layer_at_end[slot] == -1) continue;
    EXPECT_EQ(s.slot_layer_at_end[slot], held[slot]);
  }
  std::set<int32_t> ends;
  for (int32_t layer : s.slot_layer_at_end) {
    if (layer == -1) continue;
    EXPECT_TRUE(ends.insert(layer).second) << "two slots hold layer " << layer;
  }
}

// The fewest copies into a ring of `ring` slots over `passes` passes from empty slots, by search
// over every choice. `overlap`: the layer of the visit just before may not be evicted.
int64_t FewestCopies(const std::vector<int32_t>& ring_layers_of_pass, int32_t ring, int passes,
                     bool overlap) {
  std::map<uint32_t, int64_t> states = {{0, 0}};  // layers held -> copies so far
  for (int pass = 0; pass < passes; ++pass) {
    int32_t before = -1;
    for (int32_t layer : ring_layers_of_pass) {
      std::map<uint32_t, int64_t> next;
      const auto reach = [&next](uint32_t held, int64_t copies) {
        const auto it = next.emplace(held, copies).first;
        it->second = std::min(it->second, copies);
      };
      for (const auto& [held, copies] : states) {
        const uint32_t bit = 1u << layer;
        if (held & bit) {
          reach(held, copies);
        } else if (__builtin_popcount(held) < ring) {
          reach(held | bit, copies + 1);
        } else {
          for (int32_t victim = 0; victim < 32; ++victim) {
            if (!(held & (1u << victim)) || (overlap && victim == before)) continue;
            reach((held & ~(1u << victim)) | bit, copies + 1);
          }
        }
      }
      states = std::move(next);
      before = layer;
    }
  }
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& [held, copies] : states) fewest = std::min(fewest, copies);
  return fewest;
}

// Chains `passes` passes of one shape from empty slots; the sum of copies after each.
std::vector<int64_t> CopiesOverPasses(VisitScheduleParams p, int passes) {
  std::vector<int64_t> sums;
  int64_t sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto s = MakeVisitSchedule(p);
    EXPECT_TRUE(s.ok()) << s.status();
    if (!s.ok()) return sums;
    ExpectSound(p, *s);
    sums.push_back(sum += s->copies);
    p.slot_layer_at_start = s->slot_layer_at_end;
  }
  return sums;
}

TEST(VisitScheduleTest, TurnaroundReusesWhatIsThere) {
  const auto s = MakeVisitSchedule({.layers = 4, .slots = 2});
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_THAT(LayersOf(*s), ::testing::ElementsAre(0, 1, 2, 3, 3, 2, 1, 0));
  std::vector<bool> copies;
  for (const Visit& v : s->visits) copies.push_back(v.copy);
  EXPECT_THAT(copies, ::testing::ElementsAre(true, true, true, true, false, false, true, true));
  // The next pass begins on the layers this one ended with.
  EXPECT_THAT(s->slot_layer_at_end, ::testing::UnorderedElementsAre(0, 1));
}

TEST(VisitScheduleTest, EveryVisitFindsItsLayer) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 2000; ++round) {
    VisitScheduleParams p;
    p.layers = static_cast<int32_t>(rng.Int(1, 40));
    p.slots = static_cast<int32_t>(rng.Int(std::min(2, p.layers), p.layers + 2));
    const int32_t most_resident = p.slots >= p.layers ? p.layers : std::max(0, p.slots - 2);
    p.resident_layers = static_cast<int32_t>(rng.Int(0, most_resident));
    p.backward = rng.Chance(0.7);
    if (rng.Chance(0.5)) {  // any content of the slots is a legal start
      std::vector<int32_t> layers;
      for (int32_t l = 0; l < p.layers; ++l) layers.push_back(l);
      for (int32_t s = 0; s < p.slots; ++s) {
        int32_t layer = -1;
        if (!layers.empty() && rng.Chance(0.8)) {
          const auto pick = layers.begin() + rng.Int(0, static_cast<int64_t>(layers.size()) - 1);
          layer = *pick;
          layers.erase(pick);
        }
        p.slot_layer_at_start.push_back(layer);
      }
    }
    SCOPED_TRACE("layers " + std::to_string(p.layers) + " slots " + std::to_string(p.slots) +
                 " resident " + std::to_string(p.resident_layers));
    const auto s = MakeVisitSchedule(p);
    ASSERT_TRUE(s.ok()) << s.status();
    ExpectSound(p, *s);
    if (HasFatalFailure()) return;
    // Two calls, one answer.
    const auto again = MakeVisitSchedule(p);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->slot_layer_at_end, s->slot_layer_at_end);
  }
}

TEST(VisitScheduleTest, CopiesAreTheFewestOfAnExactSearch) {
  constexpr int kPasses = 4;
  for (int32_t layers = 1; layers <= 7; ++layers) {
    for (int32_t slots = std::min(2, layers); slots <= layers; ++slots) {
      for (int32_t resident = 0; resident <= slots; ++resident) {
        if (slots < layers && slots - resident < 2) continue;
        for (bool backward : {true, false}) {
          SCOPED_TRACE("layers " + std::to_string(layers) + " slots " + std::to_string(slots) +
                       " resident " + std::to_string(resident) + (backward ? " train" : " score"));
          const VisitScheduleParams p{
              .layers = layers, .slots = slots, .resident_layers = resident, .backward = backward};
          const std::vector<int32_t> keep = ResidentLayers(layers, resident);
          std::vector<int32_t> ring_visits;
          const auto visit = [&](int32_t l) {
            if (!std::binary_search(keep.begin(), keep.end(), l)) ring_visits.push_back(l);
          };
          for (int32_t l = 0; l < layers; ++l) visit(l);
          for (int32_t l = layers - 1; backward && l >= 0; --l) visit(l);
          const std::vector<int64_t> sums = CopiesOverPasses(p, kPasses);
          ASSERT_EQ(sums.size(), static_cast<size_t>(kPasses));
          for (int pass = 1; pass <= kPasses; ++pass) {
            const int64_t got = sums[static_cast<size_t>(pass - 1)] - resident;
            if (backward) {  // the overlap costs nothing
              EXPECT_EQ(got, FewestCopies(ring_visits, slots - resident, pass, false))
                  << "after pass " << pass;
            } else if (resident == 0) {
              EXPECT_EQ(got, FewestCopies(ring_visits, slots, pass, true)) << "after pass " << pass;
            } else {  // a resident visit between two ring visits makes the rule looser
              EXPECT_LE(got, FewestCopies(ring_visits, slots - resident, pass, true));
              EXPECT_GE(got, FewestCopies(ring_visits, slots - resident, pass, false));
            }
          }
          if (backward) {
            EXPECT_EQ(sums[3] - sums[2], 2 * (layers - slots)) << "steady state";
          }
        }
      }
    }
  }
}

TEST(VisitScheduleTest, ResidentLayersAreCopiedOnceAndKeepTheirSlots) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 200; ++round) {
    VisitScheduleParams p;
    p.layers = static_cast<int32_t>(rng.Int(3, 60));
    p.slots = static_cast<int32_t>(rng.Int(2, p.layers - 1));
    p.resident_layers = static_cast<int32_t>(rng.Int(0, p.slots - 2));
    const std::vector<int32_t> keep = ResidentLayers(p.layers, p.resident_layers);
    for (int pass = 0; pass < 3; ++pass) {
      p.backward = rng.Chance(0.6);
      const auto s = MakeVisitSchedule(p);
      ASSERT_TRUE(s.ok()) << s.status();
      for (const Visit& v : s->visits) {
        const auto it = std::lower_bound(keep.begin(), keep.end(), v.layer);
        if (it == keep.end() || *it != v.layer) continue;
        EXPECT_EQ(v.slot, it - keep.begin());
        EXPECT_EQ(v.copy, pass == 0 && v.direction == Direction::kForward) << "layer " << v.layer;
      }
      p.slot_layer_at_start = s->slot_layer_at_end;
    }
  }
}

TEST(VisitScheduleTest, PrefetchIsAsDeepAsTheRing) {
  // With k ring slots a copy may start k visits before its layer is needed, both ways.
  for (int32_t slots = 2; slots <= 6; ++slots) {
    VisitScheduleParams p{.layers = 20, .slots = slots};
    for (int pass = 0; pass < 2; ++pass) {
      const auto s = MakeVisitSchedule(p);
      ASSERT_TRUE(s.ok());
      for (size_t i = 0; i < s->visits.size(); ++i) {
        const Visit& v = s->visits[i];
        if (!v.copy) continue;
        EXPECT_LE(v.copy_after_visit, std::max(-1, static_cast<int32_t>(i) - slots))
            << "visit " << i;
      }
      p.slot_layer_at_start = s->slot_layer_at_end;
    }
  }
}

TEST(VisitScheduleTest, ResidentLayersAreSpread) {
  EXPECT_THAT(ResidentLayers(8, 0), ::testing::IsEmpty());
  EXPECT_THAT(ResidentLayers(8, 2), ::testing::ElementsAre(2, 6));
  EXPECT_THAT(ResidentLayers(3, 3), ::testing::ElementsAre(0, 1, 2));
  for (int32_t layers = 1; layers <= 80; ++layers) {
    for (int32_t resident = 1; resident <= layers; ++resident) {
      const auto r = ResidentLayers(layers, resident);
      ASSERT_EQ(r.size(), static_cast<size_t>(resident));
      int32_t widest = 0, narrowest = layers;
      for (size_t i = 0; i + 1 < r.size(); ++i) {
        ASSERT_LT(r[i], r[i + 1]);
        widest = std::max(widest, r[i + 1] - r[i]);
        narrowest = std::min(narrowest, r[i + 1] - r[i]);
      }
      ASSERT_GE(r.front(), 0);
      ASSERT_LT(r.back(), layers);
      if (resident > 1) {
        EXPECT_LE(widest - narrowest, 1);
      }
    }
  }
}

TEST(VisitScheduleTest, ImpossibleParametersAreRefusedByName) {
  const auto message = [](VisitScheduleParams p) {
    const auto s = MakeVisitSchedule(p);
    EXPECT_EQ(s.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(s.status().message());
  };
  EXPECT_THAT(message({.layers = 0}), HasSubstr("layers"));
  EXPECT_THAT(message({.layers = 4, .slots = 1}), HasSubstr("2 slots"));
  EXPECT_THAT(message({.layers = 4, .slots = 3, .resident_layers = 2}), HasSubstr("ring"));
  EXPECT_THAT(message({.layers = 4, .slots = 2, .resident_layers = 3}), HasSubstr("resident"));
  EXPECT_THAT(message({.layers = 4, .slots = 2, .slot_layer_at_start = {0}}), HasSubstr("1 slots"));
  EXPECT_THAT(message({.layers = 4, .slots = 2, .slot_layer_at_start = {0, 4}}),
              HasSubstr("layer 4"));
  EXPECT_THAT(message({.layers = 4, .slots = 2, .slot_layer_at_start = {1, 1}}),
              HasSubstr("twice"));
}

}  // namespace
}  // namespace soup::engine
