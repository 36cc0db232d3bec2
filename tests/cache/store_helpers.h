// Helpers of the shard store's tests: bases of given sizes without a model, and damage on disk.
#ifndef SOUP_TESTS_CACHE_STORE_HELPERS_H_
#define SOUP_TESTS_CACHE_STORE_HELPERS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cache/shard_store.h"

namespace soup::testing {

inline cache::BaseKey MakeKey(char digit, engine::BaseFormat format = engine::BaseFormat::kBf16) {
  return {std::string(cache::kFingerprintChars, digit), format};
}

// Bytes that do not repeat, so that each slab and chunk can be told from the others.
inline std::vector<uint8_t> SlabBytes(const cache::BaseKey& key, int64_t slab, int64_t bytes) {
  uint64_t state = static_cast<uint64_t>(key.fingerprint[0]) * 1000003 +
                   static_cast<uint64_t>(slab) * 8 + static_cast<uint64_t>(key.format);
  std::vector<uint8_t> out(static_cast<size_t>(bytes));
  for (uint8_t& b : out) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    b = static_cast<uint8_t>(state >> 56);
  }
  return out;
}

inline absl::StatusOr<cache::ShardStore::Found> PutBase(cache::ShardStore& store,
                                                        const cache::BaseKey& key,
                                                        const std::vector<int64_t>& slabs) {
  cache::BaseManifest draft;
  draft.key = key;
  draft.config_json = "{}";
  draft.source_folder = "/models/x";
  int64_t total = 0;
  for (int64_t bytes : slabs) total += bytes;
  auto writer = store.Begin(draft, total, {});
  if (!writer.ok()) return writer.status();
  for (size_t i = 0; i < slabs.size(); ++i) {
    const absl::Status appended =
        (*writer)->Append(SlabBytes(key, static_cast<int64_t>(i), slabs[i]));
    if (!appended.ok()) return appended;
  }
  return (*writer)->Commit();
}

inline absl::Status ReadSlab(cache::ShardStore& store, const cache::BaseManifest& manifest,
                             int64_t slab, std::vector<uint8_t>* out) {
  out->assign(static_cast<size_t>(manifest.slabs[slab].bytes), 0);
  for (int64_t chunk = 0; chunk < manifest.chunks(slab); ++chunk) {
    const absl::Status read = store.ReadChunk(
        manifest, slab, chunk,
        absl::MakeSpan(*out).subspan(static_cast<size_t>(chunk * manifest.chunk_bytes),
                                     static_cast<size_t>(manifest.chunk_size(slab, chunk))));
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

// Every slab of the base as PutBase wrote it.
inline void ExpectIntact(cache::ShardStore& store, const cache::BaseManifest& manifest) {
  for (size_t slab = 0; slab < manifest.slabs.size(); ++slab) {
    std::vector<uint8_t> bytes;
    const absl::Status read = ReadSlab(store, manifest, static_cast<int64_t>(slab), &bytes);
    ASSERT_TRUE(read.ok()) << read;
    EXPECT_TRUE(bytes ==
                SlabBytes(manifest.key, static_cast<int64_t>(slab), manifest.slabs[slab].bytes));
  }
}

inline std::vector<std::string> FilesEndingWith(const std::string& folder,
                                                const std::string& ending) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path();
    if (name.size() >= ending.size() &&
        name.compare(name.size() - ending.size(), ending.size(), ending) == 0) {
      out.push_back(name);
    }
  }
  return out;
}

inline int64_t FolderBytes(const std::string& folder) {
  int64_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    const auto size = entry.file_size(gone);
    if (!gone) total += static_cast<int64_t>(size);
  }
  return total;
}

inline void FlipByte(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x5a));
}

}  // namespace soup::testing

#endif  // SOUP_TESTS_CACHE_STORE_HELPERS_H_
