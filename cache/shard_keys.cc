#include "cache/shard_keys.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace soup::cache {

std::string ShardPrefix(const BaseKey& key) {
  return absl::StrFormat("%s/%-6s/", key.fingerprint, engine::BaseFormatName(key.format));
}

std::string PrefixEnd(std::string prefix) {
  ++prefix.back();  // prefixes end in '/'
  return prefix;
}

std::string ChunkKey(const BaseKey& key, int64_t slab, int64_t chunk) {
  return absl::StrFormat("%s%06d/%06d", ShardPrefix(key), slab, chunk);
}

std::string BadKey(const BaseKey& key, int64_t slab) {
  return absl::StrCat(kBadPrefix, key.ToString(), "/", slab);
}

std::string DigestKey(const engine::FileStamp& stamp) {
  return absl::StrCat(kDigestPrefix, stamp.device, ",", stamp.inode, ",", stamp.size, ",",
                      stamp.mtime_ns, ",", stamp.ctime_ns);
}

uint64_t ChunkChecksum(int64_t slab, int64_t chunk, absl::Span<const uint8_t> data) {
  const uint64_t seed = static_cast<uint64_t>(slab) << 32 | static_cast<uint64_t>(chunk);
  return XXH3_64bits_withSeed(data.data(), data.size(), seed);
}

uint64_t SlabChecksum(absl::Span<const uint8_t> slab) {
  return XXH3_64bits(slab.data(), slab.size());
}

}  // namespace soup::cache
