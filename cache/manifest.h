// BaseManifest: what the shard store knows of one base; written last and synced, so that a base
// exists exactly when its manifest does. Stored as JSON. Plain value; any thread.
#ifndef SOUP_CACHE_MANIFEST_H_
#define SOUP_CACHE_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/base_key.h"

namespace soup::cache {

// Version of the chunk and slab layout. A base of another version is removed when the store opens.
inline constexpr int64_t kManifestVersion = 1;

struct SlabRecord {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;  // XXH3-64 of the slab
};

struct BaseManifest {
  BaseKey key;
  std::string config_json;    // the model's, as read
  std::string source_folder;  // as the importer was given it
  std::vector<std::string> warnings;
  int64_t created_unix_ms = 0;
  int64_t chunk_bytes = 0;
  std::vector<SlabRecord> slabs;  // layers, then the globals

  int64_t total_bytes() const;
  int64_t chunks(int64_t slab) const;
  int64_t chunk_size(int64_t slab, int64_t chunk) const;

  std::string ToText() const;
  static absl::StatusOr<BaseManifest> FromText(absl::string_view text);  // DataLoss
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_MANIFEST_H_
