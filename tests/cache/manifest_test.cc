#include "cache/manifest.h"

#include <gtest/gtest.h>

#include "cache/shard_keys.h"

namespace soup::cache {
namespace {

BaseManifest Example() {
  BaseManifest m;
  m.key = *BaseKey::Parse("0123456789abcdef0123456789abcdef/nf4-dq");
  m.config_json = "{\"a\": \"\\u00e9\"}";
  m.source_folder = "/models/x\xff";
  m.warnings = {"w"};
  m.created_unix_ms = 12;
  m.chunk_bytes = 10;
  m.slabs = {{25, 0xfedcba9876543210}, {10, 1}};
  return m;
}

TEST(Manifest, RoundTrip) {
  const BaseManifest m = Example();
  const auto back = BaseManifest::FromText(m.ToText());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->key, m.key);
  EXPECT_EQ(back->config_json, m.config_json);
  EXPECT_EQ(back->slabs[0].xxh3, m.slabs[0].xxh3);
  EXPECT_EQ(back->total_bytes(), 35);
  EXPECT_EQ(back->chunks(0), 3);
  EXPECT_EQ(back->chunk_size(0, 2), 5);
  EXPECT_EQ(back->chunks(1), 1);
}

TEST(Manifest, DamagedTextIsDataLoss) {
  const std::string text = Example().ToText();
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_TRUE(absl::IsDataLoss(BaseManifest::FromText(text.substr(0, n)).status())) << n;
  }
  std::string other = text;
  const size_t at = other.find("\"version\":1");
  ASSERT_NE(at, std::string::npos);
  other.replace(at, 11, "\"version\":2");
  EXPECT_TRUE(absl::IsDataLoss(BaseManifest::FromText(other).status()));
}

TEST(BaseKey, ParsesOnlyWhatItPrints) {
  const BaseKey key = Example().key;
  EXPECT_EQ(*BaseKey::Parse(key.ToString()), key);
  for (const char* text : {"", "/", "0123/nf4", "0123456789ABCDEF0123456789abcdef/nf4",
                           "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef/",
                           "0123456789abcdef0123456789abcdef/nf4/1"}) {
    EXPECT_FALSE(BaseKey::Parse(text).ok()) << text;
  }
}

TEST(ShardKeys, PrefixesAreOfOneLengthAndChunksLieInside) {
  for (const char* format : {"bf16", "nf4", "nf4-dq"}) {
    const BaseKey key = *BaseKey::Parse(std::string("0123456789abcdef0123456789abcdef/") + format);
    const std::string prefix = ShardPrefix(key);
    EXPECT_EQ(prefix.size(), kShardPrefixBytes);
    for (int64_t slab : {0, 9, 10, 4096}) {
      const std::string chunk = ChunkKey(key, slab, 12);
      EXPECT_GT(chunk, prefix);
      EXPECT_LT(chunk, PrefixEnd(prefix));
    }
    EXPECT_LT(ChunkKey(key, 9, 10), ChunkKey(key, 10, 9));
  }
}

TEST(ShardKeys, ChecksumKnowsTheChunksPlace) {
  const std::vector<uint8_t> data(100, 7);
  EXPECT_NE(ChunkChecksum(0, 1, data), ChunkChecksum(1, 0, data));
  EXPECT_EQ(ChunkChecksum(3, 4, data), ChunkChecksum(3, 4, data));
}

}  // namespace
}  // namespace soup::cache
