// Keys of the shard store and the frame of its chunks. Pure; any thread.
//
//   shards family  <fingerprint>/<format, padded>/<layer>/<chunk>   -> chunk, then its checksum
//   meta family    base/<key>            -> manifest
//                  used/<key>            -> Unix ms of the last use
//                  bad/<key>/<slab>      -> quarantined
//                  leftover/<key>        -> chunks of this key are to be removed: an import that
//                  has
//                                           not committed, or an eviction that has not ended
//                  digest/<stamp>        -> digest of a file's content
#ifndef SOUP_CACHE_SHARD_KEYS_H_
#define SOUP_CACHE_SHARD_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/base_key.h"
#include "engine/io/confined_file.h"

namespace soup::cache {

inline constexpr char kBasePrefix[] = "base/";
inline constexpr char kUsedPrefix[] = "used/";
inline constexpr char kBadPrefix[] = "bad/";
inline constexpr char kLeftoverPrefix[] = "leftover/";
inline constexpr char kDigestPrefix[] = "digest/";

// Length of ShardPrefix: the same for every base.
inline constexpr size_t kShardPrefixBytes = kFingerprintChars + 1 + 6 + 1;
std::string ShardPrefix(const BaseKey& key);
// The first key after all keys that begin with `prefix`.
std::string PrefixEnd(std::string prefix);
std::string ChunkKey(const BaseKey& key, int64_t slab, int64_t chunk);

std::string BadKey(const BaseKey& key, int64_t slab);
std::string DigestKey(const engine::FileStamp& stamp);

// XXH3-64 of a chunk, seeded with its place, so that a chunk in another's place is bad too.
uint64_t ChunkChecksum(int64_t slab, int64_t chunk, absl::Span<const uint8_t> data);
uint64_t SlabChecksum(absl::Span<const uint8_t> slab);

}  // namespace soup::cache

#endif  // SOUP_CACHE_SHARD_KEYS_H_
