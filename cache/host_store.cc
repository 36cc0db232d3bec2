#include "cache/host_store.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/parallel.h"
#include "cache/shard_keys.h"
#include "cache/shortage.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

constexpr int64_t kPrefaultBytes = int64_t{64} << 20;
constexpr absl::Duration kCancelPoll = absl::Milliseconds(100);

int64_t AlignUp(int64_t n) { return (n + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes; }

int64_t Sum(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (int64_t v : values) sum += v;
  return sum;
}

// A range of the store that one thread works on.
struct Piece {
  int64_t slab_or_segment;
  int64_t chunk_or_offset;
};

}  // namespace

SegmentPlan PlanSegments(const BaseManifest& manifest, int64_t segment_bytes) {
  SegmentPlan plan;
  for (const SlabRecord& record : manifest.slabs) {
    const int64_t taken = AlignUp(record.bytes);
    if (plan.segment_bytes.empty() || plan.segment_bytes.back() + taken > segment_bytes) {
      plan.segment_bytes.push_back(0);
    }
    SlabPlace place;
    place.segment = static_cast<int32_t>(plan.segment_bytes.size()) - 1;
    place.offset = plan.segment_bytes.back();
    place.bytes = record.bytes;
    place.xxh3 = record.xxh3;
    plan.slabs.push_back(place);
    plan.segment_bytes.back() += taken;
  }
  return plan;
}

// HostBase ----------------------------------------------------------------------------------------

HostBase::~HostBase() = default;

absl::Span<const uint8_t> HostBase::slab(int64_t i) const {
  const SlabPlace& place = slabs_[i];
  return {segments_[place.segment].data() + place.offset, static_cast<size_t>(place.bytes)};
}

int64_t HostBase::bytes() const {
  int64_t total = 0;
  for (const MemorySegment& segment : segments_) total += segment.bytes();
  return total;
}

absl::Status HostBase::Verify(const TaskControl& control) const {
  absl::Mutex mu;
  std::set<int64_t> bad;
  SOUP_RETURN_IF_ERROR(ParallelFor(static_cast<int64_t>(slabs_.size()), control, [&](int64_t i) {
    if (SlabChecksum(slab(i)) == slabs_[i].xxh3) return absl::OkStatus();
    absl::MutexLock lock(&mu);
    bad.insert(i);
    return absl::OkStatus();
  }));
  if (bad.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("base ", key_text(), ": slabs ", absl::StrJoin(bad, ", "),
                                          " in host memory do not match their checksums"));
}

// HostStore ---------------------------------------------------------------------------------------

struct HostStore::Rep {
  struct Entry {
    std::shared_ptr<const HostBase> base;
    int64_t last_used_ns = 0;
    bool leaving = false;  // before_drop is running
  };

  HostStoreOptions options;
  absl::Mutex mu;
  std::map<BaseKey, Entry> bases ABSL_GUARDED_BY(mu);
  bool filling ABSL_GUARDED_BY(mu) = false;

  std::shared_ptr<const HostBase> FindLocked(const BaseKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  int64_t PinnedLocked() ABSL_SHARED_LOCKS_REQUIRED(mu);
  absl::Status MakeRoom(const BaseKey& key, int64_t bytes);
  absl::StatusOr<int64_t> DropIdle(const BaseKey& key);
  absl::Status CheckRoom(const BaseKey& key, int64_t bytes);
  absl::StatusOr<std::vector<MemorySegment>> Allocate(const BaseKey& key, const SegmentPlan& plan,
                                                      const TaskControl& control);
  absl::StatusOr<std::vector<MemorySegment>> AllocateHugetlb(const BaseKey& key,
                                                             const SegmentPlan& plan);
  absl::StatusOr<std::shared_ptr<const HostBase>> Fill(const BaseManifest& manifest,
                                                       const ChunkReader& read,
                                                       const TaskControl& control);
};

HostStore::HostStore(HostStoreOptions options) : rep_(std::make_unique<Rep>()) {
  rep_->options = std::move(options);
}
HostStore::~HostStore() = default;

std::shared_ptr<const HostBase> HostStore::Rep::FindLocked(const BaseKey& key) {
  const auto it = bases.find(key);
  if (it == bases.end() || it->second.leaving) return nullptr;
  it->second.last_used_ns = options.clock->MonotonicNs();
  return it->second.base;
}

std::shared_ptr<const HostBase> HostStore::Find(const BaseKey& key) {
  absl::MutexLock lock(&rep_->mu);
  return rep_->FindLocked(key);
}

int64_t HostStore::Rep::PinnedLocked() {
  int64_t total = 0;
  for (const auto& [key, entry] : bases) total += entry.base->bytes();
  return total;
}

int64_t HostStore::pinned_bytes() {
  absl::MutexLock lock(&rep_->mu);
  return rep_->PinnedLocked();
}

std::vector<HostedBase> HostStore::List() {
  absl::MutexLock lock(&rep_->mu);
  std::vector<HostedBase> out;
  for (const auto& [key, entry] : rep_->bases) {
    out.push_back({key, entry.base->bytes(), entry.base->tier(), entry.base.use_count() - 1});
  }
  return out;
}

// Room --------------------------------------------------------------------------------------------

absl::StatusOr<int64_t> HostStore::Rep::DropIdle(const BaseKey& key) {
  {
    absl::MutexLock lock(&mu);
    const auto it = bases.find(key);
    if (it == bases.end() || it->second.leaving) {
      return absl::NotFoundError(absl::StrCat("base ", key.ToString(), " is not in host memory"));
    }
    if (it->second.base.use_count() > 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("base ", key.ToString(), " is in use in host memory"));
    }
    it->second.leaving = true;
  }
  if (options.before_drop) options.before_drop(key.ToString());
  absl::MutexLock lock(&mu);
  const auto it = bases.find(key);
  const int64_t bytes = it->second.base->bytes();
  bases.erase(it);
  return bytes;
}

absl::StatusOr<int64_t> HostStore::Drop(const BaseKey& key) { return rep_->DropIdle(key); }

// OK: it fits now.
absl::Status HostStore::Rep::CheckRoom(const BaseKey& key, int64_t bytes) {
  int64_t pinned = 0;
  bool in_use = false;
  {
    absl::MutexLock lock(&mu);
    pinned = PinnedLocked();
    for (const auto& [k, entry] : bases) in_use |= entry.base.use_count() > 1;
  }
  if (options.limit_bytes > 0 && pinned + bytes > options.limit_bytes) {
    return MemoryShortage(
        absl::StrCat("base ", key.ToString(), " needs ", bytes,
                     " bytes of host memory; the host store's limit is ", options.limit_bytes,
                     " bytes and ", pinned,
                     " are taken by bases in use: wait for their jobs, or raise the limit"),
        in_use && bytes <= options.limit_bytes);
  }
  SOUP_ASSIGN_OR_RETURN(const AvailableMemory available, options.memory->Available());
  if (bytes + options.reserve_bytes > available.bytes) {
    return MemoryShortage(
        absl::StrCat("base ", key.ToString(), " needs ", bytes, " bytes of host memory and ",
                     options.reserve_bytes, " are kept in reserve; available are ", available.bytes,
                     " bytes, bounded by ", available.bound_by,
                     ": use base.format nf4, free memory, or raise that bound"),
        in_use);
  }
  return absl::OkStatus();
}

// Drops idle bases, least recently used first, until `bytes` more fit.
absl::Status HostStore::Rep::MakeRoom(const BaseKey& key, int64_t bytes) {
  for (;;) {
    const absl::Status room = CheckRoom(key, bytes);
    if (!absl::IsResourceExhausted(room)) return room;
    BaseKey victim;
    {
      absl::MutexLock lock(&mu);
      int64_t oldest = INT64_MAX;
      for (const auto& [k, entry] : bases) {
        if (entry.leaving || entry.base.use_count() > 1 || entry.last_used_ns >= oldest) continue;
        victim = k;
        oldest = entry.last_used_ns;
      }
      if (oldest == INT64_MAX) return room;
    }
    const auto dropped = DropIdle(victim);
    if (dropped.ok()) {
      SOUP_LOG(kInfo, "cache") << "dropped idle base " << victim.ToString() << " from host memory";
    }
  }
}

// Filling -----------------------------------------------------------------------------------------

absl::StatusOr<std::vector<MemorySegment>> HostStore::Rep::AllocateHugetlb(
    const BaseKey& key, const SegmentPlan& plan) {
  std::vector<MemorySegment> segments;
  for (int64_t bytes : plan.segment_bytes) {
    SOUP_ASSIGN_OR_RETURN(engine::UniqueFd fd,
                          options.memory->CreateSegment(absl::StrCat("soup:", key.ToString()),
                                                        bytes, MemoryTier::kHugetlb));
    SOUP_ASSIGN_OR_RETURN(MemorySegment segment, MemorySegment::MapWritable(std::move(fd), bytes));
    segments.push_back(std::move(segment));
  }
  return segments;
}

absl::StatusOr<std::vector<MemorySegment>> HostStore::Rep::Allocate(const BaseKey& key,
                                                                    const SegmentPlan& plan,
                                                                    const TaskControl& control) {
  // Hugetlb pages are set aside by the administrator and are no part of MemAvailable.
  auto hugetlb = AllocateHugetlb(key, plan);
  if (hugetlb.ok()) return hugetlb;
  SOUP_RETURN_IF_ERROR(MakeRoom(key, Sum(plan.segment_bytes)));
  std::vector<MemorySegment> segments;
  std::vector<Piece> pieces;
  for (int64_t bytes : plan.segment_bytes) {
    SOUP_ASSIGN_OR_RETURN(engine::UniqueFd fd,
                          options.memory->CreateSegment(absl::StrCat("soup:", key.ToString()),
                                                        bytes, MemoryTier::kPlain));
    SOUP_ASSIGN_OR_RETURN(MemorySegment segment, MemorySegment::MapWritable(std::move(fd), bytes));
    segment.AdviseHuge();
    for (int64_t at = 0; at < bytes; at += kPrefaultBytes) {
      pieces.push_back({static_cast<int64_t>(segments.size()), at});
    }
    segments.push_back(std::move(segment));
  }
  SOUP_RETURN_IF_ERROR(ParallelFor(static_cast<int64_t>(pieces.size()), control, [&](int64_t i) {
    MemorySegment& segment = segments[pieces[i].slab_or_segment];
    const int64_t at = pieces[i].chunk_or_offset;
    return segment.Prefault(at, std::min(kPrefaultBytes, segment.bytes() - at));
  }));
  return segments;
}

namespace {

absl::StatusOr<MemoryTier> ReadTier(const std::vector<MemorySegment>& segments) {
  std::vector<MappedRange> ranges;
  for (const MemorySegment& s : segments) {
    ranges.push_back({reinterpret_cast<uint64_t>(s.data()), s.bytes()});
  }
  SOUP_ASSIGN_OR_RETURN(const std::string smaps,
                        engine::RealFileSystem().ReadFile("/proc/self/smaps"));
  return EvidentTier(smaps, ranges);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const HostBase>> HostStore::Rep::Fill(const BaseManifest& manifest,
                                                                     const ChunkReader& read,
                                                                     const TaskControl& control) {
  SegmentPlan plan = PlanSegments(manifest, options.segment_bytes);
  std::shared_ptr<HostBase> base(new HostBase);
  base->manifest_ = manifest;
  base->slabs_ = plan.slabs;
  SOUP_ASSIGN_OR_RETURN(base->segments_, Allocate(manifest.key, plan, control));

  std::vector<Piece> pieces;
  for (int64_t slab = 0; slab < static_cast<int64_t>(manifest.slabs.size()); ++slab) {
    for (int64_t chunk = 0; chunk < manifest.chunks(slab); ++chunk) pieces.push_back({slab, chunk});
  }
  ProgressMeter meter(control, "load", manifest.total_bytes());
  SOUP_RETURN_IF_ERROR(
      ParallelFor(static_cast<int64_t>(pieces.size()), control, [&](int64_t i) -> absl::Status {
        const int64_t slab = pieces[i].slab_or_segment, chunk = pieces[i].chunk_or_offset;
        const SlabPlace& place = plan.slabs[slab];
        const int64_t bytes = manifest.chunk_size(slab, chunk);
        uint8_t* dst =
            base->segments_[place.segment].data() + place.offset + chunk * manifest.chunk_bytes;
        SOUP_RETURN_IF_ERROR(read(slab, chunk, absl::MakeSpan(dst, static_cast<size_t>(bytes))));
        meter.Add(bytes);
        return absl::OkStatus();
      }));
  SOUP_RETURN_IF_ERROR(base->Verify(control));
  SOUP_ASSIGN_OR_RETURN(base->tier_, ReadTier(base->segments_));
  for (MemorySegment& segment : base->segments_) {
    SOUP_RETURN_IF_ERROR(segment.Seal(options.seal_writes));
  }
  SOUP_LOG(kInfo, "cache") << "base " << base->key_text() << " is in host memory: " << base->bytes()
                           << " bytes in " << base->segments() << " segments, tier "
                           << MemoryTierName(base->tier_);
  return std::shared_ptr<const HostBase>(std::move(base));
}

absl::StatusOr<std::shared_ptr<const HostBase>> HostStore::Load(const BaseManifest& manifest,
                                                                const ChunkReader& read,
                                                                const TaskControl& control) {
  {
    absl::MutexLock lock(&rep_->mu);
    const auto ready = [&] {
      rep_->mu.AssertReaderHeld();
      const auto it = rep_->bases.find(manifest.key);
      return it == rep_->bases.end() ? !rep_->filling : !it->second.leaving;
    };
    while (!rep_->mu.AwaitWithTimeout(absl::Condition(&ready), kCancelPoll)) {
      SOUP_RETURN_IF_ERROR(control.CheckCancelled());
    }
    if (auto base = rep_->FindLocked(manifest.key)) return base;
    rep_->filling = true;
  }
  auto base = rep_->Fill(manifest, read, control);
  absl::MutexLock lock(&rep_->mu);
  rep_->filling = false;
  if (!base.ok()) return base.status();
  rep_->bases[manifest.key] = {*base, rep_->options.clock->MonotonicNs(), false};
  return base;
}

absl::StatusOr<std::shared_ptr<const HostBase>> HostStore::Attach(
    const BaseManifest& manifest, std::vector<engine::UniqueFd> segments,
    const TaskControl& control) {
  const SegmentPlan plan = PlanSegments(manifest, rep_->options.segment_bytes);
  if (segments.size() != plan.segment_bytes.size()) {
    return absl::DataLossError(absl::StrCat("base ", manifest.key.ToString(), " has ",
                                            plan.segment_bytes.size(), " segments, ",
                                            segments.size(), " were handed over"));
  }
  std::shared_ptr<HostBase> base(new HostBase);
  base->manifest_ = manifest;
  base->slabs_ = plan.slabs;
  for (size_t i = 0; i < segments.size(); ++i) {
    SOUP_ASSIGN_OR_RETURN(MemorySegment segment, MemorySegment::MapReadOnly(std::move(segments[i]),
                                                                            plan.segment_bytes[i]));
    SOUP_RETURN_IF_ERROR(segment.Seal(rep_->options.seal_writes));
    base->segments_.push_back(std::move(segment));
  }
  SOUP_RETURN_IF_ERROR(base->Verify(control));  // faults every page in, so that the tier shows
  SOUP_ASSIGN_OR_RETURN(base->tier_, ReadTier(base->segments_));
  absl::MutexLock lock(&rep_->mu);
  if (rep_->bases.count(manifest.key) > 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("base ", manifest.key.ToString(), " is in host memory already"));
  }
  std::shared_ptr<const HostBase> out = std::move(base);
  rep_->bases[manifest.key] = {out, rep_->options.clock->MonotonicNs(), false};
  return out;
}

}  // namespace soup::cache
