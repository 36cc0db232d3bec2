// BaseCache: the one door to bases. From a model folder to a base in host memory: fingerprint,
// import on a miss, load, with repair of damaged slabs on the way.
//
// Blocking calls that read a model (Inspect excepted) may take minutes: run them on a thread of
// your own and use TaskControl. Two callers that want the same base share the work.
//
// Errors: InvalidArgument and NotFound (the model folder: what and where), PermissionDenied
// (outside the model roots), ResourceExhausted (disk, cap or memory, with the numbers), DataLoss
// (damaged and not to be rebuilt), Cancelled. Thread-safe.
#ifndef SOUP_CACHE_BASE_CACHE_H_
#define SOUP_CACHE_BASE_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/base_key.h"
#include "cache/host_store.h"
#include "cache/shard_store.h"
#include "cache/task_control.h"
#include "engine/io/confined_file.h"
#include "engine/model/model_spec.h"

namespace soup::cache {

struct BaseCacheOptions {
  ShardStoreOptions shards;
  HostStoreOptions host;
  engine::AllowedRoots model_roots;  // empty: anywhere
};

// What headers and config tell of a model folder: enough to plan with, read in milliseconds.
struct InspectedModel {
  engine::ModelSpec spec;
  std::string config_json;
  int64_t checkpoint_bytes = 0;  // of tensors
  int64_t slab_bytes = 0;        // in the asked format
  std::vector<std::string> warnings;
};

// A base in host memory. While it lives, the base is neither dropped nor evicted. Must not outlive
// the cache. Move-only.
class BaseLease {
 public:
  BaseLease() = default;
  BaseLease(BaseLease&&) = default;
  BaseLease& operator=(BaseLease&&) = default;
  explicit operator bool() const { return base_ != nullptr; }
  const HostBase& base() const { return *base_; }
  const BaseManifest& manifest() const { return base_->manifest(); }
  bool imported() const { return imported_; }  // was not in the shard store before
  bool loaded() const { return loaded_; }      // was not in host memory before

 private:
  friend class BaseCache;
  std::shared_ptr<const HostBase> base_;
  ShardStore::Pin pin_;
  bool imported_ = false;
  bool loaded_ = false;
};

class BaseCache {
 public:
  static absl::StatusOr<std::unique_ptr<BaseCache>> Open(BaseCacheOptions options);
  ~BaseCache();

  // Refuses what headers and config show to be wrong: to be called at plan and submit.
  absl::StatusOr<InspectedModel> Inspect(const std::string& folder, engine::BaseFormat format);

  // Into the shard store only (prefetch).
  absl::StatusOr<BaseManifest> Import(const std::string& folder, engine::BaseFormat format,
                                      const TaskControl& control);
  // Into host memory, by way of the shard store.
  absl::StatusOr<BaseLease> Acquire(const std::string& folder, engine::BaseFormat format,
                                    const TaskControl& control);
  // The same for a base already in a store, whose folder may be gone. NotFound.
  absl::StatusOr<BaseLease> Acquire(const BaseKey& key, const TaskControl& control);
  // Takes a base's segments back after a restart; see HostStore::Attach. NotFound: no manifest.
  absl::Status Attach(const BaseKey& key, std::vector<engine::UniqueFd> segments,
                      const TaskControl& control);

  // Drops idle bases from host memory and evicts them from disk: bytes of disk freed. format
  // absent: every format. NotFound; FailedPrecondition when one is in use (nothing is evicted
  // then).
  absl::StatusOr<int64_t> Evict(const std::string& fingerprint,
                                std::optional<engine::BaseFormat> format);

  ShardStore& shards();
  HostStore& host();

 private:
  BaseCache();
  absl::StatusOr<BaseLease> Load(ShardStore::Found found, const std::string& folder,
                                 const TaskControl& control);
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_BASE_CACHE_H_
