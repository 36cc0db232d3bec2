// Importer: a model folder into the shard store, and damaged slabs back from it.
// Errors: those of the fingerprint, the assembler and the store. Thread-safe: no state.
#ifndef SOUP_CACHE_IMPORTER_H_
#define SOUP_CACHE_IMPORTER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/shard_store.h"
#include "cache/task_control.h"
#include "engine/io/confined_file.h"
#include "engine/model/layer_layout.h"

namespace soup::cache {

struct ImportResult {
  ShardStore::Found found;
  bool imported = false;  // false: it was there
};

// Fingerprints; on a miss assembles slab after slab, one being written while the next is made (two
// slabs in memory), and commits when no file has changed meanwhile. Stages "fingerprint", "import".
absl::StatusOr<ImportResult> ImportBase(ShardStore& store, const std::string& folder,
                                        const engine::AllowedRoots& roots,
                                        engine::BaseFormat format, const TaskControl& control);

// Rebuilds the quarantined slabs of a base from `folder`, which must still have the base's
// fingerprint. DataLoss: it has not, or is gone; says what to do.
absl::Status RepairBase(ShardStore& store, const BaseManifest& manifest, const std::string& folder,
                        const engine::AllowedRoots& roots, const TaskControl& control);

}  // namespace soup::cache

#endif  // SOUP_CACHE_IMPORTER_H_
