#include "cache/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cache/base_key.h"
#include "cache/checkpoint.h"
#include "cache/parallel.h"
#include "engine/base/clock.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

constexpr int64_t kReadBytes = 4 << 20;
// A file changed less than this before it was opened may change again within one tick of the file
// system's clock, with the same stamp: its digest is not remembered.
constexpr int64_t kStampSettlesNs = 100'000'000;

struct FreeState {
  void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
};

std::string DigestText(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest));
}

absl::Status Changed(const std::string& path) {
  return absl::AbortedError(absl::StrCat(
      path, " has changed while it was read: wait until the download is complete and try again"));
}

absl::StatusOr<std::string> HashFile(const engine::ConfinedFile& file, const TaskControl& control,
                                     ProgressMeter& meter) {
  std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  if (state == nullptr) return absl::ResourceExhaustedError("no memory for a hash state");
  XXH3_128bits_reset(state.get());
  const auto buffer = std::make_unique<uint8_t[]>(kReadBytes);
  for (int64_t at = 0; at < file.size();) {
    SOUP_RETURN_IF_ERROR(control.CheckCancelled());
    const int64_t n = std::min(kReadBytes, file.size() - at);
    SOUP_RETURN_IF_ERROR(file.Read(at, n, buffer.get()));
    XXH3_128bits_update(state.get(), buffer.get(), static_cast<size_t>(n));
    at += n;
    meter.Add(n);
  }
  SOUP_ASSIGN_OR_RETURN(const engine::FileStamp after, file.StampNow());
  if (!(after == file.stamp())) return Changed(file.path());
  return DigestText(XXH3_128bits_digest(state.get()));
}

bool Settled(const engine::FileStamp& stamp) {
  return engine::RealClock().UnixNs() - std::max(stamp.mtime_ns, stamp.ctime_ns) > kStampSettlesNs;
}

}  // namespace

absl::StatusOr<Fingerprint> FingerprintCheckpoint(const std::string& folder,
                                                  const engine::AllowedRoots& roots,
                                                  DigestMemory* memory,
                                                  const TaskControl& control) {
  std::vector<engine::ConfinedFile> files;
  {
    // Refuses a checkpoint that is not whole before a byte of weights is hashed.
    SOUP_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(folder, roots));
    for (const std::string& path : checkpoint->files()) {
      SOUP_ASSIGN_OR_RETURN(engine::ConfinedFile file, engine::ConfinedFile::Open(path, roots));
      files.push_back(std::move(file));
    }
  }
  Fingerprint out;
  for (const engine::ConfinedFile& file : files) {
    out.bytes_total += file.size();
    out.files.push_back({file.path(), file.stamp()});
  }
  ProgressMeter meter(control, "fingerprint", out.bytes_total);
  std::vector<std::string> digests(files.size());
  std::atomic<int64_t> hashed{0};
  SOUP_RETURN_IF_ERROR(
      ParallelFor(static_cast<int64_t>(files.size()), control, [&](int64_t i) -> absl::Status {
        const engine::ConfinedFile& file = files[i];
        if (memory != nullptr) {
          if (std::optional<std::string> known = memory->Recall(file.stamp())) {
            digests[i] = *std::move(known);
            meter.Add(file.size());
            return absl::OkStatus();
          }
        }
        const bool settled = Settled(file.stamp());
        SOUP_ASSIGN_OR_RETURN(digests[i], HashFile(file, control, meter));
        hashed += file.size();
        if (memory != nullptr && settled) memory->Remember(file.stamp(), digests[i]);
        return absl::OkStatus();
      }));
  out.bytes_hashed = hashed;
  std::string all;
  for (const std::string& digest : digests) absl::StrAppend(&all, digest, "\n");
  out.hex = DigestText(XXH3_128bits(all.data(), all.size()));
  return out;
}

absl::Status CheckUnchanged(const Fingerprint& fingerprint, const engine::AllowedRoots& roots) {
  for (const Fingerprint::File& file : fingerprint.files) {
    SOUP_ASSIGN_OR_RETURN(const engine::ConfinedFile now,
                          engine::ConfinedFile::Open(file.path, roots));
    if (!(now.stamp() == file.stamp)) return Changed(file.path);
  }
  return absl::OkStatus();
}

}  // namespace soup::cache
