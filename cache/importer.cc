#include "cache/importer.h"

#include <array>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/fingerprint.h"
#include "cache/parallel.h"
#include "cache/slab_assembler.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::cache {
namespace {

// Two buffers: one is being written while the other is being filled.
absl::Status CopySlabs(const SlabAssembler& assembler, ShardStore::Writer& writer,
                       const TaskControl& control) {
  ProgressMeter meter(control, "import", assembler.total_slab_bytes());
  std::array<std::vector<uint8_t>, 2> buffers;
  std::future<absl::Status> writing;  // its destructor waits
  for (int64_t i = 0; i < assembler.slabs(); ++i) {
    std::vector<uint8_t>& buffer = buffers[i % 2];
    buffer.resize(static_cast<size_t>(assembler.slab_bytes(i)));
    const absl::Status assembled = assembler.Assemble(i, absl::MakeSpan(buffer), control);
    if (writing.valid()) SOUP_RETURN_IF_ERROR(writing.get());
    SOUP_RETURN_IF_ERROR(assembled);
    writing = std::async(std::launch::async, [&writer, &buffer, &meter]() -> absl::Status {
      SOUP_RETURN_IF_ERROR(writer.Append(buffer));
      meter.Add(static_cast<int64_t>(buffer.size()));
      return absl::OkStatus();
    });
  }
  return writing.get();
}

}  // namespace

absl::StatusOr<ImportResult> ImportBase(ShardStore& store, const std::string& folder,
                                        const engine::AllowedRoots& roots,
                                        engine::BaseFormat format, const TaskControl& control) {
  SOUP_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                        FingerprintCheckpoint(folder, roots, &store, control));
  BaseManifest draft;
  draft.key = {fingerprint.hex, format};
  auto found = store.Find(draft.key);
  if (found.ok()) return ImportResult{*std::move(found), false};
  if (!absl::IsNotFound(found.status())) return found.status();

  SOUP_ASSIGN_OR_RETURN(const auto assembler, SlabAssembler::Create(folder, roots, format));
  draft.config_json = assembler->config_json();
  draft.source_folder = folder;
  draft.warnings = assembler->warnings();
  for (const std::string& warning : draft.warnings) SOUP_LOG(kWarn, "cache") << warning;

  auto writer = store.Begin(draft, assembler->total_slab_bytes(), control);
  if (absl::IsAlreadyExists(writer.status())) {
    // Another caller imported it while we waited.
    SOUP_ASSIGN_OR_RETURN(ShardStore::Found now, store.Find(draft.key));
    return ImportResult{std::move(now), false};
  }
  SOUP_RETURN_IF_ERROR(writer.status());
  SOUP_RETURN_IF_ERROR(CopySlabs(*assembler, **writer, control));
  SOUP_RETURN_IF_ERROR(CheckUnchanged(fingerprint, roots));
  SOUP_ASSIGN_OR_RETURN(ShardStore::Found committed, (*writer)->Commit());
  return ImportResult{std::move(committed), true};
}

absl::Status RepairBase(ShardStore& store, const BaseManifest& manifest, const std::string& folder,
                        const engine::AllowedRoots& roots, const TaskControl& control) {
  const std::string name = manifest.key.ToString();
  const auto lost = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(
        "base ", name, " is damaged in the shard store and cannot be rebuilt from ", folder, ": ",
        why, "; bring the model back there, or evict the base and import it from elsewhere"));
  };
  std::vector<int64_t> bad;
  for (const StoredBase& base : store.List()) {
    if (base.manifest.key == manifest.key) bad = base.bad_slabs;
  }
  if (bad.empty()) return absl::OkStatus();
  const auto fingerprint = FingerprintCheckpoint(folder, roots, &store, control);
  if (absl::IsCancelled(fingerprint.status())) return fingerprint.status();
  if (!fingerprint.ok()) return lost(fingerprint.status().message());
  if (fingerprint->hex != manifest.key.fingerprint)
    return lost("the model there is another one now");
  SOUP_ASSIGN_OR_RETURN(const auto assembler,
                        SlabAssembler::Create(folder, roots, manifest.key.format));
  for (int64_t slab : bad) {
    std::vector<uint8_t> bytes(static_cast<size_t>(assembler->slab_bytes(slab)));
    SOUP_RETURN_IF_ERROR(assembler->Assemble(slab, absl::MakeSpan(bytes), control));
    SOUP_RETURN_IF_ERROR(store.Repair(manifest, slab, bytes));
    SOUP_LOG(kInfo, "cache") << "base " << name << " slab " << slab << " rebuilt from " << folder;
  }
  return absl::OkStatus();
}

}  // namespace soup::cache
