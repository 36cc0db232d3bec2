// Placements as text, and which layers keep what.
#include "engine/plan/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::testing::HasSubstr;

Placement Parsed(const std::string& text) {
  const auto p = ParsePlacement(text);
  EXPECT_TRUE(p.ok()) << p.status();
  return p.ok() ? *p : Placement();
}

TEST(PlacementText, SimpleForms) {
  for (const Retention retention : {Retention::kRecompute, Retention::kKeep, Retention::kHost}) {
    Placement p;
    Retain(retention, &p);
    EXPECT_EQ(RetentionText(p), RetentionName(retention));
    EXPECT_EQ(Parsed(RetentionText(p)), p);
  }
  EXPECT_EQ(PlacementText(Placement()), "slots=2 resident=0 head=streamed recompute");
  EXPECT_EQ(Parsed(""), Placement());
}

TEST(PlacementText, ReadsBackWhatItWrites) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  const auto count = [&rng] {
    return rng.Chance(0.2) ? kAllLayers : static_cast<int32_t>(rng.Int(0, 80));
  };
  for (int i = 0; i < 500; ++i) {
    Placement p;
    p.slots = count();
    p.resident_layers = count();
    p.head_resident = rng.Chance(0.3);
    if (!p.head_resident) p.head_slices = static_cast<int32_t>(rng.Int(0, 9));
    p.attention = {count(), count()};
    p.mlp = {count(), count()};
    p.boundaries_host = rng.Chance(0.5);
    p.optimizer_host = rng.Chance(0.5);
    EXPECT_EQ(Parsed(PlacementText(p)), p) << PlacementText(p);
  }
}

TEST(PlacementText, RefusesByName) {
  const auto refused = [](const std::string& text) {
    return std::string(ParsePlacement(text).status().message());
  };
  EXPECT_THAT(refused("slot=2"), HasSubstr("\"slot=2\" is not known; use slots="));
  EXPECT_THAT(refused("slots=two"), HasSubstr("\"slots=two\" needs a number"));
  EXPECT_THAT(refused("slots=-1"), HasSubstr("needs a number of 0 or more"));
  EXPECT_THAT(refused("head=here"), HasSubstr("use streamed or resident"));
  EXPECT_THAT(refused("mlp=disk:3"), HasSubstr("\"mlp=disk:3\" is not known"));
  EXPECT_THAT(refused("boundaries=away"), HasSubstr("use device or host"));
  Placement p;
  EXPECT_THAT(std::string(ParseRetention("slots=3", &p).message()), HasSubstr("not known"));
}

TEST(Placement, CountsFromTheLastLayerDown) {
  const LayerSplit split = {2, 3};
  std::string homes;
  for (int64_t l = 0; l < 8; ++l) homes += HomeName(HomeOf(split, 8, l))[0];
  EXPECT_EQ(homes, "rrrhhhdd");
  EXPECT_EQ(NormalPlacement(Parsed("slots=all keep"), 8).attention.device, 8);
  EXPECT_EQ(NormalPlacement(Parsed("slots=all keep"), 8).slots, 8);
  EXPECT_EQ(NormalPlacement(Parsed("attention=device:6+host:all"), 8).attention.host, 2);
}

// Bands tell the same as HomeOf, layer by layer, and are as large as can be.
TEST(Placement, BandsCoverTheLayers) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int i = 0; i < 200; ++i) {
    const int64_t layers = rng.Int(1, 20);
    Placement p;
    for (LayerSplit* split : {&p.attention, &p.mlp}) {
      split->device = static_cast<int32_t>(rng.Int(0, layers));
      split->host = static_cast<int32_t>(rng.Int(0, layers));
    }
    p = NormalPlacement(p, layers);
    const std::vector<LayerBand> bands = LayerBands(p, layers);
    int64_t next = 0;
    for (size_t b = 0; b < bands.size(); ++b) {
      ASSERT_EQ(bands[b].first, next);
      ASSERT_GE(bands[b].layers, 1);
      for (; next < bands[b].end(); ++next) {
        EXPECT_EQ(bands[b].attention, HomeOf(p.attention, layers, next));
        EXPECT_EQ(bands[b].mlp, HomeOf(p.mlp, layers, next));
      }
      if (b == 0) continue;
      EXPECT_TRUE(bands[b].attention != bands[b - 1].attention || bands[b].mlp != bands[b - 1].mlp);
    }
    EXPECT_EQ(next, layers);
  }
}

}  // namespace
}  // namespace soup::engine
