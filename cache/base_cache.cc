#include "cache/base_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/importer.h"
#include "cache/slab_assembler.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

// Damage found while loading is repaired and the loading tried again; a disk that goes on giving
// bad bytes is given up on.
constexpr int kRepairs = 3;

}  // namespace

struct BaseCache::Rep {
  explicit Rep(HostStoreOptions host_options) : host(std::move(host_options)) {}
  engine::AllowedRoots model_roots;
  std::unique_ptr<ShardStore> shards;
  HostStore host;
};

BaseCache::BaseCache() = default;
BaseCache::~BaseCache() = default;

absl::StatusOr<std::unique_ptr<BaseCache>> BaseCache::Open(BaseCacheOptions options) {
  std::unique_ptr<BaseCache> cache(new BaseCache);
  cache->rep_ = std::make_unique<Rep>(std::move(options.host));
  cache->rep_->model_roots = std::move(options.model_roots);
  SOUP_ASSIGN_OR_RETURN(cache->rep_->shards, ShardStore::Open(options.shards));
  return cache;
}

ShardStore& BaseCache::shards() { return *rep_->shards; }
HostStore& BaseCache::host() { return rep_->host; }

absl::StatusOr<InspectedModel> BaseCache::Inspect(const std::string& folder,
                                                  engine::BaseFormat format) {
  SOUP_ASSIGN_OR_RETURN(const auto assembler,
                        SlabAssembler::Create(folder, rep_->model_roots, format));
  InspectedModel out;
  out.spec = assembler->spec();
  out.config_json = assembler->config_json();
  out.checkpoint_bytes = assembler->checkpoint_bytes();
  out.slab_bytes = assembler->total_slab_bytes();
  out.warnings = assembler->warnings();
  return out;
}

absl::StatusOr<BaseManifest> BaseCache::Import(const std::string& folder, engine::BaseFormat format,
                                               const TaskControl& control) {
  SOUP_ASSIGN_OR_RETURN(const ImportResult result,
                        ImportBase(*rep_->shards, folder, rep_->model_roots, format, control));
  return result.found.manifest;
}

absl::StatusOr<BaseLease> BaseCache::Load(ShardStore::Found found, const std::string& folder,
                                          const TaskControl& control) {
  BaseLease lease;
  const BaseManifest& manifest = found.manifest;
  lease.base_ = rep_->host.Find(manifest.key);
  for (int repairs = 0; lease.base_ == nullptr; ++repairs) {
    auto base = rep_->host.Load(
        manifest,
        [&](int64_t slab, int64_t chunk, absl::Span<uint8_t> dst) {
          lease.loaded_ = true;
          return rep_->shards->ReadChunk(manifest, slab, chunk, dst);
        },
        control);
    if (base.ok()) {
      lease.base_ = *std::move(base);
    } else if (absl::IsDataLoss(base.status()) && repairs < kRepairs) {
      SOUP_RETURN_IF_ERROR(RepairBase(*rep_->shards, manifest, folder, rep_->model_roots, control));
    } else {
      return base.status();
    }
  }
  lease.pin_ = std::move(found.pin);
  return lease;
}

absl::StatusOr<BaseLease> BaseCache::Acquire(const std::string& folder, engine::BaseFormat format,
                                             const TaskControl& control) {
  SOUP_ASSIGN_OR_RETURN(ImportResult result,
                        ImportBase(*rep_->shards, folder, rep_->model_roots, format, control));
  const bool imported = result.imported;
  SOUP_ASSIGN_OR_RETURN(BaseLease lease, Load(std::move(result.found), folder, control));
  lease.imported_ = imported;
  return lease;
}

absl::StatusOr<BaseLease> BaseCache::Acquire(const BaseKey& key, const TaskControl& control) {
  SOUP_ASSIGN_OR_RETURN(ShardStore::Found found, rep_->shards->Find(key));
  const std::string source = found.manifest.source_folder;
  return Load(std::move(found), source, control);
}

absl::Status BaseCache::Attach(const BaseKey& key, std::vector<engine::UniqueFd> segments,
                               const TaskControl& control) {
  SOUP_ASSIGN_OR_RETURN(const ShardStore::Found found, rep_->shards->Find(key));
  return rep_->host.Attach(found.manifest, std::move(segments), control).status();
}

absl::StatusOr<int64_t> BaseCache::Evict(const std::string& fingerprint,
                                         std::optional<engine::BaseFormat> format) {
  std::vector<BaseKey> keys;
  for (const StoredBase& base : rep_->shards->List()) {
    const BaseKey& key = base.manifest.key;
    if (key.fingerprint != fingerprint || (format && key.format != *format)) continue;
    if (base.in_use) {
      return absl::FailedPreconditionError(
          absl::StrCat("base ", key.ToString(), " is in use; wait for its jobs or cancel them"));
    }
    keys.push_back(key);
  }
  if (keys.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no base ", fingerprint, format ? absl::StrCat("/", BaseFormatName(*format)) : "",
        " in the shard store (soupctl cache ls)"));
  }
  int64_t freed = 0;
  for (const BaseKey& key : keys) {
    const auto dropped = rep_->host.Drop(key);
    if (!dropped.ok() && !absl::IsNotFound(dropped.status())) return dropped.status();
    SOUP_ASSIGN_OR_RETURN(const int64_t bytes, rep_->shards->Evict(key));
    freed += bytes;
  }
  return freed;
}

}  // namespace soup::cache
